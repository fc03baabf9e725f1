"""Decides about loops: which keep the accumulators of their products in registers, and which load tiles ahead.

``wp.tile_matmul(a, b, c)`` reads and writes C in shared memory at each call. In a loop in which nothing else touches C,
its accumulators can stay in registers. C is then read and written once, after the loop.

``s += wp.tile_matmul(a, b)`` writes a new tile C at each call and adds it to s. The accumulators can stay in registers,
too. After the loop they are added to s, through C if s is not like C. No other statement may use C then. ``s -= C``,
``s = s + C`` and ``s = s - C`` are alike, and so is a reshape of C in place of C.

A factor ``alpha`` that is known before the loop is applied once, after the loop. The conditions of loading ahead are in
:mod:`warp_tiles.codegen.pipelines`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from warp_tiles.codegen.adjoints import plan_reverse
from warp_tiles.codegen.chains import is_chain, plan_chain
from warp_tiles.codegen.module_code import (
    Accumulation,
    Addition,
    Buffer,
    Chain,
    LoopAccumulators,
    LoopDecision,
    ReverseRing,
    Ring,
)
from warp_tiles.codegen.operations import (
    ELEMENTWISE,
    JUMPS,
    RESHAPES,
    STORE,
    TUPLE,
    VIEW,
    Affine,
    Effect,
    Operation,
    Scalar,
    Tile,
    Value,
    affine_result,
)
from warp_tiles.codegen.pipelines import (
    ASYNC_COPIES_OFF,
    LoopTarget,
    body_of,
    check_unrolled,
    double_buffers,
    plan_ring,
)
from warp_tiles.codegen.stores import plan_accumulator_store
from warp_tiles.codegen.trace import Context, FunctionTrace, Loop, Node, loops, operations, own_operations, path_to
from warp_tiles.gemm.hardware import thread_registers
from warp_tiles.gemm.rejected import Refused, Rejected, accepted, refuse, rejectable

# the least measured share of a loop's speed, without its stages (benchmarks/results/loops.json)
_SPEED_WITHOUT_STAGES = {"tensor cores": 0.09, "fma": 0.73}
# beside a solver of so few rows, or of float32, the addresses of products stay in registers. With recomputed ones,
# blocked factorizations took up to 1.07 times as long on an H200, and less with 32 rows of float64. See
# docs/experiments.md.
_FEW_SOLVER_ROWS = 16

AccumulatorsOf = Callable[[int], LoopAccumulators | Rejected]
"""The device functions that keep the accumulators of a site's product, or the reason why there are none."""


def decide(context: Context, accumulators: AccumulatorsOf, target: LoopTarget) -> tuple[LoopDecision, ...]:
    """Decides about every loop of a function that contains products."""
    decider = _Decider(context, accumulators, target)
    return tuple(
        decider.decision(loop, around, products)
        for loop, around in loops(context.function.nodes)
        if (products := [operation for operation in own_operations(loop) if operation.product is not None])
    )


_Arrays = dict[tuple[LoopAccumulators, int, str, float | str], int]
"""The number of the array of each accumulation. Equal products that add to one C share it."""


