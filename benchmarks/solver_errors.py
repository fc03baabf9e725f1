"""Errors of solver functions: rows, inputs and exact results. ``benchmarks/numerics.py`` runs them.

An error is normwise and relative: the Frobenius norm of the difference to the exact result, over the norm of the exact
result. The exact result is computed from the same rounded inputs in NumPy's ``longdouble``, whose mantissa has 64 bits
on x86-64 and 113 on aarch64. warp_tiles, Warp with libmathdx and Warp's native path get the same inputs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import warp as wp

from benchmarks.runner import DEVICE
from benchmarks.solvers import DTYPES, SIDES, Cell
from benchmarks.speed.builds import Build, BuildStore, load_module

Found = dict[str, Any]
FUNCTIONS = ("cholesky", "cholesky_solve", "lower_solve", "upper_solve")
IN_PLACE = tuple(f"{function}_inplace" for function in FUNCTIONS)
ADJOINTS = {
    function: ("grad_a",) if function.startswith("cholesky") and "solve" not in function else ("grad_a", "grad_b")
    for function in (*FUNCTIONS, *IN_PLACE)
}
_WARPS_ADJOINTS = ("cholesky", "lower_solve")
SIZES = (8, 16, 32, 64, 96)
CONDITIONS = {"fp32": (1e2, 1e6), "fp64": (1e2, 1e12)}
THREADS = 64
MATRICES, RUNS = 32, 5
# Warp cannot build the adjoint of the Cholesky factor of a larger matrix (benchmarks/results/solvers.json). libmathdx
# takes minutes to fail, so it is not tried. The factor then has a kernel of its own.
_LARGEST_WITH_ADJOINT_BYTES = 16 * 1024
_NOT_TRIED = "not tried, because Warp with libmathdx cannot build it: see benchmarks/results/solvers.json"
NO_GRADIENT = "Warp has no gradient of it"
TITLES = {"tiles": "warp_tiles", "warp": "Warp with libmathdx", "native": "Warp's native path"}


def power(condition: float) -> str:
    """A condition number for display."""
    return f"1e{round(math.log10(condition))}"


@dataclass(frozen=True)
class Row:
    """One function of matrices of one size and condition. Of those in place only the gradients are measured.

    Attributes:
        function: The solver function.
        types: ``fp32`` or ``fp64``.
        n: Rows of the matrix.
        condition: Condition number of the matrix A of the system; for ``cholesky_solve`` that of L L^T.
    """

    function: str
    types: str
    n: int
    condition: float

    @property
    def name(self) -> str:
        return f"{self.function} {self.types}, {self.n}, condition {power(self.condition)}"

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the results that are measured."""
        return ADJOINTS[self.function] if self.function in IN_PLACE else ("x", *ADJOINTS[self.function])

    def measured(self, store: BuildStore) -> Found:
        """The errors of all sides."""
        inputs = draw(self)
        found = exact(self.function.removesuffix("_inplace"), *(inputs[name].astype(np.longdouble) for name in "abg"))
        expected = {name: found[name] for name in self.results}
        record: Found = {"function": self.function, "types": self.types, "n": self.n, "condition": self.condition}
        record["measured_condition"] = float(f"{condition_of(self, inputs['a']):.3g}")
        for side in SIDES:
            known = side == "tiles" or self.function in _WARPS_ADJOINTS
            record[side] = {name: {"error": _NOT_TRIED if known else NO_GRADIENT} for name in expected}
            for build, results in self.builds(side):
                groups = [[name for name in group if name in results] for group in (("x",), ADJOINTS[self.function])]
                record[side] |= measured_build(
                    store, build, filter(None, groups), lambda module, names: compute(module, inputs, names),
                    lambda name, runs: figures(runs, expected[name]), lambda record, side=side: TITLES[side],  # type: ignore[misc]
                )  # fmt: skip
        return record

    @property
    def all_builds(self) -> list[Build[Cell]]:
        return [build for side in SIDES for build, _ in self.builds(side)]

    def builds(self, side: str) -> Iterator[tuple[Build[Cell], tuple[str, ...]]]:
        """The kernels of one side, each with its results. A kernel with an adjoint mostly serves both directions."""
        forward = Build(Cell(self.function, self.types, self.n, 0, THREADS), side)
        if side != "tiles" and self.function not in _WARPS_ADJOINTS:
            if self.function not in IN_PLACE:
                yield forward, ("x",)
            return
        backward = Build(Cell(self.function, self.types, self.n, 0, THREADS, True), side)
        bytes_of_a = np.dtype(DTYPES[self.types]).itemsize * self.n**2
        if self.function == "cholesky" and bytes_of_a > _LARGEST_WITH_ADJOINT_BYTES:
            yield forward, ("x",)
            if side != "warp":
                yield backward, ADJOINTS[self.function]
        else:
            yield backward, self.results


