"""Prepared products: their configuration, kernels, workspace and packed launches."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from warp_tiles.errors import MatmulError, WarpTilesError
from warp_tiles.gemm.dtypes import DTYPE_BYTES
from warp_tiles.gemm.pipeline import AUTO, PipelineOverrides
from warp_tiles.heuristics.matmul import matmul_choice, most_blocks, pipeline_of
from warp_tiles.heuristics.matmul_problem import MatmulConfig, MatmulProblem
from warp_tiles.heuristics.operand_copies import ALIGNED
from warp_tiles.matmul.arguments import MatmulCall
from warp_tiles.matmul.device_functions import types
from warp_tiles.matmul.kernels import always_loops, reduce_kernel, tile_kernel
from warp_tiles.matmul.keys import Epilogue, TileKernel
from warp_tiles.matmul.launches import THREADS, layout, single
from warp_tiles.matmul.padding import PaddedCopy
from warp_tiles.matmul.plan import arranged, epilogue_of, kernel_of, problem_of
from warp_tiles.matmul.raster import raster_arguments
from warp_tiles.matmul.records import records_for
from warp_tiles.matmul.views import View, contiguous
from warp_tiles.matmul.workspace import workspace
from warp_tiles.plan.products import PlannedProduct, note
from warp_tiles.settings import DEFAULT, current

_PART_BYTES = 256  # of a workspace; its parts begin at multiples of it
MOST_BLOCKS = 2**31 - 1  # of a launch, whose dimensions are 32-bit integers
# the GPU of plans on a machine without one: its compute capability and multiprocessors, and its name if the setting
# target_gpu is empty
PLANNED_GPU = (90, 132)
PLANNED_NAME = "NVIDIA H200"


class Multiplication:
    """A product on a device that is repeated with other memory. Thread-safe. It keeps no array alive.

    Args:
        call: The product.
        device: Warp's device.
        config: Its configuration; None chooses one.

    Raises:
        MatmulError: A launch cannot have a block for each tile.

    Attributes:
        config: The configuration.
    """

    def __init__(self, call: MatmulCall, device: Any, config: MatmulConfig | None = None) -> None:
        found = arranged(call)
        self._is_swapped = found.is_swapped
        self._device = device
        call = found.call
        self.config = config or configuration(call, device)
        chosen = (("a", call.a, self.config.copies_a), ("b", call.b, self.config.copies_b))
        self._copies = tuple(
            PaddedCopy(view, 1 + (call.in_parts == name), device) if is_copied and 0 not in view.shape else None
            for name, view, is_copied in chosen
        )
        a, b = (copy.view if copy else view for copy, view in zip(self._copies, (call.a, call.b)))
        call = replace(call, a=a, b=b)
        self._reduction: Reduction | None = None
        config, batch = self.config, call.a.shape[0]
        (_, m, n), rows, columns = call.out.shape, *_tiles(call, self.config)
        sums, self._counters, out = (0, 1, 1), 0, call.out
        if call.summed:  # a matrix of sums for each slice of each product
            slices = batch * config.split_k
            sums = (slices, m, n)
            out = contiguous(call.sums, sums)
            stride = 0 if call.bias is None else call.bias.stride
            self._reduction = Reduction(epilogue_of(call), out, call.out, stride, slices, device)
        elif config.split_k > 1:
            self._counters = batch * rows * columns
            sums = (self._counters * config.split_k, config.tile_m, config.tile_n)
        sizes = [math.prod(sums) * DTYPE_BYTES[call.sums], *(copy.size_bytes if copy else 0 for copy in self._copies)]
        *self._copy_offsets, self._workspace_bytes = itertools.accumulate(
            -(-size // _PART_BYTES) * _PART_BYTES for size in sizes
        )  # the sums come first
        self._launch = self._prepared(call, out, contiguous(call.sums, sums))

    def _prepared(self, call: MatmulCall, out: View, sums: View) -> Any:
        from warp_tiles._warp.prepared import PreparedLaunch

        config = self.config
        key, max_blocks = kernel_and_blocks(call, config, self._device)
        (batch, _, k), n = call.a.shape, call.out.shape[2]
        rows, columns = _tiles(call, config)
        blocks = batch * rows * columns * config.split_k
        if blocks > MOST_BLOCKS:
            raise MatmulError(
                f"the product needs {blocks} blocks, for {config.split_k} slices of tiles of {config.tile_m} x "
                f"{config.tile_n} of a result of {call.out.shape}, and a launch has at most {MOST_BLOCKS}",
                remedy="multiply parts of it",
            )
        steps = -(-k // config.tile_k)
        slice_depth = -(-steps // config.split_k) * config.tile_k
        operands = [_operand(view, call.in_parts == name) for name, view in (("a", call.a), ("b", call.b))]
        bias = factor = slices = arrived = None
        if key.stored.bias is not None and call.bias is not None:
            bias = (*types(call.bias.dtype), (n,), (call.bias.stride,))
        if key.stored.has_factor:
            factor = single(call.sums)
        if key.is_split:
            slices, arrived = layout(sums), (int, (self._counters,), (4,))
        return PreparedLaunch(
            tile_kernel(key),
            [slice_depth, *raster_arguments(rows, columns, config.group, config.split_k), 1.0, 0.0],
            [*operands, layout(out), bias, factor, slices, arrived],
            [blocks],
            config.threads,
            tiled=True,
            device=self._device,
            max_blocks=max_blocks,
        )

    def is_current(self) -> bool:
        """True if the modules of its kernels are unmodified."""
        launches = (self._launch, self._reduction, *self._copies)
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
        if self._is_swapped:
            a, b = b, a
        if not self._workspace_bytes:
            self._launch.run((a, b, out, bias, factor), alpha, beta)
            return
        with workspace(self._workspace_bytes, self._counters, self._device) as memory:
            a, b = (
                copy.run(operand, memory.start + offset) if copy else operand
                for copy, operand, offset in zip(self._copies, (a, b), self._copy_offsets)
            )
            if self._reduction is None:
                slices = (memory.start, memory.arrived) if self._counters else ()
                self._launch.run((a, b, out, bias, factor, *slices), alpha, beta)
            else:
                self._launch.run((a, b, memory.start), 1.0, 0.0)
                self._reduction.run(memory.start, out, bias, alpha, beta, factor)


def _operand(view: View, in_parts: bool) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """The layout of an array that is an operand or its transpose."""
    dtype, (batch, lines, length), (far, between, step) = layout(view.stored)
    if lines == 1:  # no two lines have this distance, and loads look at its alignment
        between = ALIGNED
    return dtype, (batch * (1 + in_parts), lines, length), (far, between, step)


def _tiles(call: MatmulCall, config: MatmulConfig) -> tuple[int, int]:
    """Rows and columns of tiles of C."""
    _, m, n = call.out.shape
    return -(-m // config.tile_m), -(-n // config.tile_n)


class Reduction:
    """Sums of slices in order, with an epilogue, on a device.

    Args:
        epilogue: What follows the sums.
        sums: The slices: (batch * slices, m, n).
        out: The result: (batch, m, n), or one matrix.
        bias_stride: Distance between elements of the bias in bytes.
        slices: The number of slices of each matrix of the result.
        device: Warp's device.
    """

    def __init__(self, epilogue: Epilogue, sums: View, out: View, bias_stride: int, slices: int, device: Any) -> None:
        from warp_tiles._warp.prepared import PreparedLaunch

        bias = None
        if epilogue.bias is not None:
            bias = (*types(epilogue.bias), (out.shape[2],), (bias_stride,))
        self._launch = PreparedLaunch(
            reduce_kernel(epilogue),
            [slices, 1.0, 0.0],
            [layout(sums), layout(out), bias, single(epilogue.sums) if epilogue.has_factor else None],
            out.shape,
            THREADS,
            tiled=False,
            device=device,
        )

    def is_current(self) -> bool:
        """True if the module of its kernel is unmodified."""
        return bool(self._launch.is_current())

    def run(self, sums: int, out: int, bias: int | None, alpha: float, beta: float, factor: int | None = None) -> None:
        """Launches it on the device's current stream. The arguments are addresses and factors."""
        self._launch.run((sums, out, bias, factor), alpha, beta)