@dataclass(frozen=True)
class _Decider:
    context: Context
    accumulators: AccumulatorsOf
    target: LoopTarget
    arrays: _Arrays = field(default_factory=dict)

    def decision(self, loop: Loop, around: tuple[Loop, ...], products: Sequence[Operation]) -> LoopDecision:
        target, function = self.target, self.context.function
        decision = LoopDecision(function.label, function.file, loop.line, loop.hook, len(products))
        chain = plan_chain(self.context, loop, products, target) if is_chain(loop, products) else None
        if isinstance(chain, Chain):
            loads = tuple(load.load for load in chain.loads)
            is_reversed = function.label in self.context.module.reversed
            no_reverse = Rejected("several_products", (len(products),)) if is_reversed else None
            return replace(decision, loads_ahead=loads, reverse_pass=no_reverse, chain=chain)
        staged = self._staged(loop, around, products)
        if isinstance(staged, Ring) and target.forbidden:
            instruction = staged.plan.loop.instruction
            share = _SPEED_WITHOUT_STAGES["fma" if instruction == "fma" else "tensor cores"]
            cost, staged = Rejected("stages_forbidden", (target.forbidden, instruction, share)), target.forbidden
            decision = replace(decision, forbidden=cost)
        if isinstance(staged, Ring):
            decision = replace(
                decision,
                accumulations=tuple(product.accumulation for product in staged.products),
                loads_ahead=tuple(buffer.load for buffer in staged.buffers.values()),
                ring=staged,
                accumulator_store=plan_accumulator_store(function, loop, staged),
            )
            reasons = [target.rejection] if target.rejection else []
        else:
            accumulations, reasons = self._accumulations(loop, around, products, self.accumulators, self.arrays)
            decision = replace(decision, accumulations=accumulations)
            if accumulations and reasons:
                reasons.append(Rejected("others_keep_accumulators"))
            elif accumulations:
                ahead = self._ahead(loop, accumulations)
                if isinstance(ahead, Rejected):
                    reasons.append(ahead)
                else:
                    loads, buffers, arrival = ahead
                    decision = replace(decision, loads_ahead=loads, buffers=buffers, arrival=arrival)
            # without a function, the reason against accumulators in registers already is the reason
            has_functions, loads = all(product.site in target.problems for product in products), decision.loads_ahead
            if loop.kind != "unrolled" and staged and (loads or (has_functions and staged not in reasons)):
                reasons.append(staged.after(f"{'not more' if loads else 'no'} stages: "))
        if isinstance(chain, Rejected) and not (decision.accumulations or decision.loads_ahead):
            reasons.append(chain.after("no chain: "))
        decision = replace(decision, reasons=tuple(dict.fromkeys(reasons)))
        crowded, reverse = self._crowded(decision), self._reverse(loop, decision)
        return replace(decision, reasons=(*decision.reasons, *filter(None, [crowded])), reverse_pass=reverse)

    def _crowded(self, decision: LoopDecision) -> Rejected | None:
        """Says that a loop may spill if a setting decides about it and accumulators fill half of a thread's registers.

        No loop that the choosers choose does (tests/integration/test_registers.py).
        """
        ring, accumulations = decision.ring, decision.accumulations
        if self.target.rejection is None or not accumulations or (ring and ring.plan.loop.instruction == "wgmma"):
            return None
        of_functions = {accumulation.array: accumulation.accumulators for accumulation in accumulations}.values()
        words = sum(held.count * (1 + held.is_double) for held in of_functions)
        problem = self.target.problems[accumulations[0].operation.site]
        held, most = decision.accumulators if ring else words, thread_registers(problem.arch, problem.threads)
        return Rejected("full_registers", (held, most)) if 2 * held > most else None

    def _staged(self, loop: Loop, around: tuple[Loop, ...], products: Sequence[Operation]) -> Ring | Rejected | None:
        target = self.target
        if not target.families or not target.ahead or loop.kind == "unrolled":
            return target.rejection

        def accumulators_of(site: int) -> LoopAccumulators | Rejected:
            problem = target.problems.get(site)
            if problem is None:
                return Rejected("no_function")
            return LoopAccumulators(f"staged_{problem.symbol}", "float", 0)

        accumulations, rejections = self._accumulations(loop, around, products, accumulators_of, {})
        if rejections:
            return rejections[0]
        body = body_of(self.context.function, loop, accumulations)
        if isinstance(body, Rejected):
            return body
        return plan_ring(self.context, loop, body, accumulations, target)

    def _accumulations(
        self,
        loop: Loop,
        around: tuple[Loop, ...],
        products: Sequence[Operation],
        accumulators: AccumulatorsOf,
        arrays: _Arrays,
    ) -> tuple[tuple[Accumulation, ...], list[Rejected]]:
        """Returns the products whose accumulators stay in registers, and the rejections of the others."""
        accumulations: list[Accumulation] = []
        rejections: list[Rejected] = []
        for product in products:
            functions = kept_accumulators(self.context, loop, product, accumulators)
            if isinstance(functions, Rejected):
                rejections.append(functions.at(product.line) if len(products) > 1 else functions)
                continue
            home = loop.hook
            for outer in reversed(around):
                if isinstance(kept_accumulators(self.context, outer, product, accumulators), Rejected):
                    break
                home = outer.hook
            alpha = product.alpha
            assert alpha is not None
            array = arrays.setdefault((functions, home, product.matrices[2].name, alpha), product.own_hook)
            addition = addition_of(self.context.function, product)
            recomputes = functions.is_double and self.context.function.solver_rows() > _FEW_SOLVER_ROWS
            accumulations.append(Accumulation(product, functions, home, array, alpha, addition, recomputes))
        return tuple(accumulations), rejections

    @rejectable
    def _ahead(
        self, loop: Loop, accumulations: tuple[Accumulation, ...]
    ) -> tuple[tuple[Operation, ...], tuple[Buffer, ...], int | None]:
        """The loads, second buffers and arrival of a loop that loads ahead without stages, or why it does not."""
        accepted(None if self.target.ahead else ASYNC_COPIES_OFF)
        body = accepted(body_of(self.context.function, loop, accumulations))
        if loop.kind == "unrolled":
            check_unrolled(body, accumulations)
            return body.loads, (), None
        problems = [self.target.problems[product.operation.site] for product in accumulations]
        return body.loads, accepted(double_buffers(self.context, body, accumulations, problems)), body.arrival

    def _reverse(self, loop: Loop, decision: LoopDecision) -> ReverseRing | Rejected | None:
        """The stages of a loop's reverse pass, or the reason why it has none; None without an adjoint."""
        if decision.function not in self.context.module.reversed:
            return None
        if not self.target.ahead:
            return ASYNC_COPIES_OFF
        if self.target.forbidden:
            return self.target.forbidden
        if len(decision.accumulations) < decision.products:
            return Rejected("as_forward", ("; ".join(map(str, decision.reasons)),))
        return plan_reverse(self.context, loop, decision.accumulations, self.target)


