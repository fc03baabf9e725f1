"""Kernels that multiply one pair of tiles, in every form that Warp accepts. Several test modules use them."""

import importlib.util
import itertools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import warp as wp

from tests.array_products.cases import values_of
from warp_tiles.gemm.problem import DTYPES

Matrix = npt.NDArray[np.float64]
# unit roundoff of each storage type
ROUNDOFF = {str(name): info.roundoff for name, info in DTYPES.items()}
TF32_TRUNCATION = 2.0**-10  # without rounding, operands of the tensor cores lose up to one tf32 ulp


@dataclass(frozen=True)
class Case:
    """One product: sizes, dtypes, views of A and B, and the form of the call."""

    m: int
    n: int
    k: int
    a: str = "float32"
    b: str = "float32"
    c: str = "float32"
    a_transposed: bool = False
    b_transposed: bool = False
    pad: int = 0  # unused first columns of the loaded tiles, so that the operands are views with leading dimensions
    threads: int = 64
    accumulate: bool = False  # read C first and scale by alpha and beta
    alpha: float = 1.0
    beta: float = 1.0
    tf32: bool = False
    backward: bool = True

    @property
    def a_stored(self) -> tuple[int, int]:
        """Shape of the array that holds A."""
        rows, cols = (self.k, self.m) if self.a_transposed else (self.m, self.k)
        return rows, cols + self.pad

    @property
    def b_stored(self) -> tuple[int, int]:
        """Shape of the array that holds B."""
        rows, cols = (self.n, self.k) if self.b_transposed else (self.k, self.n)
        return rows, cols + self.pad

    def operand(self, stored: Matrix, transposed: bool) -> Matrix:
        """The operand, from the stored array."""
        part = stored[:, self.pad :]
        return part.T if transposed else part

    def stored(self, operand: Matrix, transposed: bool) -> Matrix:
        """The gradient of an operand in the layout of the stored array."""
        part = operand.T if transposed else operand
        return np.hstack([np.zeros((part.shape[0], self.pad)), part])


def source(case: Case) -> str:
    """Text of the case's kernel."""
    lines = []
    for name, transposed, (rows, cols) in (
        ("a", case.a_transposed, case.a_stored),
        ("b", case.b_transposed, case.b_stored),
    ):
        # each step has its own name, because Warp cannot differentiate the copy of a view
        steps = [f'wp.tile_load({name.upper()}, shape=({rows}, {cols}), storage="shared")']
        if case.pad:
            steps.append(f"wp.tile_view({{}}, offset=(0, {case.pad}), shape=({rows}, {cols - case.pad}))")
        if transposed:
            steps.append("wp.tile_transpose({})")
        for number, step in enumerate(steps):
            label = name if number == len(steps) - 1 else f"{name}{number}"
            lines.append(f"{label} = {step.format(f'{name}{number - 1}')}")
    precision = ', precision="tf32"' if case.tf32 else ""
    if case.accumulate:
        scale = f", alpha=wp.{case.c}({case.alpha!r}), beta=wp.{case.c}({case.beta!r})"
        lines.append(f'c = wp.tile_load(C, shape=({case.m}, {case.n}), storage="shared")')
        lines.append(f"wp.tile_matmul(a, b, c{scale}{precision})")
    elif case.a == case.c:
        lines.append(f"c = wp.tile_matmul(a, b{precision})")
    else:
        lines.append(f"c = wp.tile_zeros(shape=({case.m}, {case.n}), dtype=wp.{case.c})")
        lines.append(f"wp.tile_matmul(a, b, c{precision})")
    lines.append("wp.tile_store(D, c)")
    arrays = {"A": case.a, "B": case.b, "C": case.c, "D": case.c}
    parameters = ", ".join(f"{name}: wp.array2d(dtype=wp.{dtype})" for name, dtype in arrays.items())
    body = "\n".join(f"    {line}" for line in lines)
    return (
        f"import warp as wp\n\n\n@wp.kernel(enable_backward={case.backward}, module='unique')\n"
        f"def product({parameters}):\n{body}\n"
    )


_folder = Path(tempfile.mkdtemp(prefix="warp_tiles_cases_"))
_numbers = itertools.count()


def make_kernel(case: Case) -> Any:
    """The case's kernel, of arrays A, B, C (read) and D (written)."""
    return load_kernels(source(case)).product


