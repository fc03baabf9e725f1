"""Decides about adjoints of products: which of them wait, which forward products a reverse loop skips, and its stages.

Warp calls the function for the gradient of A and then the function for the gradient of B, without a barrier. In
``wp.tile_matmul(a, wp.tile_transpose(a))`` both add to one gradient. Threads of the second function could then read an
element before threads of the first have written it.

In the reverse loop of a backward pass Warp repeats the forward product, although often nothing reads its result there.

A reverse loop may load into stages too (``kernels/module/reverse_loop.cuh``). In the reverse pass of ``C += A B`` the
gradient G of C is the same in all iterations. It is copied into stage buffers before the loop. An iteration loads A and
B into a stage, and computes the gradients of the iteration before from stage buffers, as the forward loop does. They
replace A and B in the stage, and are added to the gradients of the arrays from there.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from warp_tiles.codegen.module_code import Accumulation, ReverseRing, TileGradient
from warp_tiles.codegen.operations import JUMPS, TRANSPOSE, UNKNOWN_MEMORY, Effect, Operation, Tile
from warp_tiles.codegen.pipelines import (
    Body,
    LoopTarget,
    body_of,
    check_order,
    constant_arrays,
    idle_tiles,
    loaded_operands,
    memory_of,
    stage_buffers,
)
from warp_tiles.codegen.trace import (
    Context,
    FunctionTrace,
    Loop,
    ModuleTrace,
    Node,
    loops,
    operations,
    own_operations,
    path_to,
)
from warp_tiles.gemm.main_loop import reverse_loop
from warp_tiles.gemm.rejected import Refused, Rejected, accepted, given, refuse, rejectable

# for these the reverse pass reads only the gradient of the tile, and none of its elements
_NO_READS = frozenset({"tile_zeros", "tile_load", "tile_store"})


def waiting_sites(module: ModuleTrace) -> frozenset[int]:
    """Returns the sites of products whose operands may share memory. Their second adjoint waits for the first."""
    products = ((context, operation) for context, operation in module.operations() if operation.product is not None)
    return frozenset(product.site for context, product in products if context.may_overlap(*product.matrices[:2]))


@functools.lru_cache(maxsize=1)  # all decisions about a module ask
def sites_without_replay(module: ModuleTrace) -> frozenset[int]:
    """Returns the sites of products in loops that the reverse pass can skip, as nothing reads their result there."""
    sites = set()
    for context in module.contexts():
        for loop, around in loops(context.function.nodes):
            nest = (*around, loop)
            if all(level.kind == "unrolled" for level in nest):
                continue  # the reverse pass repeats unrolled statements once, before all adjoints
            outermost = nest[0]
            for operation in own_operations(loop):
                adds = operation.product is not None and not operation.results
                if adds and _is_unread(context, outermost, operation.matrices[2]):
                    sites.add(operation.site)
    return frozenset(sites)


def _is_unread(context: Context, last: Node, c: Tile) -> bool:
    """True if neither repeated statements nor adjoints of the reverse pass read C, from a node on.

    The reverse pass runs backwards: it reaches the node after everything that follows the node in the program.
    """
    if len(c.memory) != 1 or UNKNOWN_MEMORY in c.memory:
        return False
    (_, index), *_ = path_to(context.function.nodes, last)
    for operation in operations(context.function.nodes[: index + 1]):
        touches_c = any(context.may_overlap(c, tile) for tile in operation.tiles)
        if touches_c and _reads(context, operation, c):
            return False
    (owner,) = c.memory  # of which C may be a view
    if owner not in context.function.parameters:
        return True
    passed = context.passed(owner)
    return bool(passed) and all(isinstance(t, Tile) and _is_unread(caller, call, t) for caller, call, t in passed)


def _reads(context: Context, operation: Operation, c: Tile) -> bool:
    """True if an operation that touches C may read it in the reverse pass."""
    if operation.product is not None and not operation.results:
        a, b, _ = operation.matrices
        return context.may_overlap(a, c) or context.may_overlap(b, c)
    if operation.callee:  # C is an argument of the call
        callee = context.module.functions.get(operation.callee)
        return callee is None or any(
            _reads(Context(context.module, callee), inner, tile)
            for inner in callee.operations()
            for tile in inner.tiles
            if _is_of_caller(callee, tile)
        )
    return operation.name not in _NO_READS and operation.effect is not Effect.ALIAS


def _is_of_caller(function: FunctionTrace, tile: Tile) -> bool:
    """True if a tile of a function may be a parameter, or a view of one."""
    return not tile.memory.isdisjoint({*function.parameters, UNKNOWN_MEMORY})


# ---- solvers in place


def lost_results(module: ModuleTrace, sites: Collection[int]) -> dict[int, Rejected]:
    """Returns why solvers in place have no gradient, by the numbers of their sites.

    The adjoint of one reads the result where the reverse pass left it, and puts the operand back. That works if the
    reverse pass computes both again from their start, and if nothing changes the result afterwards.

    Args:
        sites: The sites of solvers in place whose adjoints put the operand back.
    """
    lost: dict[int, Rejected] = {}
    for context in module.contexts():
        later: list[Operation] = []
        for operation in reversed(list(context.function.operations())):
            if operation.solver is not None and operation.solver in sites:
                if reason := _lost_result(context, operation, later):
                    lost[operation.solver] = reason
                    later.append(operation)
            elif _changes_tiles(module, operation):
                later.append(operation)
    return lost


def _lost_result(context: Context, operation: Operation, later: Sequence[Operation]) -> Rejected | None:
    """Returns why the reverse pass loses the result of a solver in place; None if it does not."""
    tile = operation.tiles[-1]
    makers = [maker for maker in context.function.operations() for made in maker.results if {made.name} == tile.memory]
    if not makers:
        return Rejected("solves_parameter")
    around = _run_time_loop(context, operation)
    if any(_run_time_loop(context, maker) is not around for maker in makers):
        return Rejected("solves_tile_from_outside")
    changed = (
        change for change in later if any(context.may_overlap(tile, written) for written in change.changed_tiles)
    )
    lines = sorted({change.line for change in changed})
    return Rejected("result_changed", (lines[0],)) if lines else None


def _run_time_loop(context: Context, operation: Operation) -> Loop | None:
    """The innermost loop around an operation that Warp does not unroll."""
    around = [block[index] for block, index in path_to(context.function.nodes, operation)]
    return next((node for node in reversed(around) if isinstance(node, Loop) and node.kind != "unrolled"), None)


def _changes_tiles(module: ModuleTrace, operation: Operation) -> bool:
    if not operation.callee:
        return bool(operation.changed_tiles)
    callee = module.functions.get(operation.callee)
    return callee is None or any(
        _is_of_caller(callee, tile)
        for inner in callee.operations()
        if _changes_tiles(module, inner)
        for tile in inner.changed_tiles
    )


# ---- stages of reverse loops


@rejectable
def plan_reverse(context: Context, loop: Loop, products: Sequence[Accumulation], target: LoopTarget) -> ReverseRing:
    """Returns the stages of a loop's reverse pass, or the reason why it has none."""
    accepted(target.no_stages)
    body = accepted(body_of(context.function, loop, products))
    accepted(body.computes)
    is_range = loop.kind == "range" and loop.reverses
    refuse(not is_range, "while_loop" if loop.kind == "while" else "unrolled_loop")
    refuse(len(products) != 1, "several_products", len(products))
    (product,) = products
    _check_product(context, loop, body, product)
    problem = target.problems[product.operation.site]
    a, b = loaded_operands(context.function, product, problem, body)
    refuse(a.name == b.name or len(body.loads) != 2, "other_loads")
    buffers, stage_bytes = stage_buffers(body.loads, constant=constant_arrays(context.function, loop))
    array_a, array_b = (given(buffers[tile.name].array, "arrays_change") for tile in (a, b))
    idle, _ = idle_tiles(context, loop, body, products, keeps_starts=True)
    memory, first = memory_of(context, idle, stage_bytes, copies=2)
    plan = accepted(reverse_loop(problem, target.families, memory))
    gradients = TileGradient(a, array_a, b, plan.of_a), TileGradient(b, array_b, a, plan.of_b)
    views = tuple(operation for operation in operations(loop.nodes) if _is_view(operation))
    if plan.extra_bytes and not memory.at_end:
        first = None
    return ReverseRing(plan, problem, product.operation, product.alpha, first, buffers, stage_bytes, gradients, views)