# ---- accumulators in registers


@rejectable
def kept_accumulators(
    context: Context, loop: Loop, operation: Operation, accumulators: AccumulatorsOf
) -> LoopAccumulators:
    """The functions that keep a product's accumulators in registers over a loop, or the reason why they cannot stay."""
    functions = accepted(_functions_of(context, operation, accumulators))
    inside = list(operations(loop.nodes))
    refuse(any(value.name == operation.alpha for statement in inside for value in statement.results), "unknown_alpha")
    for statement in inside:
        refuse(statement.effect is Effect.LEAVES, "returns_within", statement.line)
    if operation.results:
        _check_new_tile(context, loop, operation)
        return functions
    c = operation.matrices[2]
    # e.g. the scores of attention: no change of the loop helps
    refuse(any(made.name in c.memory for statement in inside for made in statement.results), "new_c")
    totals = {statement.matrices[2].name for statement in inside if statement.product is not None}
    for statement in inside:
        adds = statement.product is not None and not statement.results and statement.matrices[2].memory == c.memory
        if adds:
            accepted(_functions_of(context, statement, accumulators), at=statement.line)
            # without accumulators in stages, count is that of a function
            if statement.alpha != operation.alpha and functions.count:
                raise Refused(Rejected("another_alpha").at(statement.line))
        if statement.effect is Effect.ALIAS and not totals & {tile.name for tile in statement.results}:
            continue  # it makes a view, of which only users read and write elements
        accessed = statement.matrices[:2] if adds else statement.tiles
        if any(_overlap(context, statement, c, tile) for tile in accessed):
            raise _uses(statement, "C")
    return functions


def _uses(operation: Operation, what: str) -> Refused:
    """Refuses accumulators in registers that an operation needs in each iteration."""
    return Refused(Rejected("stored" if operation.name == STORE else "used", (operation.name, what)).at(operation.line))


def _overlap(context: Context, at: Operation, c: Tile, tile: Tile) -> bool:
    """True if C and another tile may share memory when the program runs an operation."""
    if not context.may_overlap(c, tile):
        return False

    return not are_disjoint(context.function, at, c, tile)


def addition_of(function: FunctionTrace, operation: Operation) -> Addition | None:
    """Returns what adds a new tile C or its reshape to another tile, if it follows the product in the same block."""
    if not operation.results:
        return None
    block, index = path_to(function.nodes, operation)[-1]
    jumps = (at for at, node in enumerate(block) if any(operation.name in JUMPS for operation in operations((node,))))
    straight = block[index + 1 : min((at for at in jumps if at > index), default=None)]
    c = operation.matrices[2]
    makers: dict[str, tuple[Operation, ...]] = {c.name: ()}  # of C and its reshapes, by name
    for node in straight:
        if not isinstance(node, Operation):
            continue
        if node.name in RESHAPES and node.tiles[0].name == c.name:
            makers[node.tiles[1].name] = (node,)
        builtin = node.elementwise
        if node.hook is None or builtin is None or not builtin.sum_sign:
            continue
        added = [tile for tile in node.tiles if tile.name in makers]
        if builtin.updates is not None and added == [node.tiles[1]]:
            statements = (*makers[added[0].name], node)
            return _addition(function, statements, node.tiles[0], added[0], c, builtin.sum_sign)
        if builtin.updates is None and added:
            return _assigned_sum(function, straight, makers[added[0].name], node, added[0], c)
    return None


