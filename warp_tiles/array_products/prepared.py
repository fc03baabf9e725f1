"""Prepared products: the plan on a device, packed launches of its kernels, and their workspace."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import warp as wp

from warp_tiles._warp import is_enabled
from warp_tiles._warp.intercept import is_planning, note_product
from warp_tiles._warp.launch import pack_launch
from warp_tiles.array_products.call import MatmulCall, View, canonicalize, contiguous, operand_alignment
from warp_tiles.array_products.elementwise import (
    TRANSPOSED_LENGTH,
    TRANSPOSED_LINES,
    padding_kernel,
    transposing_kernel,
)
from warp_tiles.array_products.kernels import (
    Epilogue,
    TileKernel,
    always_loops,
    raster_arguments,
    reduce_kernel,
    tile_kernel,
    types,
)
from warp_tiles.array_products.matmul_problem import (
    ALIGNED,
    CPU_TILE,
    Candidate,
    Gpu,
    MatmulConfig,
    MatmulPlan,
    MatmulProblem,
    MeasuredConfigs,
    ShapeBucket,
)
from warp_tiles.array_products.tensor_kernel import ROW_BYTES
from warp_tiles.array_products.tensor_matmul import TensorMatmul, warn_of_loop
from warp_tiles.array_products.workspace import workspace
from warp_tiles.errors import MatmulError, WarpTilesError, unless_signalled
from warp_tiles.gemm.hardware import LANES
from warp_tiles.gemm.pipeline import PipelineOverrides
from warp_tiles.gemm.problem import DTYPE_BYTES
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.settings import DEFAULT, current

if TYPE_CHECKING:
    from warp_tiles.tuning.record import Record

# of plans on a machine without a GPU, with another name if the setting target_gpu has one
PLANNED_GPU = Gpu(90, 132, "NVIDIA H200")
_REFERENCE = "NVIDIA H100 80GB HBM3"  # other GPUs with its architecture and multiprocessors use its records
BUCKET = ("a", "b", "out", "layout", "log2_m", "log2_n", "log2_k", "log2_batch")  # of a record's key


def plan_of(problem: MatmulProblem, device: Any, config: MatmulConfig | None = None) -> MatmulPlan:
    """How a product is computed on a device; ``config`` is one that a search forces."""
    if (gpu := gpu_of(device)) is None:
        chosen = config or CPU_TILE
        return MatmulPlan(problem, Candidate(chosen), chosen, "search" if config else "heuristic")
    from warp_tiles.array_products.matmul_choice import choose_matmul

    records = {} if config or is_deterministic() else records_for(gpu)
    no_function = None if current().bundle is None else Rejected("function_in_bundle")
    return choose_matmul(problem, gpu, records, pipeline=_pipeline(), forced=config, no_function=no_function)


def gpu_of(device: Any) -> Gpu | None:
    """The GPU that a call on a device is planned for; None for the CPU."""
    if device.is_cuda:
        return Gpu(device.arch, device.sm_count, str(device.name))
    return replace(PLANNED_GPU, name=current().target_gpu or PLANNED_GPU.name) if is_planning() else None


def is_deterministic() -> bool:
    """True if products have to add in the same order in each run: records do not count then."""
    return bool(getattr(wp.config, "deterministic", False))  # Warp 1.19 has it


def _pipeline() -> PipelineOverrides | Rejected | None:
    """What the settings fix of a loop's pipeline, or the reason why it has no stages; None if the launch may fix it."""
    if not (is_enabled() or is_planning()):
        return Rejected("not_enabled")
    now = current()
    for name in ("register_accumulators", "async_copies"):
        if not getattr(now, name):
            return now.against(name)
    return None if now.layer("main_loop") == DEFAULT else PipelineOverrides.parse(now.main_loop)


