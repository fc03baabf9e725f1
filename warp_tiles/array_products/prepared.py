"""Prepared products: what was chosen, their packed launches and their workspace."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warp_tiles.array_products.call import MatmulCall, View, canonicalize, contiguous
from warp_tiles.array_products.elementwise import padding_kernel
from warp_tiles.array_products.kernels import (
    Epilogue,
    TileKernel,
    always_loops,
    raster_arguments,
    reduce_kernel,
    tile_kernel,
    types,
)
from warp_tiles.array_products.workspace import workspace
from warp_tiles.errors import MatmulError, WarpTilesError
from warp_tiles.gemm.dtypes import DTYPE_BYTES, DType
from warp_tiles.gemm.pipeline import AUTO
from warp_tiles.heuristics.matmul import (
    ALIGNED,
    MatmulChoice,
    MatmulConfig,
    Operand,
    ShapeBucket,
    choose_matmul,
    completed,
)
from warp_tiles.plan.products import PlannedProduct, note
from warp_tiles.settings import DEFAULT, current

THREADS = 256  # of kernels without tiles
MOST_BLOCKS = 2**31 - 1  # of a launch, whose dimensions are 32-bit integers
_PART_BYTES = 256  # of a workspace; its parts begin at multiples of it
_MOST_PREPARED = 2048
# the GPU of plans on a machine without one: its compute capability and multiprocessors, and its name if the setting
# target_gpu is empty
PLANNED_GPU = (90, 132)
PLANNED_NAME = "NVIDIA H200"

RECORDS = Path(__file__).resolve().parent / "records"
# by compute capability, multiprocessors and name; an empty name stands for all other GPUs
_FILES = {(90, 132, ""): "sm_90_132.json", (90, 132, "NVIDIA H200"): "h200.json"}

Layout = tuple[Any, tuple[int, ...], tuple[int, ...]]  # dtype, shape and strides of an array


@dataclass(frozen=True)
class PaddedCopy:
    """A copy of an operand, whose lines are aligned.

    Attributes:
        view: The copy.
        size_bytes: Its size.
        launch: Its launch.
    """

    view: View
    size_bytes: int
    launch: Any


@dataclass(frozen=True)
class PreparedMatmul:
    """A product on a device that is repeated with other memory. Thread-safe. It keeps no array alive.

    Attributes:
        planned: The product, its configuration and where that comes from.
        device: Warp's device.
        is_swapped: True if A and B are exchanged, so that C is the transpose of the caller's.
        launch: The launch of the kernel with the loop.
        reduction: The launch that adds the slices of a summed batch, or None.
        copies: The copies of A and B, or None.
        counters: The number of tiles whose slices several blocks compute.
        workspace_bytes: Size of the workspace: the sums of slices, and then the copies.
    """

    planned: PlannedProduct
    device: Any
    is_swapped: bool
    launch: Any
    reduction: Any
    copies: tuple[PaddedCopy | None, PaddedCopy | None]
    copy_offsets: tuple[int, ...]
    counters: int
    workspace_bytes: int

    @property
    def config(self) -> MatmulConfig:
        """The configuration."""
        return self.planned.choice.config

    def is_current(self) -> bool:
        """True if the modules of its kernels are unmodified."""
        if not self.workspace_bytes:
            return bool(self.launch.is_current())
        launches = (self.launch, self.reduction, *(copy and copy.launch for copy in self.copies))
        return all(launch is None or launch.is_current() for launch in launches)

    def run(
        self, a: int, b: int, out: int, bias: int | None, alpha: float, beta: float, factor: int | None = None
    ) -> None:
        """Launches the product on the device's current stream.

        Args:
            a, b, out, bias: Addresses of the arrays.
            alpha, beta: The factors.
            factor: Address of the factor that a kernel computed, if the call has one.
        """
        if self.is_swapped:
            a, b = b, a
        if not self.workspace_bytes:
            self.launch.run_at((a, b, out, bias, factor), alpha, beta)
            return
        with workspace(self.workspace_bytes, self.counters, self.device) as memory:
            operands = [a, b]
            for number, (copy, offset) in enumerate(zip(self.copies, self.copy_offsets)):
                if copy is not None:
                    copy.launch.run_at((operands[number], memory.start + offset))
                    operands[number] = memory.start + offset
            if self.reduction is None:
                slices = (memory.start, memory.arrived) if self.counters else ()
                self.launch.run_at((*operands, out, bias, factor, *slices), alpha, beta)
            else:
                self.launch.run_at((*operands, memory.start), 1.0, 0.0)
                self.reduction.run_at((memory.start, out, bias, factor), alpha, beta)


def prepare(call: MatmulCall, device: Any, config: MatmulConfig | None = None) -> PreparedMatmul:
    """Chooses the configuration of a product, builds and loads its kernels, and packs their launches.

    Args:
        call: The product.
        device: Warp's device.
        config: Its configuration; None chooses one.

    Raises:
        MatmulError: A launch cannot have a block for each tile.
        Exception: Any error of ``wp.launch`` when a module does not build.
    """
    call, is_swapped = canonicalize(call)
    planned = planned_product(call, device, config)
    config = planned.choice.config
    chosen: tuple[tuple[Operand, bool, View], ...]
    chosen = (("a", config.copies_a, call.a), ("b", config.copies_b, call.b))
    copies = tuple(
        padded_copy(view, 1 + (call.split_operand == name), device) if is_copied and 0 not in view.shape else None
        for name, is_copied, view in chosen
    )
    a, b = (copy.view if copy else view for copy, view in zip(copies, (call.a, call.b)))
    call = replace(call, a=a, b=b)
    (batch, _, k), (_, m, n) = call.a.shape, call.out.shape
    rows, columns = -(-m // config.tile_m), -(-n // config.tile_n)
    blocks = batch * rows * columns * config.split_k
    if blocks > MOST_BLOCKS:
        raise MatmulError(
            f"the product needs {blocks} blocks, for {config.split_k} slices of tiles of {config.tile_m} x "
            f"{config.tile_n} of a result of {call.out.shape}, and a launch has at most {MOST_BLOCKS}",
            remedy="multiply parts of it",
        )
    key = kernel_of(call, planned.choice)
    out, sums, counters, reduction = call.out, (0, 1, 1), 0, None
    if call.summed:  # a matrix of sums for each slice of each product
        sums = (batch * config.split_k, m, n)
        out = contiguous(call.accumulator, sums)
        stride = 0 if call.bias is None else call.bias.stride
        reduction = reduction_of(epilogue_of(call), out, call.out, stride, sums[0], device)
    elif config.split_k > 1:
        counters = batch * rows * columns
        sums = (counters * config.split_k, config.tile_m, config.tile_n)
    bias = factor = slices = arrived = None
    if key.stored.bias is not None and call.bias is not None:
        bias = (*types(call.bias.dtype), (n,), (call.bias.stride,))
    if key.stored.has_factor:
        factor = _single(call.accumulator)
    if key.is_split:
        slices, arrived = layout(contiguous(call.accumulator, sums)), (int, (counters,), (4,))
    steps = -(-k // config.tile_k)
    slice_depth = -(-steps // config.split_k) * config.tile_k
    operands = [_operand(view, call.split_operand == name) for name, view in (("a", a), ("b", b))]
    launch = _packed(
        tile_kernel(key),
        [slice_depth, *raster_arguments(rows, columns, config.group, config.split_k), 1.0, 0.0],
        [*operands, layout(out), bias, factor, slices, arrived],
        [blocks],
        device,
        block_dim=config.threads,
        tiled=True,
        max_blocks=planned.choice.max_blocks,
    )
    size, offsets = _aligned(math.prod(sums) * DTYPE_BYTES[call.accumulator]), []
    for copy in copies:
        offsets.append(size)
        size += _aligned(copy.size_bytes if copy else 0)
    return PreparedMatmul(
        planned, device, is_swapped, launch, reduction, (copies[0], copies[1]), tuple(offsets), counters, size
    )


def prepared(call: MatmulCall, device: Any) -> PreparedMatmul:
    """The product on a device. It is prepared once, and again after its module was modified.

    Raises:
        MatmulError: See :func:`prepare`, and: its kernels cannot be built with its epilogue.
        Exception: Any error of ``wp.launch`` when a module does not build.
    """
    from warp_tiles._warp.intercept import is_planning

    found: PreparedMatmul = _kept((call, device.alias, _gpu_name(device)), lambda: _with_epilogue(call, device))
    if is_planning():
        note(found.planned)
    return found


def _with_epilogue(call: MatmulCall, device: Any) -> PreparedMatmul:
    try:
        return prepare(call, device)
    except WarpTilesError:
        raise
    except Exception as error:
        if call.epilogue is None:
            raise
        prepare(replace(call, epilogue=None), device)  # raises the error if the epilogue is not its cause
        raise MatmulError(
            f"the kernel with epilogue {call.epilogue.key} cannot be built",
            remedy=f"write it as a function of one {call.accumulator} that returns one {call.accumulator}",
            log=str(error),
        ) from error


_prepared: dict[Any, Any] = {}


def _kept(key: Any, make: Callable[[], Any]) -> Any:
    """What was prepared for a key, if it is current; else it is made."""
    found = _prepared.get(key)
    if found is None or not found.is_current():
        found = make()
        if len(_prepared) >= _MOST_PREPARED:
            _prepared.clear()
        _prepared[key] = found
    return found


# ---- the choice


def planned_product(call: MatmulCall, device: Any, config: MatmulConfig | None = None) -> PlannedProduct:
    """How a canonical call is computed on a device, and where that comes from.

    A product fixes nothing of its loop's pipeline if the user has set ``main_loop``.
    """
    arch, multiprocessors = _gpu(device)
    name = _gpu_name(device)
    problem = call.problem(always_loops=always_loops())
    if config is None:
        choice = choose_matmul(problem, arch, multiprocessors, records_for(arch, multiprocessors, name))
    else:
        choice = completed(problem, config, arch, multiprocessors)
    if choice.main_loop != AUTO and not _may_fix_main_loop():
        choice = replace(choice, main_loop=AUTO)
    return PlannedProduct(problem, choice, name)


def _may_fix_main_loop() -> bool:
    from warp_tiles._warp import is_enabled
    from warp_tiles._warp.intercept import is_planning

    return (is_enabled() or is_planning()) and current().layer("main_loop") == DEFAULT


def _gpu(device: Any) -> tuple[int | None, int]:
    """Compute capability and multiprocessors of a device; None and 1 for the CPU."""
    from warp_tiles._warp.intercept import is_planning

    if device.is_cuda:
        return device.arch, device.sm_count
    return PLANNED_GPU if is_planning() else (None, 1)


def _gpu_name(device: Any) -> str:
    """The name of a device's GPU, or of the one for which a plan without a GPU is made; empty for the CPU."""
    from warp_tiles._warp.intercept import is_planning

    if device.is_cuda:
        return str(device.name)
    return (current().target_gpu or PLANNED_NAME) if is_planning() else ""


