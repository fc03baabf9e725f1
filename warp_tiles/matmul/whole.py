"""The gradients of a user's kernel that is a product of whole arrays (:mod:`warp_tiles.plan.whole`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from warp_tiles.errors import MatmulError
from warp_tiles.matmul.arguments import check_overlap, checked_call
from warp_tiles.matmul.backward import Backward
from warp_tiles.plan.expressions import Argument
from warp_tiles.plan.whole import LEAST_WORK, WholeOperand, WholeProduct


def gemm_gradients(
    whole: WholeProduct,
    values: Sequence[Any],
    arguments: Sequence[Argument | None],
    blocks: Sequence[int],
    least_work: int = LEAST_WORK,
) -> Backward | str:
    """The gradients of a launch as two products, or the reason why its adjoint kernel computes them.

    Their kernels are built and loaded, so that a graph can capture the backward pass.

    Args:
        whole: The kernel.
        values: The arguments of the launch.
        arguments: Their shapes and integers.
        blocks: Its dimensions, without the threads of a block.
        least_work: The least number of multiplications of the forward product.
    """
    if reason_unsupported := whole.reason_unsupported(blocks, arguments):
        return reason_unsupported
    work = math.prod(whole.c.shape(arguments)) * whole.a.shape(arguments)[1]
    if work < max(1, least_work):
        return f"{work} multiplications are fewer than {max(1, least_work)}"
    a, b, c = (values[operand.position] for operand in (whole.a, whole.b, whole.c))
    try:
        operands = _as_operand(whole.a, a), _as_operand(whole.b, b)
        precision = "tf32" if whole.tf32 else "default"
        call = checked_call(*operands, c, alpha=1.0, beta=0.0, bias=None, epilogue=None, precision=precision)
        for name, operand in zip("ab", operands):
            check_overlap(name, operand, c)
        found = Backward(
            call, a, b, c, None, 1.0, 0.0, a_transposed=whole.a.transposed, b_transposed=whole.b.transposed
        )
        found.check_gradients()
    except (MatmulError, TypeError) as error:
        return str(error)
    if not found.is_prepared():
        if c.device.is_capturing:
            return "its products are not built yet, and a graph is being captured"
        found.prepare()
    return found


def _as_operand(operand: WholeOperand, array: Any) -> Any:
    return array.transpose() if operand.transposed else array