@functools.cache
def records_for(gpu: Gpu) -> Mapping[ShapeBucket, MeasuredConfigs]:
    """The configurations that the package ships for a GPU, by its name."""
    from warp_tiles.tuning.record import shipped_records

    kind = gpu.arch, gpu.multiprocessors
    return winners(shipped_records("matmul", gpu.name, kind) or shipped_records("matmul", _REFERENCE, kind))


def winners(records: Iterable[Record]) -> dict[ShapeBucket, MeasuredConfigs]:
    """The measured configurations that are faster than the choice without them, by shape bucket.

    A record compares loops with the kernel with tensor copies if it has a timing of the kernel.
    """
    measured: dict[ShapeBucket, MeasuredConfigs] = {}
    for record in records:
        winner, values = record.winner(), dict(record.key.values)
        if winner is not None and winner is not record.default:
            bucket: Any = tuple(values[name] for name in BUCKET)
            config = MatmulConfig(**winner.config)  # texts and numbers
            compared = any(timing.config.get("tensor_copies") for timing in record.timings)
            known = measured.get(bucket, MeasuredConfigs())
            measured[bucket] = replace(known, best=config) if compared else replace(known, loop=config)
    return measured


THREADS = 256  # of kernels without tiles
MOST_BLOCKS = 2**31 - 1  # of a launch, whose dimensions are 32-bit integers
_PART_BYTES = 256  # of a workspace; its parts begin at multiples of it
_MOST_PREPARED = 2048
_MOST_WORD = 8  # bytes of a load of lines that are not aligned

Layout = tuple[Any, tuple[int, ...], tuple[int, ...]]  # dtype, shape and strides of an array


@dataclass(frozen=True)
class PaddedCopy:
    """A copy of an operand, whose lines are aligned."""

    view: View
    size_bytes: int
    launch: Any


@dataclass(frozen=True)
class PreparedMatmul:
    """A product on a device that is repeated with other memory. Thread-safe. It keeps no array alive.

    Attributes:
        is_swapped: True if A and B are exchanged, so that C is the transpose of the caller's.
        copies: Copies of operands, each with 0 for A or 1 for B and its offset in the workspace.
        workspace_bytes: Size of the workspace: the sums of slices, and then the copies.
    """

    plan: MatmulPlan
    device: Any
    is_swapped: bool
    launch: Any
    reduction: Any
    copies: tuple[tuple[int, int, PaddedCopy], ...]
    counters: int
    workspace_bytes: int

    def is_current(self) -> bool:
        if not self.workspace_bytes:
            return bool(self.launch.is_current())
        launches = (self.launch, self.reduction, *(copy.launch for *_, copy in self.copies))
        return all(launch is None or launch.is_current() for launch in launches)

    def run(
        self, a: int, b: int, out: int, bias: int | None, alpha: float, beta: float, factor: int | None = None
    ) -> None:
        """Launches the product on the device's current stream.

        Args:
            a, b, out, bias: Addresses of the arrays.
            factor: Address of the factor that a kernel computed, if the call has one.
        """
        if self.is_swapped:
            a, b = b, a
        if not self.workspace_bytes:
            self.launch.run_at((a, b, out, bias, factor), alpha, beta)
            return
        with workspace(self.workspace_bytes, self.counters, self.device) as memory:
            operands = [a, b]
            for number, offset, copy in self.copies:
                copy.launch.run_at((operands[number], memory.start + offset))
                operands[number] = memory.start + offset
            if self.reduction is None:
                slices = (memory.start, memory.arrived) if self.counters else ()
                self.launch.run_at((*operands, out, bias, factor, *slices), alpha, beta)
            else:
                self.launch.run_at((*operands, memory.start), 1.0, 0.0)
                self.reduction.run_at((memory.start, out, bias, factor), alpha, beta)


PreparedProduct = PreparedMatmul | TensorMatmul