@functools.cache
def records_for(arch: int | None, multiprocessors: int, name: str) -> Mapping[ShapeBucket, MatmulConfig]:
    """The configurations that the package ships for a GPU. There are none for other GPUs and for the CPU.

    Args:
        arch: Compute capability, e.g. 90; None for the CPU.
        multiprocessors: Multiprocessors of the GPU.
        name: Its name. GPUs with equal multiprocessors can have different memory, as an H100 and an H200 have.
    """
    file = _FILES.get((arch or 0, multiprocessors, name), _FILES.get((arch or 0, multiprocessors, "")))
    return {} if file is None else parsed(json.loads((RECORDS / file).read_text("utf-8")))


def parsed(data: Mapping[str, Any]) -> dict[ShapeBucket, MatmulConfig]:
    """The configurations of a file's records by shape bucket."""
    return {tuple(record["tier"]): MatmulConfig.from_json(record["config"]) for record in data["records"]}


def epilogue_of(call: MatmulCall) -> Epilogue:
    """What follows the sums."""
    bias = None if call.bias is None else call.bias.dtype
    return Epilogue(call.out.dtype, bias, call.has_beta, call.epilogue, call.accumulator, call.has_factor)


def kernel_of(call: MatmulCall, choice: MatmulChoice) -> TileKernel:
    """The constants of the kernel with the loop, of a canonical call."""
    return TileKernel(
        call.a.dtype,
        call.b.dtype,
        choice.config.tile,
        call.a.is_transposed,
        call.b.is_transposed,
        tf32=call.tf32,
        epilogue=None if call.summed else epilogue_of(call),
        scaled=call.scaled and not call.summed,
        slices=choice.config.split_k,
        split_operand=call.split_operand,
        main_loop=choice.main_loop,
        is_persistent=choice.max_blocks > 0,
    )