ROWS = [
    Row(function, types, n, condition)
    for function in (*FUNCTIONS, *IN_PLACE)
    for types in DTYPES
    for n in SIZES
    for condition in CONDITIONS[types]
]


# ---- inputs


def _orthogonal(random: np.random.Generator, n: int) -> Any:
    return np.linalg.qr(random.standard_normal((MATRICES, n, n)))[0]


def lower_factors(random: np.random.Generator, n: int, condition: float) -> Any:
    """Random lower triangles of a condition number, with a positive diagonal. Their singular values are geometric."""
    values = condition ** -np.linspace(0, 1, n)
    lower = np.linalg.qr((_orthogonal(random, n) * values) @ _orthogonal(random, n))[1].swapaxes(1, 2)
    return np.tril(lower * np.sign(np.diagonal(lower, axis1=1, axis2=2))[:, None, :])


def draw(row: Row) -> dict[str, Any]:
    """Matrices ``a``, vectors ``b`` and the gradient ``g`` of the result, in the type of the row."""
    function = row.function.removesuffix("_inplace")
    random = np.random.default_rng([row.n, FUNCTIONS.index(function), int(row.condition)])
    if function == "cholesky":
        q = _orthogonal(random, row.n)
        a = (q * row.condition ** -np.linspace(0, 1, row.n)) @ q.swapaxes(1, 2)
        a = (a + a.swapaxes(1, 2)) / 2
    else:
        a = lower_factors(random, row.n, math.sqrt(row.condition) if function == "cholesky_solve" else row.condition)
    if function == "upper_solve":
        a = a.swapaxes(1, 2)
    b = random.uniform(-1, 1, (MATRICES, row.n))
    gradient = random.uniform(-1, 1, a.shape if function == "cholesky" else b.shape)
    return {name: np.ascontiguousarray(each.astype(DTYPES[row.types])) for name, each in zip("abg", (a, b, gradient))}


def condition_of(row: Row, a: Any) -> float:
    """The median condition number of the rounded matrices."""
    found = float(np.median(np.linalg.cond(a.astype(np.float64))))
    return found**2 if "cholesky_solve" in row.function else found


# ---- exact results


def cholesky(a: Any) -> Any:
    """Lower factors of matrices, in the precision of their type."""
    lower = np.zeros_like(a)
    for j in range(a.shape[-1]):
        column = a[:, j:, j] - np.sum(lower[:, j:, :j] * lower[:, j : j + 1, :j], axis=2)
        lower[:, j:, j] = column / np.sqrt(column[:, :1])
    return lower


def solve_lower(lower: Any, b: Any) -> Any:
    """Solutions of L X = B, of matrices B."""
    x = np.zeros_like(b)
    for i in range(b.shape[1]):
        x[:, i] = (b[:, i] - np.sum(lower[:, i, :i, None] * x[:, :i], axis=1)) / lower[:, i, i, None]
    return x


def solve_upper(upper: Any, b: Any) -> Any:
    """Solutions of U X = B, of matrices B."""
    return solve_lower(upper[:, ::-1, ::-1], b[:, ::-1])[:, ::-1]


def exact(function: str, a: Any, b: Any, g: Any) -> dict[str, Any]:
    """The result and the adjoints of a function, in the precision of the operands' type.

    A gradient of a triangle is that of the elements that the function reads. That of A of the Cholesky factor is from
    Murray, "Differentiation of the Cholesky decomposition", 2016, section 3. That of A in A X = B is A' = -B' X^T with
    the gradient B' of B (Giles, "An extended collection of matrix derivative results", 2008, section 2.3.1). With
    A = L L^T that of L is the lower triangle of (A' + A'^T) L.

    Args:
        function: The solver function.
        a: Matrices, or triangles.
        b: Vectors, or matrices.
        g: Gradients of the result.
    """
    if function == "cholesky":
        lower = cholesky(a)
        upper = lower.swapaxes(1, 2)
        half = _half_diagonal(np.tril(upper @ np.tril(g)))
        half = solve_upper(upper, solve_upper(upper, half).swapaxes(1, 2))  # the sum below has its transpose too
        return {"x": lower, "grad_a": _half_diagonal(np.tril(half + half.swapaxes(1, 2)))}
    shape, transposed = b.shape, a.swapaxes(1, 2)
    b, g = (each if each.ndim == 3 else each[..., None] for each in (b, g))
    if function == "cholesky_solve":
        half, half_gradient = solve_lower(a, b), solve_lower(a, g)
        x, gradient = solve_upper(transposed, half), solve_upper(transposed, half_gradient)
        grad_a = -np.tril(gradient @ half.swapaxes(1, 2) + x @ half_gradient.swapaxes(1, 2))
    elif function == "upper_solve":
        x, gradient = solve_upper(a, b), solve_lower(transposed, g)
        grad_a = -np.triu(gradient @ x.swapaxes(1, 2))
    else:
        x, gradient = solve_lower(a, b), solve_upper(transposed, g)
        grad_a = -np.tril(gradient @ x.swapaxes(1, 2))
    return {"x": x.reshape(shape), "grad_a": grad_a, "grad_b": gradient.reshape(shape)}