def _gpu(device: Any) -> tuple[int | None, int]:
    """Compute capability and multiprocessors of a device; None and 1 for the CPU."""
    from warp_tiles._warp.intercept import is_planning

    if device.is_cuda:
        return device.arch, device.sm_count
    return PLANNED_GPU if is_planning() else (None, 1)


def kernel_and_blocks(call: MatmulCall, config: MatmulConfig, device: Any) -> tuple[TileKernel, int]:
    """The kernel of an arranged call, and the number of blocks at most; 0 for a block for each tile and slice."""
    problem = problem_of(call)
    blocks = most_blocks(problem, config, *_gpu(device))
    return kernel_of(call, config, main_loop_of(problem, config, device), blocks > 0), blocks


def main_loop_of(problem: MatmulProblem, config: MatmulConfig, device: Any) -> PipelineOverrides:
    """What a product fixes of its loop's pipeline (:func:`pipeline_of`). Nothing if the user has set ``main_loop``."""
    from warp_tiles._warp import is_enabled
    from warp_tiles._warp.intercept import is_planning

    found = pipeline_of(problem, config, *_gpu(device))
    if found == AUTO or not (is_enabled() or is_planning()):
        return AUTO
    return found if current().layer("main_loop") == DEFAULT else AUTO


def configuration(call: MatmulCall, device: Any) -> MatmulConfig:
    """The configuration of an arranged call on a device."""
    return planned_product(call, device).choice.config