def load_kernels(text: str) -> Any:
    """Import a Python module with kernels from its text, through a file, because Warp reads sources from files."""
    path = _folder / f"case_{next(_numbers)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def to_device(values: Matrix, dtype: str, device: str, requires_grad: bool = False) -> Any:
    return wp.array(values, dtype=getattr(wp, dtype), device=device, requires_grad=requires_grad)


@dataclass(frozen=True)
class Result:
    """The product, and the gradients of A and B in the stored layout, or None without a backward pass."""

    d: Matrix
    grad_a: Matrix | None
    grad_b: Matrix | None


@dataclass(frozen=True)
class Inputs:
    """The inputs, rounded to the case's dtypes."""

    a: Matrix
    b: Matrix
    c: Matrix
    grad_d: Matrix


def draw_inputs(case: Case, seed: int, device: str) -> Inputs:
    """Random values, rounded as the device stores them."""
    random = np.random.default_rng(seed)
    shapes = {"a": case.a_stored, "b": case.b_stored, "c": (case.m, case.n), "grad_d": (case.m, case.n)}
    dtypes = {"a": case.a, "b": case.b, "c": case.c, "grad_d": case.c}
    values = {
        name: values_of(to_device(random.uniform(-1, 1, shape), dtypes[name], device)) for name, shape in shapes.items()
    }
    return Inputs(**values)


def run(case: Case, kernel: Any, inputs: Inputs, device: str) -> Result:
    """Launch the kernel, and its adjoint if it has one."""
    a = to_device(inputs.a, case.a, device, requires_grad=case.backward)
    b = to_device(inputs.b, case.b, device, requires_grad=case.backward)
    c = to_device(inputs.c, case.c, device, requires_grad=case.backward)
    nan = np.full((case.m, case.n), np.nan)
    d = to_device(nan, case.c, device, requires_grad=case.backward)  # poisoned: every element must be written
    tape = wp.Tape()
    with tape:
        wp.launch_tiled(kernel, dim=[1], inputs=[a, b, c], outputs=[d], block_dim=case.threads, device=device)
    product = values_of(d)
    if not case.backward:
        return Result(product, None, None)
    d.grad = to_device(inputs.grad_d, case.c, device)
    tape.backward()
    return Result(product, values_of(a.grad), values_of(b.grad))


def reference(case: Case, inputs: Inputs) -> Result:
    """The results in float64."""
    a, b = case.operand(inputs.a, case.a_transposed), case.operand(inputs.b, case.b_transposed)
    alpha, beta = (case.alpha, case.beta) if case.accumulate else (1.0, 0.0)
    d = alpha * a @ b + (beta * inputs.c if beta else 0.0)
    if not case.backward:
        return Result(d, None, None)
    grad_a, grad_b = alpha * inputs.grad_d @ b.T, alpha * a.T @ inputs.grad_d
    return Result(d, case.stored(grad_a, case.a_transposed), case.stored(grad_b, case.b_transposed))


def tolerance(case: Case, inputs: Inputs) -> Result:
    """Error bound of each result: roundings of the accumulator and of the result.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 3.1. The error of a sum of K
    products is at most about K u sum |a| |b|, where u is the roundoff of the accumulating dtype.
    """
    sizes = Inputs(abs(inputs.a), abs(inputs.b), abs(inputs.c), abs(inputs.grad_d))
    magnitude = reference(replace(case, alpha=abs(case.alpha), beta=abs(case.beta)), sizes)

    def bound(values: Matrix, dtype: str, reduced: int) -> Matrix:
        unit = ROUNDOFF[dtype] + (2 * TF32_TRUNCATION / max(reduced, 1) if case.tf32 else 0.0)
        return np.asarray((reduced + 4) * unit * values + 1e-30)

    d = bound(magnitude.d, case.c, case.k)
    if magnitude.grad_a is None or magnitude.grad_b is None:
        return Result(d, None, None)
    # Warp rounds alpha to the gradients' dtypes, and adds each gradient to a zero gradient
    return Result(d, bound(magnitude.grad_a, case.a, case.n), bound(magnitude.grad_b, case.b, case.m))


def assert_close(case: Case, got: Result, expected: Result, allowed: Result) -> None:
    """Compare every result. NaN fails."""
    for name in ("d", "grad_a", "grad_b"):
        values, wanted, bound = getattr(got, name), getattr(expected, name), getattr(allowed, name)
        if wanted is None:
            assert values is None, f"{case}: {name} was computed without a backward pass"
            continue
        excess = np.abs(values - wanted) / bound
        assert np.all(excess <= 1.0), f"{case}: the error of {name} is {np.nanmax(excess):.3g} times its bound"