def _half_diagonal(a: Any) -> Any:
    diagonal = np.arange(a.shape[-1])
    a[:, diagonal, diagonal] /= 2
    return a


def errors(values: Any, expected: Any) -> Any:
    """Normwise relative errors of matrices or vectors, each as a float."""
    axes = tuple(range(1, expected.ndim))
    squares = np.sum((values.astype(expected.dtype) - expected) ** 2, axis=axes) / np.sum(expected**2, axis=axes)
    return np.sqrt(squares).astype(np.float64)


# ---- one row


def compute(module: Any, inputs: Mapping[str, Any], results: Sequence[str], device: str = DEVICE) -> dict[str, Any]:
    """Launch the kernel of a cell of vectors, and its adjoint if a gradient is among the results."""
    kernel = module.run
    a, b = (wp.array(inputs[name], device=device) for name in "ab")
    x = wp.array(np.full_like(inputs["g"], np.nan), device=device)
    launch: dict[str, Any] = {"dim": [MATRICES], "inputs": [a, b, x], "block_dim": THREADS, "device": device}
    found = {}
    if "x" in results:
        wp.launch_tiled(kernel, **launch)
        found["x"] = x.numpy()
    if set(results) != {"x"}:
        gradients = [wp.zeros_like(a), wp.zeros_like(b), wp.array(inputs["g"], device=device)]
        a.grad, b.grad, x.grad = gradients
        wp.launch_tiled(kernel, **launch, adjoint=True, adj_inputs=gradients)
        found |= {"grad_a": a.grad.numpy(), "grad_b": b.grad.numpy()}
    return {name: found[name] for name in results}


def figures(runs: Sequence[Any], expected: Any) -> dict[str, Any]:
    """Errors of the first of several runs, and whether all have the same bits; or the reason why there are none."""
    if not np.all(np.isfinite(runs[0])):
        bad = sum(not np.all(np.isfinite(each)) for each in runs[0])
        return {"error": f"{bad} of {len(runs[0])} results are not finite"}
    if not np.any(runs[0]):
        return {"error": "all results are zero"}
    found = errors(runs[0], expected)
    return {
        "largest": float(np.max(found)),
        "rms": float(np.sqrt(np.mean(found**2))),
        "same_bits": all(np.array_equal(runs[0], run) for run in runs[1:]),
    }


def measured_build(
    store: BuildStore,
    build: Build[Any],
    groups: Iterable[Sequence[str]],
    compute: Callable[[Any, Sequence[str]], Mapping[str, Any]],
    figures: Callable[[str, Sequence[Any]], Found],
    peer: Callable[[Found], str],
) -> Found:
    """Measure some results of one kernel, or return the reason why there are none.

    Args:
        groups: Names of results that are computed together. Others do not suffer if one group fails.
        compute: Returns the values of results, given the module of the kernel.
        figures: Returns the figures of a result from the values of several runs.
        peer: Who computes them if warp_tiles does not, by the record of the build.
    """
    found: Found = {}
    record = store.record(build) or {"error": "not built"}
    providers = sorted({built["provider"] for built in record.get("builds", [])})
    for names in groups:
        try:
            if "error" in record:
                raise LookupError(record["error"])
            module = load_once(store, build)
            runs = [compute(module, names) for _ in range(RUNS)]
            for name in names:
                found[name] = figures(name, [run[name] for run in runs]) | {"providers": providers or [peer(record)]}
        except Exception as error:  # the other results are independent of it
            text = str(record.get("error") or f"{type(error).__name__}: {error}")
            found |= {name: {"error": text[:200]} for name in names}
    return found


@functools.lru_cache(maxsize=8)  # rows of two conditions have the same kernels
def load_once(store: BuildStore, build: Build[Any]) -> Any:
    return load_module(store, build, DEVICE)
