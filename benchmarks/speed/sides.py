"""The sides of a row: a finished build, loaded on the GPU with its operands, or cuBLAS; and their results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import warp as wp

import warp_tiles
from benchmarks.runner import DEVICE, WrongResultError
from benchmarks.speed.builds import Build, BuildStore, load_module
from benchmarks.speed.cells import Cell, Part
from benchmarks.speed.timing import Launch
from tests.array_products.cases import values_of
from warp_tiles.gemm.problem import DTYPES

Matrix = npt.NDArray[np.float64]
# unit roundoff of the storage type; tf32 keeps ten bits of the mantissa
ROUNDOFF = {**{str(name): info.roundoff for name, info in DTYPES.items()}, "tf32": 2.0**-11}
_ALLOWED = 16.0  # largest difference between two correct results, in units of their roundings


def draw(shape: tuple[int, ...], seed: int, exact: bool) -> Matrix:
    """Returns random values in (-1, 1). With ``exact``, float16 and bfloat16 both represent them exactly."""
    values = np.random.default_rng(seed).uniform(-1, 1, shape)
    if not exact:
        return values
    values = np.where(abs(values) < 2.0**-14, 2.0**-14, values)
    return values_of(wp.array(values, dtype=wp.bfloat16, device="cpu"))


@functools.lru_cache(maxsize=8)  # neighbouring rows have the same operands
def _operand(shape: tuple[int, ...], seed: int, exact: bool, dtype: str) -> Any:
    """Random values on the device. With three dimensions, the first repeats one matrix."""
    values = draw(shape[-2:], seed, exact)
    return wp.array(np.ascontiguousarray(np.broadcast_to(values, shape)), dtype=getattr(wp, dtype), device=DEVICE)


class Computed(Protocol):
    """What computes the results of a row."""

    cell: Cell
    part: Part
    rounds_to_half: bool

    def results(self, calls: int) -> dict[str, Matrix]:
        """Samples of the results of ``calls`` products by name."""


class Side:
    """A loaded kernel with its arrays.

    Args:
        store: The store of the build.
        build: The build.
        part: Sizes and number of launches.
    """

    def __init__(self, store: BuildStore, build: Build[Cell], part: Part) -> None:
        cell = build.cell
        self.cell, self.part = cell, part
        self.rounds_to_half = build.side != "tiles"  # cuBLASDx does so with products of float and half
        self._multiplies_whole_arrays = build.multiplies_whole_arrays
        self._kernel = load_module(store, build).gemm
        shape_a, shape_b, shape_c = self._shapes(cell, part)
        exact = cell.a in ("float16", "bfloat16")  # which have the same values then
        self.a = _operand(shape_a, 1, exact, cell.a)
        self.b = _operand(shape_b, 2, exact, cell.b)
        self.c = wp.zeros(shape_c, dtype=getattr(wp, cell.c), device=DEVICE)
        if cell.backward:
            self.a, self.b = wp.clone(self.a), wp.clone(self.b)
            for array in (self.a, self.b):
                array.grad = wp.zeros_like(array)
            self.gradient_of_c = _operand(shape_c, 3, exact, cell.c)
            self.c.grad = wp.clone(self.gradient_of_c)

    @staticmethod
    def _shapes(cell: Cell, part: Part) -> tuple[tuple[int, ...], ...]:
        depth = part.depth or part.size
        if cell.form == "gram":
            return (part.blocks, depth), (part.blocks, depth, cell.n), (part.blocks, cell.m, cell.n)
        m, n, k = (cell.m, cell.n, cell.k) if cell.form == "resident" else (part.size, part.size, depth)
        a = (k, m) if cell.transposed == "a" else (m, k)
        b = (n, k) if cell.transposed == "b" else (k, n)
        if cell.form != "resident":
            return a, b, (part.size, part.size)
        # each block has its own gradients, because atomic additions to shared ones would dominate the time
        shared = part.blocks if cell.backward else 1
        return (shared, *a), (shared, *b), (part.blocks, cell.m, cell.n)

    def command(self, calls: int, adjoint: bool) -> Any:
        """Returns a recorded launch of the kernel or of its adjoint."""
        resident = self.cell.form == "resident"
        part, cell = self.part, self.cell
        grid = [part.blocks] if cell.is_batched else [part.size // cell.m, part.size // cell.n]
        keywords: dict[str, Any] = {"dim": grid, "block_dim": cell.threads, "device": DEVICE, "record_cmd": True}
        arrays, count = [self.a, self.b, self.c], [calls] if resident else []
        keywords["inputs"] = [*arrays, *count]
        if adjoint:
            keywords |= {"adjoint": True, "adj_inputs": [*(array.grad for array in arrays), *count]}
        return wp.launch_tiled(self._kernel, **keywords)

    def launch(self, calls: int, adjoint: bool) -> Launch:
        """Returns a launch. An adjoint first restores the gradient of C, which Warp's adjoint of a store zeroes."""
        if not adjoint:
            return Launch(self.command(calls, False).launch)
        return Launch(self._backward(calls), functools.partial(wp.copy, self.c.grad, self.gradient_of_c))

    def _backward(self, calls: int) -> Callable[[], None]:
        """Returns the adjoint: of a loop as a tape runs it, else the recorded launch of the kernel."""
        if self.cell.form != "loop":
            run: Callable[[], None] = self.command(calls, True).launch
            return run
        if self._multiplies_whole_arrays:
            warp_tiles.enable()  # for the tape; builds are loaded as they are
        cell, size = self.cell, self.part.size
        with wp.Tape() as tape, warp_tiles.override(gemm_gradients="auto" if self._multiplies_whole_arrays else "off"):
            wp.launch_tiled(
                self._kernel,
                dim=[size // cell.m, size // cell.n],
                inputs=[self.a, self.b],
                outputs=[self.c],
                block_dim=cell.threads,
                device=DEVICE,
            )
        backward: Callable[[], None] = tape.backward
        return backward

    def results(self, calls: int) -> dict[str, Matrix]:
        """The results of ``calls`` products: a sample of C, or of the gradients of A and B."""
        if not self.cell.backward:
            self.c.fill_(1.0 if self.cell.form == "update" else float("nan"))
            self.command(calls, False).launch()
            return {"c": sample(self.c)}
        self.a.grad.zero_()
        self.b.grad.zero_()
        wp.copy(self.c.grad, self.gradient_of_c)
        self._backward(calls)()
        return {"grad_a": sample(self.a.grad), "grad_b": sample(self.b.grad)}


class Cublas:
    """The product of a row, or its two gradients, by ``torch.matmul``, which calls cuBLAS.

    A result has the dtype of the operands. Of gradients, two products count, while those of the other sides also count
    the one that is replayed.

    Args:
        torch: The module, whose stream is Warp's.
        ours: Our side of the row, whose arrays are multiplied. Its form is ``loop``.
    """

    rounds_to_half = False  # its sums are float32

    def __init__(self, torch: Any, ours: Side) -> None:
        cell, size = ours.cell, ours.part.size
        self.part = ours.part
        # one tile is the whole product, so each result is rounded once
        self.cell = replace(cell, c=cell.a, m=size, n=size, k=size)
        self._torch = torch
        a, b = (wp.to_torch(array, requires_grad=False) for array in (ours.a, ours.b))
        factors = {"c": (a, b)}
        if cell.backward:
            gradient = wp.to_torch(ours.gradient_of_c, requires_grad=False).to(a.dtype)
            factors = {"grad_a": (gradient, b.T), "grad_b": (a.T, gradient)}
        dtype = getattr(wp, cell.a)
        self._results = {name: wp.empty((size, size), dtype=dtype, device=DEVICE) for name in factors}
        self._products = [(*pair, wp.to_torch(self._results[name])) for name, pair in factors.items()]

    @property
    def flops(self) -> int:
        return int(len(self._products) * 2 * self.part.size**3)

    def run(self) -> None:
        self._torch.backends.cuda.matmul.allow_tf32 = self.cell.tf32
        for left, right, out in self._products:
            self._torch.matmul(left, right, out=out)

    def results(self, calls: int) -> dict[str, Matrix]:
        """Samples of the results. ``calls`` is 1, as in every loop."""
        self.run()
        return {name: sample(array) for name, array in self._results.items()}


def sample(array: Any) -> Matrix:
    """Returns a few tiles, or rows from every position within a tile."""
    return values_of(array[::703] if array.ndim == 3 else array[::17])


def _unit(side: Computed, name: str) -> float:
    """Relative size of the roundings of a result: sqrt(K) for the sums, and one for each store of the result."""
    cell, part = side.cell, side.part
    reduced = {"c": cell.k, "grad_a": cell.n, "grad_b": cell.m}[name]
    stored = {"c": cell.c, "grad_a": cell.a, "grad_b": cell.b}[name]
    if cell.form != "resident":
        size = part.depth or part.size if name == "c" else part.size
        stores = size / reduced  # tiles, or blocks that add to a gradient
        reduced = size
    else:
        stores = 1.0
    inner = "tf32" if cell.tf32 else "float64" if cell.c == "float64" else "float32"
    if cell.backward and side.rounds_to_half and cell.a in ("float16", "bfloat16"):
        inner = cell.a
    return float(np.sqrt(reduced) * ROUNDOFF[inner] + np.sqrt(stores) * ROUNDOFF[stored])


def compare(ours: Computed, theirs: Computed) -> dict[str, dict[str, float]]:
    """Returns the differences between the results of one call.

    Returns:
        By result: ``largest``, the largest difference over the root mean square of the values, and ``units``, the
        same over the roundings that both make.

    Raises:
        WrongResultError: A difference has more units than roundings explain, or is NaN.
    """
    first, second = ours.results(1), theirs.results(1)
    found = {}
    for name, values in first.items():
        size = float(np.sqrt(np.mean(second[name] ** 2)))
        largest = float(np.max(np.abs(values - second[name]))) / size
        unit = max(_unit(ours, name), _unit(theirs, name))
        found[name] = {"largest": largest, "units": round(largest / unit, 3)}
        if not largest <= _ALLOWED * unit:
            raise WrongResultError(
                f"{name} differs by {largest:.3g} of its size, {largest / unit:.3g} units of rounding"
            )
    return found
