"""Loops whose reverse pass loads into stages too (``kernels/module/reverse_loop.cuh``).

In the reverse pass of ``C += A B`` the gradient G of C is the same in all iterations. It is copied into stage buffers
before the loop. An iteration loads A and B into a stage, and computes the gradients of the iteration before from stage
buffers, as the forward loop does. They replace A and B in the stage, and are added to the gradients of the arrays from
there.

All functions are pure, on a :class:`warp_tiles.codegen.trace.ModuleTrace`.
"""

from __future__ import annotations

from collections.abc import Sequence

from warp_tiles.codegen.adjoints import sites_without_replay
from warp_tiles.codegen.answers import Accumulation, ReverseRing, TileGradient
from warp_tiles.codegen.operations import JUMPS, TRANSPOSE, Effect, Operation
from warp_tiles.codegen.pipelines import Body, body_of
from warp_tiles.codegen.stages import (
    ASYNC_COPIES_OFF,
    LoopTarget,
    constant_arrays,
    idle_tiles,
    loaded_operands,
    memory_of,
    problem_of_order,
    stage_buffers,
)
from warp_tiles.codegen.trace import FunctionTrace, Loop, ModuleTrace, operations
from warp_tiles.gemm.reverse_loop import reverse_loop


def plan_reverse(
    module: ModuleTrace,
    function: FunctionTrace,
    loop: Loop,
    products: Sequence[Accumulation],
    target: LoopTarget,
) -> ReverseRing | str:
    """Returns the stages of a loop's reverse pass, or the reason why it has none."""
    if not target.families:
        return target.rejection or ASYNC_COPIES_OFF
    body = body_of(function, loop, products)
    if isinstance(body, str):
        return body
    if loop.kind != "range" or not loop.reverses:
        kind = "while loop" if loop.kind == "while" else "loop that Warp unrolls"
        return f"it is a {kind}: use a range with a variable bound"
    if len(products) != 1:
        return f"the loop has {len(products)} products: give each a loop of its own"
    (product,) = products
    if problem := _problem_of_product(module, function, loop, body, product):
        return problem
    variant = target.variants.get(product.operation.site)
    if variant is None:
        return "the product has no function"
    operands = loaded_operands(function, product, variant, body)
    if isinstance(operands, str):
        return operands
    a, b = operands
    loads = {tile: load for load in body.loads for tile in load.tiles}
    if a.name == b.name or len(loads) != 2:
        return "an operand is used twice, or the loop loads other tiles too: load one tile for A and one for B"
    buffers, stage_bytes = stage_buffers(body.loads, constant=constant_arrays(function, loop))
    array_a, array_b = buffers[a.name].array, buffers[b.name].array
    if array_a is None or array_b is None:
        return "the loop changes the arrays that it loads from: choose them before the loop"
    idle, _ = idle_tiles(module, function, loop, body, products, keeps_starts=True)
    memory, first = memory_of(module, function, idle, stage_bytes, copies=2)
    answer = reverse_loop(variant, target.families, memory)
    if isinstance(answer, str):
        return answer
    gradients = (
        TileGradient(a, loads[a], array_a, b, answer.of_a),
        TileGradient(b, loads[b], array_b, a, answer.of_b),
    )
    views = tuple(operation for operation in operations(loop.nodes) if _is_view(operation))
    if answer.extra_bytes and not memory.at_end:
        first = None
    return ReverseRing(answer, variant, product.operation, product.c, first, buffers, stage_bytes, gradients, views)


def _problem_of_product(
    module: ModuleTrace, function: FunctionTrace, loop: Loop, body: Body, product: Accumulation
) -> str:
    """Returns the reason why gradients cannot be computed from stages; empty if they can."""
    operation, c = product.operation, product.c
    if product.addition is not None:
        return "the product makes a new tile: use wp.tile_matmul(a, b, c)"
    if product.alpha != 1:
        return "alpha is not 1: scale C behind the loop"
    if product.home != loop.hook:
        return "the accumulators stay in registers over an outer loop: merge the loops"
    if not c.owner:
        return "C has no memory of its own: use a tile and no view"
    if operation.site not in sites_without_replay(module):
        return "the reverse pass reads C: let nothing else in the kernel use it before its store"
    for other in operations(loop.nodes):
        if other.name in JUMPS:  # Warp repeats it before the adjoint of the product
            return f"line {other.line}: {other.name} ends an iteration early: use a condition around the statements"
        if _is_view(other) and (other.name != TRANSPOSE or not other.reverses):
            return f"line {other.line}: {other.name} makes a view of a tile: load a tile in its place"
    if body.block is not loop.nodes:
        return "its loads and its product lie in a branch: move the condition out of the loop"
    if not operation.reverses or not all(load.reverses and load.zeroes for load in body.loads):
        return "Warp wrote other adjoints, e.g. deterministic ones: leave the module option deterministic as it is"
    return problem_of_order(body, [product])


def _is_view(operation: Operation) -> bool:
    return operation.effect is Effect.ALIAS and bool(operation.tiles)