def _addition(
    function: FunctionTrace, statements: tuple[Operation, ...], target: Tile, added: Tile, c: Tile, sign: int
) -> Addition:
    """The addition of C or its reshape: direct if the target is dense and begins where a tile's memory does."""
    alike = target.storage == "shared" and (target.dtype, target.shape) == (added.dtype, added.shape)
    sizes = {
        tile.size_bytes
        for operation in function.operations()
        for tile in operation.tiles
        if alike and tile.owner and {tile.name} == target.memory
    }
    is_direct = sizes == {target.size_bytes} and target.dense and c.dense
    return Addition(statements, target, added, sign, is_direct)


def _assigned_sum(
    function: FunctionTrace,
    block: Sequence[Node],
    makers: tuple[Operation, ...],
    operation: Operation,
    added: Tile,
    c: Tile,
) -> Addition | None:
    """Returns ``s = s + C``, ``s = C + s`` or ``s = s - C`` if nothing else reads the result of the operator."""
    *operands, result = (tile.name for tile in operation.tiles)
    readers = [
        reader
        for reader in function.operations()
        if reader is not operation and result in {t.name for t in reader.tiles}
    ]
    target = readers[0].assigned_tile if len(readers) == 1 and readers[0] in block else None
    if target is None or target.name == added.name:
        return None
    sign = ELEMENTWISE[operation.name].sum_sign
    forms = [[target.name, added.name], [added.name, target.name]] if sign == 1 else [[target.name, added.name]]
    if operands not in forms:
        return None
    return _addition(function, (*makers, operation, readers[0]), target, added, c, sign)


def _check_new_tile(context: Context, loop: Loop, operation: Operation) -> None:
    """Refuses a product that makes a new tile and cannot keep its accumulators in registers."""
    c = operation.matrices[2]
    addition = addition_of(context.function, operation)
    if addition is None:
        is_added = any(_adds(statement, c) for statement in operations(loop.nodes))
        raise Refused(Rejected("new_tile_in_sum" if is_added else "new_tile"))
    refuse(loop.kind == "unrolled", "unrolled_new_tile")
    for statement in context.function.operations():
        if statement not in (operation, *addition.statements) and any(
            _touches(context, c, tile) for tile in statement.tiles
        ):
            raise Refused(Rejected("new_tile_used", (statement.name,)).at(statement.line))
    target = addition.target
    for statement in operations(loop.nodes):
        if statement not in addition.statements and any(_touches(context, target, tile) for tile in statement.tiles):
            raise _uses(statement, "the sum")


def _adds(operation: Operation, c: Tile) -> bool:
    builtin = operation.elementwise
    if builtin is None or not builtin.sum_sign:
        return False
    is_symmetric = builtin.updates is None and builtin.sum_sign == 1
    return any(c.name in tile.memory for tile in operation.tiles[0 if is_symmetric else 1 : 2])


def _touches(context: Context, tile: Tile, other: Tile) -> bool:
    return tile.name == other.name or context.may_overlap(tile, other)


@rejectable
def _functions_of(context: Context, operation: Operation, accumulators: AccumulatorsOf) -> LoopAccumulators:
    product = operation.product
    assert product is not None
    alpha = product.alpha
    refuse(alpha is None, "unknown_alpha")
    refuse(isinstance(alpha, float) and not math.isfinite(alpha), "infinite_alpha", alpha)
    refuse(product.beta != 1.0 and not operation.results, "beta")
    a, b, c = operation.matrices
    refuse(any(_overlap(context, operation, c, tile) for tile in (a, b)), "c_overlaps")
    return accepted(accumulators(product.site))


# ---- views of one tile


@dataclass(frozen=True)
class _Range:
    """The values of a loop's variable: start, start + step, ... before stop."""

    start: Affine
    stop: Affine
    step: int


def are_disjoint(function: FunctionTrace, at: Operation, tile: Tile, other: Tile) -> bool:
    """True if two tiles certainly share no element when the program runs an operation.

    A blocked solve multiplies blocks of a right-hand side and adds to another block of the same tile. Offsets of
    ``wp.tile_view`` are affine expressions, and the bounds of the loops around say which values they have.
    """
    scope = _Scope(function, at)
    first, second = scope.position(tile), scope.position(other)
    if first is None or second is None or first[0] != second[0]:
        return False
    for a, b, size_a, size_b in zip(first[1], second[1], tile.shape, other.shape):
        if scope.is_at_least(b - a, size_a) or scope.is_at_least(a - b, size_b):
            return True
    return False