def _check_product(context: Context, loop: Loop, body: Body, product: Accumulation) -> None:
    """Refuses a product whose gradients cannot be computed from stages."""
    operation, addition = product.operation, product.addition
    is_subtracted = addition is not None and addition.sign == -1
    refuse(addition is not None, "new_tile_subtracted" if is_subtracted else "new_tile_added")
    refuse(product.home != loop.hook, "accumulators_over_outer_loop")
    refuse(not product.c.owner, "c_without_memory")
    refuse(operation.site not in sites_without_replay(context.module), "c_read_in_reverse")
    for statement in operations(loop.nodes):
        if statement.name in JUMPS:  # Warp repeats it before the adjoint of the product
            raise Refused(Rejected("jump", (statement.name,)).at(statement.line))
        if _is_view(statement) and (statement.name != TRANSPOSE or not statement.reverses):
            raise Refused(Rejected("view", (statement.name,)).at(statement.line))
    refuse(body.block is not loop.nodes, "conditional_loads")
    has_adjoints = operation.reverses and all(load.reverses and load.zeroes for load in body.loads)
    refuse(not has_adjoints, "other_adjoints")
    check_order(body, [product])


def _is_view(operation: Operation) -> bool:
    return operation.effect is Effect.ALIAS and bool(operation.tiles)
