"""Prepared factorizations and solves: the choice of threads, blocks or tiles, packed launches, and their workspace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warp_tiles._warp.intercept import is_planning
from warp_tiles.array_products.call import View, contiguous
from warp_tiles.array_products.prepared import PLANNED_GPU, Layout, kept, layout, packed
from warp_tiles.array_products.solve_kernels import (
    SolveKernel,
    ThreadKernel,
    block_kernel,
    factor_kernel,
    fits_registers,
    substitution_kernel,
    thread_kernel,
    threads_of_block,
)
from warp_tiles.array_products.workspace import temporary
from warp_tiles.gemm.hardware import shared_limit
from warp_tiles.gemm.problem import DTYPE_BYTES

A, FACTOR, B, X, INFO, WORKSPACE, COUNTERS = range(7)  # the memory of a call
_MOST_ROWS = 256  # that the functions of one block serve
_CPU_ROWS, _CPU_BLOCK = 64, 32  # the CPU has 256 KiB for the tiles of a kernel


@dataclass(frozen=True)
class SolveCall:
    """L of A = L L^T, and X of A X = B, without the memory of the arrays.

    Attributes:
        a: (batch, n, n): A, or its factor. The lower triangle is read.
        factor: Where L is stored; None if it is not needed.
        x: Where X is stored: (batch, n, columns); None without right-hand sides.
        b: B, of x's shape; None if x holds it.
        is_factored: True if ``a`` is L.
        forward: True if X is computed by L, before it is by L^T.
        has_info: True if the call stores ``info``.
    """

    a: View
    factor: View | None = None
    b: View | None = None
    x: View | None = None
    is_factored: bool = False
    forward: bool = True
    has_info: bool = False


@dataclass(frozen=True)
class SolveConfig:
    """How a call is computed.

    Attributes:
        rows: Rows of a tile: of the whole matrix, or of a block on the diagonal.
        in_block: True if one block computes a matrix.
        columns: Columns of a tile of right-hand sides; 0 without.
        step: Elements of K in an iteration of a loop of products.
    """

    rows: int
    in_block: bool
    columns: int
    threads: int
    step: int


def choose(n: int, columns: int, size_bytes: int, arch: int | None) -> SolveConfig:
    """Tiles and threads for n rows, and columns of right-hand sides or 0. ``arch`` is None for the CPU."""
    if arch is None:  # few shapes of tiles, because each of them compiles for a second
        small = n <= _CPU_ROWS
        rows, width = -(-n // 16) * 16 if small else _CPU_BLOCK, 8 if columns > 1 else columns
        return SolveConfig(rows, small, width, 1, _CPU_BLOCK)
    rows = n if n <= 32 else -(-n // 8) * 8
    width = min(32, 1 << (columns - 1).bit_length()) if columns else 0
    threads = 32 if rows <= 48 else 128 if rows <= 128 else 256
    while width > 8 and rows * (rows + width) * size_bytes > shared_limit(arch, threads):
        width //= 2
    if rows <= _MOST_ROWS and rows * (rows + width) * size_bytes <= shared_limit(arch, threads):
        return SolveConfig(rows, True, width, threads, 0)
    step = 128 // size_bytes
    tiles = 2 * 64 * (64 + step)  # two of the matrix, and what is subtracted
    rows = 64 if tiles * size_bytes <= shared_limit(arch, 128) else 32
    return SolveConfig(rows, False, rows if columns > 32 else min(width, rows), 128, step)


@dataclass(frozen=True)
class _Launch:
    """A packed launch, with the positions and the offsets in bytes of its arrays in the memory of a call."""

    launch: Any
    arrays: tuple[tuple[int, int] | None, ...]

    def is_current(self) -> bool:
        return bool(self.launch.is_current())

    def run(self, memory: Sequence[int]) -> None:
        pointers = tuple(None if array is None else memory[array[0]] + array[1] for array in self.arrays)
        self.launch.run_at(pointers)


@dataclass(frozen=True)
class PreparedSolve:
    """A call on a device that is repeated with other memory. Thread-safe. It keeps no array alive."""

    steps: tuple[_Launch, ...]
    device: Any
    workspace_bytes: int = 0
    counters: int = 0

    def is_current(self) -> bool:
        return all(step.is_current() for step in self.steps)

    def run(self, *arrays: Any) -> None:
        """Launches all kernels on the current stream of the device. ``arrays`` are A, L, B, X and info."""
        memory = [0 if array is None else array.ptr or 0 for array in arrays]
        if not self.counters:
            for step in self.steps:
                step.run(memory)
            return
        with temporary(self.workspace_bytes, self.counters, self.device) as own:
            for step in self.steps:
                step.run([*memory, own.start, own.arrived])


def prepared_solve(call: SolveCall, device: Any) -> PreparedSolve:
    """The call on a device. It is prepared once, and again after its module was modified. See :func:`prepare_solve`."""
    return kept((call, device.alias), lambda: prepare_solve(call, device))


def prepare_solve(call: SolveCall, device: Any, *, in_threads: bool = True) -> PreparedSolve:
    """Packs the launches of a call. Without ``in_threads``, which serves comparisons, no thread computes a matrix."""
    columns = 0 if call.x is None else call.x.shape[2]
    dense = all(view is None or _is_dense(view) for view in (call.a, call.factor, call.b, call.x))
    threads = threads_of_block(call.a.shape[1], columns, DTYPE_BYTES[call.a.dtype], call.a.shape[0], dense)
    if in_threads and threads:
        return PreparedSolve((_in_threads(call, columns, threads, dense, device),), device)
    arch = device.arch if device.is_cuda else PLANNED_GPU.arch if is_planning() else None
    config = choose(call.a.shape[1], columns, DTYPE_BYTES[call.a.dtype], arch)
    if config.in_block:
        return PreparedSolve((_in_block(call, config, device),), device)
    return _in_tiles(call, config, device)


def _tiled(kernel: Any, scalars: Sequence[int], arrays: Sequence[Layout | None], dim: Sequence[int], at: Any) -> Any:
    device, config = at
    return packed(kernel, scalars, arrays, dim, device, block_dim=config.threads, tiled=True)


def _in_block(call: SolveCall, config: SolveConfig, device: Any) -> _Launch:
    """One block for each matrix. It reads rows of memory, which hold A or its transpose."""
    batch, n, _ = call.a.shape
    upper = call.a.is_transposed
    key = SolveKernel(
        call.a.dtype, config.rows, config.columns, 0, config.threads, upper, config.rows > n, call.has_info
    )
    solves = call.x is not None
    kernel = block_kernel(key, not call.is_factored, call.factor is not None, solves and call.forward, solves)
    source = (call.x, X) if call.b is None else (call.b, B)
    places = ((call.a, A), (call.factor, FACTOR), source, (call.x, X))
    stored = [((view and upper and at in (A, FACTOR) and view.transposed()) or view, at) for view, at in places]
    arrays = [None if view is None else layout(view) for view, _ in stored] + [_info(call)]
    where = [None if view is None else (at, 0) for view, at in stored] + [(INFO, 0) if call.has_info else None]
    return _Launch(_tiled(kernel, [n], arrays, [batch], (device, config)), tuple(where))


def _in_tiles(call: SolveCall, config: SolveConfig, device: Any) -> PreparedSolve:
    """A launch for the factor, and one for each substitution. Their blocks wait for one another by counters."""
    steps: list[_Launch] = []
    factor, where, size, counters = call.a, A, 0, 0
    batch, n, _ = call.a.shape
    if not call.is_factored:
        if call.factor is None:
            own = contiguous(call.a.dtype, call.a.shape)
            factor, where = own.transposed() if call.a.is_transposed else own, WORKSPACE
            size = math.prod(own.shape) * DTYPE_BYTES[own.dtype]
        else:
            factor, where = call.factor, FACTOR
        steps.append(_factorization(call, factor, where, config, counters, device))
        counters += 1 + batch * -(-n // config.rows)
    if call.x is not None:
        for forward in (True, False) if call.forward else (False,):
            steps.append(_substitution(call, factor, where, config, forward, counters, device))
            counters += 1 + batch * -(-call.x.shape[2] // config.columns)
    return PreparedSolve(tuple(steps), device, size, counters)


def _is_dense(view: View) -> bool:
    """True if the elements of all matrices follow one another in memory, row by row or column by column."""
    dense = contiguous(view.dtype, view.stored.shape)
    places = zip(dense.shape, view.stored.strides, dense.strides)
    return all(size == 1 or stride == wanted for size, stride, wanted in places)


def _in_threads(call: SolveCall, columns: int, threads: int, dense: bool, device: Any) -> _Launch:
    batch, n, _ = call.a.shape
    key = ThreadKernel(
        call.a.dtype,
        n,
        columns,
        threads,
        dense,
        in_registers=fits_registers(n, DTYPE_BYTES[call.a.dtype]),
        factors=not call.is_factored,
        stores=call.factor is not None,
        forward=call.forward,
        has_info=call.has_info,
    )
    places = ((call.a, A), (call.factor, FACTOR), (call.x, X) if call.b is None else (call.b, B), (call.x, X))
    arrays = [None if view is None else layout(view) for view, _ in places] + [_info(call)]
    where = [None if view is None else (at, 0) for view, at in places] + [(INFO, 0) if call.has_info else None]
    dim = -(-batch // threads) * threads if device.is_cuda else batch
    return _Launch(packed(thread_kernel(key), [batch], arrays, [dim], device, block_dim=threads), tuple(where))


def _info(call: SolveCall) -> Layout | None:
    return (int, (call.a.shape[0],), (4,)) if call.has_info else None


def _factorization(call: SolveCall, factor: View, where: int, config: SolveConfig, first: int, device: Any) -> _Launch:
    """A block for each tile. Its counters begin with the number ``first``."""
    batch, n, _ = factor.shape
    rows, upper = config.rows, factor.is_transposed
    blocks = -(-n // rows)
    key = SolveKernel(factor.dtype, rows, 0, config.step, config.threads, upper, n % rows > 0, call.has_info)
    source, result = (view.transposed() if upper else view for view in (call.a, factor))
    arrays = [layout(source), layout(result), _counters(1 + batch * blocks), _info(call)]
    launch = _tiled(factor_kernel(key), [n, blocks, batch], arrays, [batch * blocks * blocks], (device, config))
    return _Launch(launch, ((A, 0), (where, 0), (COUNTERS, 4 * first), (INFO, 0) if call.has_info else None))


def _substitution(
    call: SolveCall, factor: View, where: int, config: SolveConfig, forward: bool, first: int, device: Any
) -> _Launch:
    """A block for each tile of X. Its counters begin with the number ``first``."""
    assert call.x is not None
    batch, n, columns = call.x.shape
    rows, upper = config.rows, factor.is_transposed
    blocks, strips = -(-n // rows), -(-columns // config.columns)
    step = config.step if config.columns >= rows else rows  # few columns gain nothing from more iterations
    key = SolveKernel(factor.dtype, rows, config.columns, step, config.threads, upper, n % rows > 0)
    source, at = (call.x, X) if call.b is None or (call.forward and not forward) else (call.b, B)
    arrays = [layout(factor.stored), layout(source), layout(call.x), _counters(1 + batch * strips)]
    scalars, dim = (n, blocks, batch, strips), (batch * blocks * strips,)
    launch = _tiled(substitution_kernel(key, forward), scalars, arrays, dim, (device, config))
    return _Launch(launch, ((where, 0), (at, 0), (X, 0), (COUNTERS, 4 * first)))


def _counters(count: int) -> Layout:
    return (int, (count,), (4,))