def planned_product(call: MatmulCall, device: Any) -> PlannedProduct:
    """The configuration of an arranged call on a device, and where it comes from."""
    arch, multiprocessors = _gpu(device)
    name = _gpu_name(device)
    problem = replace(problem_of(call), always_loops=always_loops())
    choice = matmul_choice(problem, arch, multiprocessors, records_for(arch, multiprocessors, name))
    return PlannedProduct(problem, choice, name)


def _gpu_name(device: Any) -> str:
    """The name of a device's GPU, or of the one for which a plan without a GPU is made; empty for the CPU."""
    from warp_tiles._warp.intercept import is_planning

    if device.is_cuda:
        return str(device.name)
    return (current().target_gpu or PLANNED_NAME) if is_planning() else ""


@functools.lru_cache(maxsize=1024)
def _holder(call: MatmulCall, alias: str, gpu: str) -> list[Multiplication]:
    import warp as wp

    return [_built(call, wp.get_device(alias))]


def _built(call: MatmulCall, device: Any) -> Multiplication:
    """A product on a device.

    Raises:
        MatmulError: Its kernels cannot be built with its epilogue.
    """
    try:
        return Multiplication(call, device)
    except WarpTilesError:
        raise
    except Exception as error:
        if call.epilogue is None:
            raise
        _built(replace(call, epilogue=None), device)  # raises the error if the epilogue is not its cause
        raise MatmulError(
            f"the kernel with epilogue {call.epilogue.key} cannot be built",
            remedy=f"write it as a function of one {call.sums} that returns one {call.sums}",
            log=str(error),
        ) from error


def prepared(call: MatmulCall, device: Any) -> Multiplication:
    """The product on a device. It is prepared once, and again after its module was modified."""
    from warp_tiles._warp.intercept import is_planning

    holder = _holder(call, device.alias, _gpu_name(device))
    if not holder[0].is_current():
        holder[0] = _built(call, device)
    if is_planning():
        note(planned_product(arranged(call).call, device))
    return holder[0]


def multiply(
    call: MatmulCall,
    device: Any,
    pointers: Sequence[int | None],
    alpha: float,
    beta: float,
    factor: int | None = None,
) -> None:
    """Launches a product of checked arguments. Without elements in C, it launches nothing.

    Args:
        call: The product.
        device: Warp's device.
        pointers: Addresses of A, B, C and the bias.
        alpha, beta: The factors.
        factor: Address of the factor that a kernel computed, if the call has one.
    """
    if not call.is_empty:
        a, b, out, bias = pointers
        prepared(call, device).run(a or 0, b or 0, out or 0, bias, alpha, beta, factor)
