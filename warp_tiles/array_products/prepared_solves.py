"""Prepared factorizations and solves: the choice of threads, blocks or tiles, packed launches, and their workspace."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warp_tiles._warp.intercept import is_planning, note_product
from warp_tiles.array_products.call import View, contiguous
from warp_tiles.array_products.matmul_problem import Gpu
from warp_tiles.array_products.prepared import Layout, gpu_of, is_deterministic, kept, layout, packed
from warp_tiles.array_products.solve_choice import Form, SolveBucket, SolveConfig, SolvePlan, SolveProblem, choose_solve
from warp_tiles.array_products.solve_kernels import (
    SolveKernel,
    ThreadKernel,
    block_kernel,
    factor_kernel,
    fits_registers,
    substitution_kernel,
    thread_kernel,
)
from warp_tiles.array_products.workspace import temporary
from warp_tiles.gemm.problem import DTYPE_BYTES

A, FACTOR, B, X, INFO, WORKSPACE, COUNTERS = range(7)  # the memory of a call


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

    @property
    def problem(self) -> SolveProblem:
        batch, n, _ = self.a.shape
        views = (self.a, self.factor, self.b, self.x)
        is_dense = all(view is None or _is_dense(view) for view in views)
        function: Any = "factor" if self.x is None else "substitute" if self.is_factored else "solve"
        return SolveProblem(function, self.a.dtype, n, batch, 0 if self.x is None else self.x.shape[2], is_dense)


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

    plan: SolvePlan
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
    prepared = kept((call, device.alias), lambda: prepare_solve(call, device))
    if is_planning():
        note_product(prepared.plan)
    return prepared


@functools.cache
def forms_for(gpu: Gpu) -> Mapping[SolveBucket, Form]:
    """The measured forms that the package ships for a GPU and that are faster than the choice without them."""
    from warp_tiles.tuning.record import shipped_records

    records = shipped_records("solve", gpu.name, (gpu.arch, gpu.multiprocessors))
    forms: dict[SolveBucket, Form] = {}
    for record in records:
        winner, bucket = record.winner(), record.key.values
        if winner is not None and winner is not record.default:
            forms[bucket] = winner.config["form"]  # type: ignore[index]  # texts and numbers
    return forms


def prepare_solve(call: SolveCall, device: Any, form: Form | None = None) -> PreparedSolve:
    """Chooses a form unless a search forces one, builds and loads the kernels, and packs their launches."""
    gpu = gpu_of(device)
    records = {} if gpu is None or form or is_deterministic() else forms_for(gpu)
    plan = choose_solve(call.problem, gpu, records, forced=form)
    if plan.config.form == "tiles":
        return _in_tiles(call, plan, device)
    launch = (_in_threads if plan.config.form == "thread" else _in_block)(call, plan.config, device)
    return PreparedSolve(plan, (launch,), device)


def _tiled(kernel: Any, scalars: Sequence[int], arrays: Sequence[Layout | None], dim: Sequence[int], at: Any) -> Any:
    device, config = at
    return packed(kernel, scalars, arrays, dim, device, block_dim=config.threads, tiled=True)


def _slots(call: SolveCall) -> tuple[tuple[View | None, int], ...]:
    """What a kernel of whole matrices reads and writes, with its positions in the memory of a call."""
    source = (call.x, X) if call.b is None else (call.b, B)
    return (call.a, A), (call.factor, FACTOR), source, (call.x, X)


def _places(slots: Sequence[tuple[View | None, int]], call: SolveCall) -> tuple[tuple[int, int] | None, ...]:
    return *(None if view is None else (at, 0) for view, at in slots), (INFO, 0) if call.has_info else None


def _in_block(call: SolveCall, config: SolveConfig, device: Any) -> _Launch:
    """One block for each matrix. It reads rows of memory, which hold A or its transpose."""
    batch, n, _ = call.a.shape
    upper = call.a.is_transposed
    key = SolveKernel(
        call.a.dtype, config.rows, config.columns, 0, config.threads, upper, config.rows > n, call.has_info
    )
    solves = call.x is not None
    kernel = block_kernel(key, not call.is_factored, call.factor is not None, solves and call.forward, solves)
    stored = [(view and upper and at in (A, FACTOR) and view.transposed()) or view for view, at in _slots(call)]
    arrays = [None if view is None else layout(view) for view in stored] + [_info(call)]
    return _Launch(_tiled(kernel, [n], arrays, [batch], (device, config)), _places(_slots(call), call))


def _in_tiles(call: SolveCall, plan: SolvePlan, device: Any) -> PreparedSolve:
    """A launch for the factor, and one for each substitution. Their blocks wait for one another by counters."""
    config = plan.config
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
    return PreparedSolve(plan, tuple(steps), device, size, counters)


def _is_dense(view: View) -> bool:
    """True if the elements of all matrices follow one another in memory, row by row or column by column."""
    dense = contiguous(view.dtype, view.stored.shape)
    slots = zip(dense.shape, view.stored.strides, dense.strides)
    return all(size == 1 or stride == wanted for size, stride, wanted in slots)


def _in_threads(call: SolveCall, config: SolveConfig, device: Any) -> _Launch:
    (batch, n, _), threads = call.a.shape, config.threads
    key = ThreadKernel(
        call.a.dtype,
        n,
        config.columns,
        threads,
        call.problem.is_dense,
        in_registers=fits_registers(n, DTYPE_BYTES[call.a.dtype]),
        factors=not call.is_factored,
        stores=call.factor is not None,
        forward=call.forward,
        has_info=call.has_info,
    )
    arrays = [None if view is None else layout(view) for view, _ in _slots(call)] + [_info(call)]
    dim = -(-batch // threads) * threads if device.is_cuda else batch
    launch = packed(thread_kernel(key), [batch], arrays, [dim], device, block_dim=threads)
    return _Launch(launch, _places(_slots(call), call))


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