# ---- packed launches


def layout(view: View) -> Layout:
    """The array of a view."""
    (dtype,) = types(view.dtype)
    return dtype, view.shape, view.strides


def _single(dtype: DType) -> Layout:
    """An array with one element."""
    (found,) = types(dtype)
    return found, (1,), (DTYPE_BYTES[dtype],)


def _operand(view: View, is_split: bool) -> Layout:
    """An array that is an operand or its transpose."""
    dtype, (batch, lines, length), (far, between, step) = layout(view.stored)
    if lines == 1:  # no two lines have this distance, and loads look at its alignment
        between = ALIGNED
    return dtype, (batch * (1 + is_split), lines, length), (far, between, step)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _PART_BYTES) * _PART_BYTES


def _packed(
    kernel: Any,
    scalars: Sequence[float],
    arrays: Sequence[Layout | None],
    dim: Sequence[int],
    device: Any,
    *,
    block_dim: int = THREADS,
    tiled: bool = False,
    max_blocks: int = 0,
) -> Any:
    """Packs a launch whose arrays have no memory yet, and whose last scalars may change (``PackedLaunch.run_at``)."""
    import warp as wp

    from warp_tiles._warp.launch import pack_launch

    views = [
        array and wp.array(ptr=None, dtype=array[0], shape=array[1], strides=array[2], device=device)
        for array in arrays
    ]
    return pack_launch(
        kernel,
        [*scalars, *views],
        dim=dim,
        block_dim=block_dim,
        tiled=tiled,
        max_blocks=max_blocks,
        device=device,
    )