class _Scope:
    """The statements that certainly ran before an operation, in this iteration of all loops around it."""

    def __init__(self, function: FunctionTrace, at: Operation) -> None:
        path = path_to(function.nodes, at)
        before = [node for block, index in path for node in block[:index] if isinstance(node, Operation)]
        # a tuple may have its operands as results
        self._makers = {
            value.name: operation
            for operation in before
            for value in operation.results
            if value not in operation.operands
        }
        self._assignments = [operation for operation in function.operations() if operation.assigned]
        around = {block[index] for block, index in path}
        self._ranges: dict[str, _Range] = {}  # by variable, the innermost loop last
        for loop, _ in loops(function.nodes):
            inside = set(operations(loop.nodes))
            changed = any(
                loop.variable in assignment.assigned and assignment in inside for assignment in self._assignments
            )
            if loop in around and loop.kind == "range" and not changed and (bounds := self._range(loop.nodes[0])):
                self._ranges[loop.variable] = bounds

    def position(self, tile: Tile) -> tuple[str, tuple[Affine, ...]] | None:
        """The tile whose memory a view lies in, and the view's offsets; None if they are unknown."""
        is_fixed = not any(tile.name in assignment.assigned for assignment in self._assignments)
        if tile.owner or (tile.parameter and tile.dense and is_fixed):
            return tile.name, (Affine(),) * len(tile.shape)
        view = self._makers.get(tile.name)
        if view is None or view.name != VIEW or not is_fixed:
            return None
        source, *numbers = view.operands
        outer = self.position(source) if isinstance(source, Tile) else None
        offsets = [self._affine(value) for number in numbers for value in self._elements(number)]
        rank = len(tile.shape)
        known = [offset for offset in offsets if offset is not None]
        if outer is None or not len(outer[1]) == rank == len(known) / 2 == len(offsets) / 2:
            return None
        if known[rank:] != [Affine(extent) for extent in tile.shape]:
            return None
        return outer[0], tuple(a + b for a, b in zip(outer[1], known))

    def is_at_least(self, value: Affine, least: int) -> bool:
        """True if an expression certainly has this value or a larger one."""
        for variable, values in reversed(self._ranges.items()):
            factor = dict(value.terms).get(variable, 0)
            towards_start = (factor > 0) == (values.step > 0)
            whole = self._is_multiple(values.stop - values.start, values.step)
            last = values.stop - Affine(values.step if whole else values.step // abs(values.step))
            value += ((values.start if towards_start else last) - Affine.variable(variable)).times(factor)
        return not value.terms and value.constant >= least

    def _is_multiple(self, value: Affine, of: int) -> bool:
        return value.constant % of == 0 and all(
            factor % of == 0
            or (
                (values := self._ranges.get(variable)) is not None
                and values.step % of == 0
                and self._is_multiple(values.start, of)
            )
            for variable, factor in value.terms
        )

    def _range(self, following: object) -> _Range | None:
        """The range whose next value a statement takes."""
        if not isinstance(following, Operation) or following.name != "iter_next":
            return None
        made = self._makers.get(following.operands[0].name)
        bounds = [self._affine(value) for value in made.operands] if made is not None else []
        known = [bound for bound in bounds if bound is not None]
        if len(known) != len(bounds) or not 0 < len(known) < 4:
            return None
        start, stop = (Affine(), known[0]) if len(known) == 1 else known[:2]
        step = known[2] if len(known) == 3 else Affine(1)
        return None if step.terms or not step.constant else _Range(start, stop, step.constant)

    def _elements(self, value: Value) -> tuple[Value, ...]:
        made = self._makers.get(value.name)
        is_tuple = made is not None and made.name == TUPLE and len(made.results) == 1
        return made.operands if made is not None and is_tuple else (value,)

    def _affine(self, value: Value) -> Affine | None:
        """The value of a number, computed by statements that ran in this iteration."""
        if value.name in self._ranges:  # it may be assigned behind its loop
            return Affine.variable(value.name)
        if not isinstance(value, Scalar) or value.offset is None:
            return None
        made = self._makers.get(value.name)
        result = affine_result(made.name, tuple(map(self._affine, made.operands))) if made is not None else None
        is_leaf = not value.offset.terms or value.offset == Affine.variable(value.name)
        return result or (value.offset if is_leaf else None)