def prepare(call: MatmulCall, device: Any, config: MatmulConfig | None = None) -> PreparedProduct:
    """Chooses a configuration unless a search forces one, builds and loads the kernels, and packs their launches.

    Raises:
        MatmulError: A launch cannot have a block for each tile.
        Exception: Any error of ``wp.launch`` when a module does not build.
    """
    call, is_swapped, plan = planned(call, device, config)

    def loop() -> PreparedMatmul:
        return _prepare_loop(call, is_swapped, plan, device)

    if plan.chosen.kernel and not is_planning():
        try:
            return TensorMatmul(call, plan, device, is_swapped, loop, kernel_copies(call, plan, device))
        except WarpTilesError as error:
            warn_of_loop(plan, error)
    return loop()


def _prepare_loop(call: MatmulCall, is_swapped: bool, plan: MatmulPlan, device: Any) -> PreparedMatmul:
    """The product by Warp kernels. See :func:`prepare`."""
    chosen = plan.config
    (batch, _, k), (_, m, n) = call.a.shape, call.out.shape
    rows, columns = -(-m // chosen.tile_m), -(-n // chosen.tile_n)
    blocks = batch * rows * columns * chosen.split_k
    if blocks > MOST_BLOCKS:
        raise MatmulError(
            f"the product needs {blocks} blocks, for {chosen.split_k} slices of tiles of {chosen.tile_m} x "
            f"{chosen.tile_n} of a result of {call.out.shape}, and a launch has at most {MOST_BLOCKS}",
            remedy="multiply parts of it",
        )
    key = kernel_of(call, plan)
    out, sums, counters, reduction = call.out, (0, 1, 1), 0, None
    stride = 0 if call.bias is None else call.bias.stride
    if call.summed:  # a matrix of sums for each slice of each product
        sums = (batch * chosen.split_k, m, n)
        out = contiguous(call.accumulator, sums)
        reduction = reduction_of(epilogue_of(call), out, call.out, stride, device)
    elif chosen.split_k > 1:
        counters = batch * rows * columns
        sums = (counters * chosen.split_k, chosen.tile_m, chosen.tile_n)
    size = _aligned(math.prod(sums) * DTYPE_BYTES[call.accumulator])
    operands, copies = [], []
    for number, (name, view, is_copied) in enumerate((("a", call.a, chosen.copies_a), ("b", call.b, chosen.copies_b))):
        is_split = call.split_operand == name
        if is_copied and 0 not in view.shape:
            copy = padded_copy(view, 1 + is_split, device)
            copies.append((number, size, copy))
            view, size = copy.view, size + _aligned(copy.size_bytes)
        operands.append(_operand(view, is_split))
    slices = arrived = None
    if key.is_split:
        slices, arrived = layout(contiguous(call.accumulator, sums)), (int, (counters,), (4,))
    steps = -(-k // chosen.tile_k)
    slice_depth = -(-steps // chosen.split_k) * chosen.tile_k
    launch = packed(
        tile_kernel(key),
        [slice_depth, *raster_arguments(rows, columns, chosen.group, chosen.split_k), 1.0, 0.0],
        [*operands, layout(out), *_vectors(key.stored, n, stride), slices, arrived],
        [blocks],
        device,
        block_dim=chosen.threads,
        tiled=True,
    )
    return PreparedMatmul(plan, device, is_swapped, launch, reduction, tuple(copies), counters, size)


def planned(call: MatmulCall, device: Any, config: MatmulConfig | None = None) -> tuple[MatmulCall, bool, MatmulPlan]:
    """The canonical call, whether A and B were exchanged, and how it is computed. See :func:`prepare`."""
    call, is_swapped = canonicalize(call)
    problem = replace(call.problem, always_loops=True) if always_loops() else call.problem
    return call, is_swapped, plan_of(problem, device, config)


def prepared(call: MatmulCall, device: Any) -> PreparedProduct:
    """The product on a device. It is prepared once, and again after its module was modified. See :func:`prepare`."""
    product = kept((call, device.alias), lambda: _with_epilogue(call, device))
    if is_planning():
        note_product(product.plan)
    return product


def is_prepared(call: MatmulCall, device: Any) -> bool:
    """True if the product is prepared, so that a graph can capture it."""
    return ((call, device.alias), is_deterministic()) in _prepared


def _with_epilogue(call: MatmulCall, device: Any) -> PreparedProduct:
    try:
        return prepare(call, device)
    except WarpTilesError:
        raise
    except unless_signalled(Exception) as error:
        if call.epilogue is None:
            raise
        prepare(replace(call, epilogue=None), device)  # raises the error if the epilogue is not its cause
        raise MatmulError(
            f"the kernel with epilogue {call.epilogue.key} cannot be built",
            remedy=f"write it as a function of one {call.accumulator} that returns one {call.accumulator}",
            log=str(error),
        ) from error


Made = TypeVar("Made", bound=Any)
_prepared: dict[Any, Any] = {}


def kept(key: Any, make: Callable[[], Made]) -> Made:
    """What was made for a key, if its modules and Warp's deterministic mode are unmodified."""
    if is_planning():  # what is made for a plan launches nothing
        return make()
    key = key, is_deterministic()
    made: Made | None = _prepared.get(key)
    if made is None or not made.is_current():
        made = make()
        remember(_prepared, key, made, _MOST_PREPARED)
    return made


def remember(known: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Keeps a value. A full dictionary is emptied first."""
    if len(known) >= most and key not in known:
        known.clear()
    known[key] = value


def epilogue_of(call: MatmulCall) -> Epilogue:
    bias = None if call.bias is None else call.bias.dtype
    return Epilogue(call.out.dtype, bias, call.has_beta, call.epilogue, call.accumulator, call.has_factor)


def kernel_of(call: MatmulCall, plan: MatmulPlan) -> TileKernel:
    return TileKernel(
        call.a.dtype,
        call.b.dtype,
        plan.config.tile,
        call.a.is_transposed,
        call.b.is_transposed,
        tf32=call.tf32,
        epilogue=None if call.summed else epilogue_of(call),
        scaled=call.scaled and not call.summed,
        slices=plan.config.split_k,
        split_operand=call.split_operand,
        main_loop=plan.main_loop,
    )


# ---- packed launches


def layout(view: View) -> Layout:
    (dtype,) = types(view.dtype)
    return dtype, view.shape, view.strides


def _operand(view: View, is_split: bool) -> Layout:
    dtype, (batch, lines, length), (far, between, step) = layout(view.stored)
    if lines == 1:  # no two lines have this distance, and loads look at its alignment
        between = ALIGNED
    return dtype, (batch * (1 + is_split), lines, length), (far, between, step)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _PART_BYTES) * _PART_BYTES


def packed(
    kernel: Any,
    scalars: Sequence[float],
    arrays: Sequence[Layout | None],
    dim: Sequence[int],
    device: Any,
    block_dim: int = THREADS,
    **options: Any,
) -> Any:
    """Packs a launch whose arrays have no memory yet, and whose last scalars may change (``PackedLaunch.run_at``)."""
    blank = [
        array and wp.array(ptr=None, dtype=array[0], shape=array[1], strides=array[2], device=device)
        for array in arrays
    ]
    return pack_launch(kernel, [*scalars, *blank], dim=dim, block_dim=block_dim, device=device, **options)


def _vectors(epilogue: Epilogue, columns: int, bias_stride: int) -> list[Layout | None]:
    return [
        None if epilogue.bias is None else (*types(epilogue.bias), (columns,), (bias_stride,)),
        (*types(epilogue.sums), (1,), (DTYPE_BYTES[epilogue.sums],)) if epilogue.has_factor else None,
    ]


def padded_copy(view: View, parts: int, device: Any, alignment: int = ALIGNED) -> PaddedCopy:
    padded, (_, lines, length) = view.padded(alignment), view.stored.shape
    word = operand_alignment(view, parts > 1) or DTYPE_BYTES[view.dtype]
    kernel = padding_kernel(view.dtype, min(word, _MOST_WORD))
    return _copy(view, padded, kernel, (lines, -(-length * DTYPE_BYTES[view.dtype] // ALIGNED)), parts, device)


def _copy(view: View, result: View, kernel: Any, dim: tuple[int, int], parts: int, device: Any) -> PaddedCopy:
    """A copy of an operand by a kernel that is launched for ``dim`` of each stored matrix."""
    source, stored = view.stored, result.stored
    count = parts * source.shape[0] if source.strides[0] else 1
    arrays = [layout(replace(item, shape=(count, *item.shape[1:]))) for item in (source, stored)]
    launch = packed(kernel, [], arrays, (count, *dim), device)
    return PaddedCopy(result, count * stored.shape[1] * stored.strides[1], launch)


def kernel_copies(call: MatmulCall, plan: MatmulPlan, device: Any) -> list[tuple[int, PaddedCopy]]:
    """The copies that the kernel with tensor copies needs, each with 0 for A or 1 for B."""
    kernel, config = plan.chosen.kernel, plan.chosen.config
    assert kernel is not None
    operands = (
        (call.a, config.copies_a, call.a.is_transposed != kernel.a_along_m),
        (call.b, config.copies_b, call.b.is_transposed == kernel.b_along_n),
    )
    return [
        (number, transposed_copy(view, device) if is_other else padded_copy(view, 1, device, ROW_BYTES))
        for number, (view, is_copied, is_other) in enumerate(operands)
        if is_copied
    ]


def transposed_copy(view: View, device: Any) -> PaddedCopy:
    """A copy of a float32 operand. The lines of its view are the columns of the stored one, at lines of the caches."""
    source = view.stored
    batch, lines, length = source.shape
    between = -(-lines * DTYPE_BYTES[view.dtype] // ROW_BYTES) * ROW_BYTES
    strides = length * between if source.strides[0] else 0, between, DTYPE_BYTES[view.dtype]
    result = View(view.dtype, (batch, length, lines), strides)
    dim = -(-lines // TRANSPOSED_LINES), -(-length // TRANSPOSED_LENGTH) * LANES
    return _copy(view, result, transposing_kernel(), dim, 1, device)


def reduction_of(epilogue: Epilogue, sums: View, out: View, bias_stride: int, device: Any) -> Any:
    """The launch that adds slices in order, with an epilogue. Its arrays are the slices, the result, bias and factor.

    ``sums`` are the slices: (batch * slices, m, n). The stride of the bias is in bytes.
    """
    arrays = [layout(sums), layout(out), *_vectors(epilogue, out.shape[2], bias_stride)]
    return packed(reduce_kernel(epilogue), [sums.shape[0] // out.shape[0], 1.0, 0.0], arrays, out.shape, device)


def add_rows(sums: View, target: View, pointers: tuple[int, int], device: Any) -> None:
    epilogue = Epilogue(target.dtype, has_beta=True, sums=sums.dtype)
    reduction = kept((sums, target, device.alias), lambda: reduction_of(epilogue, sums, target, 0, device))
    reduction.run_at((*pointers, None, None), 1.0, 1.0)


def elementwise(kernel: Any, views: Sequence[View], dim: Sequence[int], device: Any, *scalars: int) -> Any:
    """The launch of a kernel over views, whose last scalar is a factor. It is packed once, and again if modified."""
    key = (kernel, tuple(views), tuple(dim), scalars, device.alias)
    return kept(key, lambda: packed(kernel, [*scalars, 1.0], [layout(view) for view in views], dim, device))


def apply(kernel: Any, *arrays: tuple[View, Any], factor: float = 1.0) -> None:
    """Launches a kernel with a thread for each element of arrays of one shape, given with their views."""
    launch = elementwise(kernel, [view for view, _ in arrays], arrays[0][0].shape, arrays[0][1].device)
    launch.run_at(tuple(array.ptr for _, array in arrays), factor)