def padded_copy(view: View, parts: int, device: Any) -> PaddedCopy:
    """A copy of an operand with so many parts."""
    padded = view.padded()
    source, result = view.stored, padded.stored
    batch, lines, _ = source.shape
    count = parts * batch if source.strides[0] else 1
    arrays = [layout(replace(one, shape=(count, *one.shape[1:]))) for one in (source, result)]
    dim = (count, lines, result.strides[1] // ALIGNED)
    launch = _packed(padding_kernel(view.dtype), [], arrays, dim, device)
    return PaddedCopy(padded, count * lines * result.strides[1], launch)


def reduction_of(epilogue: Epilogue, sums: View, out: View, bias_stride: int, slices: int, device: Any) -> Any:
    """The launch that adds slices in order, with an epilogue. Its arrays are the slices, the result, bias and factor.

    Args:
        epilogue: What follows the sums.
        sums: The slices: (batch * slices, m, n).
        out: The result: (batch, m, n), or one matrix.
        bias_stride: Distance between elements of the bias in bytes.
        slices: The number of slices of each matrix of the result.
        device: Warp's device.
    """
    bias = None if epilogue.bias is None else (*types(epilogue.bias), (out.shape[2],), (bias_stride,))
    factor = _single(epilogue.sums) if epilogue.has_factor else None
    arrays = [layout(sums), layout(out), bias, factor]
    return _packed(reduce_kernel(epilogue), [slices, 1.0, 0.0], arrays, out.shape, device)


def add_rows(sums: View, target: View, pointers: tuple[int, int], device: Any) -> None:
    """Adds all rows of ``sums`` to ``target`` in order."""
    epilogue = Epilogue(target.dtype, has_beta=True, sums=sums.dtype)
    found = _kept((sums, target, device.alias), lambda: reduction_of(epilogue, sums, target, 0, sums.shape[0], device))
    found.run_at((*pointers, None, None), 1.0, 1.0)


def elementwise(kernel: Any, views: Sequence[View], dim: Sequence[int], device: Any, *scalars: int) -> Any:
    """The launch of a kernel over views. It is packed once, and again if it was modified.

    Args:
        kernel: The kernel. Its last scalar is a factor.
        views: Its arrays.
        dim: The launch dimensions.
        device: Warp's device.
        scalars: Its other scalars.
    """
    key = (kernel, tuple(views), tuple(dim), scalars, device.alias)
    return _kept(key, lambda: _packed(kernel, [*scalars, 1.0], [layout(view) for view in views], dim, device))
