"""From a call to the problem that the device computes: joined batches, and a C with contiguous rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from warp_tiles.gemm.pipeline import AUTO, PipelineOverrides
from warp_tiles.heuristics.matmul_problem import MatmulConfig, MatmulProblem, Operand
from warp_tiles.matmul.arguments import MatmulCall
from warp_tiles.matmul.keys import Epilogue, TileKernel
from warp_tiles.matmul.views import View


@dataclass(frozen=True)
class Arranged:
    """A call whose operands the kernels load in their order.

    Attributes:
        call: The call.
        is_swapped: True if A and B were exchanged, and C is the transpose of the caller's.
    """

    call: MatmulCall
    is_swapped: bool = False


def arranged(call: MatmulCall) -> Arranged:
    """The same product with fewer matrices where they can be joined, and with contiguous rows of C where possible."""
    joined = _joined(call)
    if joined is not None:
        return arranged(joined)
    if call.bias is None:
        swapped = _swapped(call)
        joined = _joined(swapped)
        if joined is not None:
            return replace(arranged(joined), is_swapped=not arranged(joined).is_swapped)
        if call.out.is_transposed:
            return Arranged(swapped, is_swapped=True)
    return Arranged(call)


def _swapped(call: MatmulCall) -> MatmulCall:
    """The transpose of C is the product of the transposes of B and A."""
    in_parts: Operand | None = {"a": "b", "b": "a"}.get(call.in_parts or "")  # type: ignore[assignment]
    a, b = call.b.transposed(), call.a.transposed()
    return replace(call, a=a, b=b, out=call.out.transposed(), in_parts=in_parts)


def _joined(call: MatmulCall) -> MatmulCall | None:
    """The call as a single product, if the matrices of its batch lie in one matrix of more rows or a longer K."""
    a, b, out = call.a, call.b, call.out
    if a.shape[0] == 1:
        return None
    if call.summed:
        columns = a.transposed()
        if columns.rows_can_join and b.rows_can_join:
            return replace(call, a=columns.joined_rows().transposed(), b=b.joined_rows(), summed=False)
    elif b.strides[0] == 0 and a.rows_can_join and out.rows_can_join:
        return replace(call, a=a.joined_rows(), b=b.alone(), out=out.joined_rows())
    return None


def problem_of(call: MatmulCall) -> MatmulProblem:
    """The question to the chooser."""
    a, b = call.a, call.b
    batch, m, k = a.shape
    return MatmulProblem(
        m,
        b.shape[2],
        k,
        batch,
        a.dtype,
        b.dtype,
        call.out.dtype,
        a.is_transposed,
        b.is_transposed,
        call.tf32,
        call.summed,
        call.in_parts,
        call.has_beta,
        _alignment(a, call.in_parts == "a"),
        _alignment(b, call.in_parts == "b"),
        batch > 1 and a.strides[0] == 0,
        batch > 1 and b.strides[0] == 0,
    )


def _alignment(view: View, in_parts: bool) -> int:
    """The alignment of an operand's lines, also of those of the second part."""
    return math.gcd(view.line_alignment, view.strides[0]) if in_parts and view.line_alignment else view.line_alignment


def epilogue_of(call: MatmulCall) -> Epilogue:
    """What follows the sums."""
    bias = None if call.bias is None else call.bias.dtype
    return Epilogue(call.out.dtype, bias, call.has_beta, call.epilogue, call.sums, call.has_factor)


def kernel_of(
    call: MatmulCall, config: MatmulConfig, main_loop: PipelineOverrides = AUTO, is_persistent: bool = False
) -> TileKernel:
    """The constants of the kernel with the loop.

    Args:
        call: An arranged call.
        config: Its configuration.
        main_loop: What is fixed of its loop's pipeline.
        is_persistent: True if a block computes several tiles one after another.
    """
    return TileKernel(
        call.a.dtype,
        call.b.dtype,
        (config.tile_m, config.tile_n, config.tile_k),
        call.a.is_transposed,
        call.b.is_transposed,
        tf32=call.tf32,
        epilogue=None if call.summed else epilogue_of(call),
        scaled=call.scaled and not call.summed,
        slices=config.split_k,
        in_parts=call.in_parts,
        main_loop=main_loop,
        is_persistent=is_persistent,
    )
