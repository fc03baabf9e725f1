"""Decides about loops: which keep the accumulators of their products in registers, and which load tiles ahead.

``wp.tile_matmul(a, b, c)`` reads and writes C in shared memory at each call. In a loop in which nothing else touches C,
its accumulators can stay in registers. C is then read and written once, after the loop.

``s += wp.tile_matmul(a, b)`` writes a new tile C at each call and adds it to s. The accumulators can stay in registers,
too. After the loop they are added to s, through C if s is not like C. No other statement may use C then. ``s -= C``,
``s = s + C`` and ``s = s - C`` are alike.

A factor ``alpha`` that is known before the loop is applied once, after the loop. The conditions of loading ahead are in
:mod:`warp_tiles.codegen.pipelines`. All functions are pure, on a :class:`warp_tiles.codegen.trace.ModuleTrace`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from warp_tiles.codegen.adjoints import plan_reverse
from warp_tiles.codegen.answers import (
    Accumulation,
    AccumulatorStore,
    Addition,
    Buffer,
    LoopAccumulators,
    LoopDecision,
    ReverseRing,
    Ring,
    extra_bytes,
)
from warp_tiles.codegen.operations import ELEMENTWISE, JUMPS, STORE, Effect, Operation, Tile
from warp_tiles.codegen.pipelines import body_of, double_buffers, problem_of_unrolled
from warp_tiles.codegen.stages import ASYNC_COPIES_OFF, LoopTarget, plan_ring
from warp_tiles.codegen.stores import plan_accumulator_store
from warp_tiles.codegen.trace import Context, FunctionTrace, Loop, Node, loops, operations, own_operations, path_to
from warp_tiles.gemm.pipeline import PlannedLoop
from warp_tiles.gemm.problem import DTYPE_BYTES, DTYPES

# the least measured share of a loop's speed, without its stages
_SPEED_WITHOUT_STAGES = {"tensor cores": 0.09, "fma": 0.73}
_ALPHA = (
    "alpha is not known before the loop: compute it there, in a variable that is assigned once, "
    "or scale C after the loop"
)
_DOUBLE = DTYPES["float64"].warp_type
# beside a solver of so few rows, or of float32, the addresses of products stay in registers. With recomputed ones,
# blocked factorizations took up to 1.07 times as long on an H200, and less with 32 rows of float64. See
# docs/experiments.md.
_FEW_SOLVER_ROWS = 16
_SHORTEST_COPY = 4  # bytes of an async copy, as shortest_copy() in kernels/module/stage_buffers.cuh

AccumulatorsOf = Callable[[int], LoopAccumulators | str]
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
    """Decides about the loops of one function."""

    context: Context
    accumulators: AccumulatorsOf
    target: LoopTarget
    arrays: _Arrays = field(default_factory=dict)

    def decision(self, loop: Loop, around: tuple[Loop, ...], products: Sequence[Operation]) -> LoopDecision:
        """The decision about one loop with its products."""
        target, cost, ring = self.target, "", None
        buffers: tuple[Buffer, ...] = ()
        store: AccumulatorStore | str = ""
        staged = self._staged(loop, around, products)
        if not isinstance(staged, str) and target.forbidden:
            cost, staged = _cost(staged.loop.instruction, target.forbidden), target.forbidden
        if isinstance(staged, str):
            accumulations, rejections = self._accumulations(loop, around, products, self.accumulators, self.arrays)
            loads, buffers, reasons = self._without_stages(loop, accumulations, rejections)
            # without a function, the reason against accumulators in registers already is the reason
            has_functions = all(product.site in target.variants for product in products)
            if loop.kind != "unrolled" and staged and (loads or (has_functions and staged not in reasons)):
                reasons.append(f"{'not more' if loads else 'no'} stages: {staged}")
            reason = "; ".join(dict.fromkeys(reasons))
        else:
            ring = staged
            accumulations = tuple(product.accumulation for product in ring.products)
            loads = tuple(buffer.load for buffer in ring.buffers.values())
            reason = _reason(ring, target.rejection)
            store = plan_accumulator_store(self.context.function, loop, ring)
        reverse = self._reverse(loop, accumulations, len(products), reason)
        reverse_ring = None if isinstance(reverse, str) else reverse
        planned = PlannedLoop(
            "",
            self.context.function.file,
            loop.line,
            len(products),
            "pipelined" if loads else "register_accumulators" if accumulations else "as_warp",
            2 if loads else 1,
            reason,
            accumulators=_accumulators(ring, reverse_ring),
            registers=max(ring.loop.registers if ring else 0, reverse_ring.answer.registers if reverse_ring else 0),
            reverse=_reverse_reason(reverse),
            reverse_instructions=reverse_ring.answer.instructions if reverse_ring else (),
            store=_store_reason(store),
            cost=cost,
        )
        if ring is not None:
            planned = replace(
                planned,
                stages=ring.loop.stages,
                instruction=ring.loop.instruction,
                operands=max(product.plan.operands for product in ring.products),
                loads=_load_reason(ring),
                shared_bytes=ring.loop.shared_bytes,
                resident_blocks=ring.loop.blocks,
            )
        label, kept = self.context.function.label, None if isinstance(store, str) else store
        return LoopDecision(label, loop.hook, planned, accumulations, loads, buffers, ring, reverse_ring, kept)

    def _staged(self, loop: Loop, around: tuple[Loop, ...], products: Sequence[Operation]) -> Ring | str:
        """Returns the stages of a loop, or the reason why it has none."""
        target = self.target
        if not target.families or not target.ahead or loop.kind == "unrolled":
            return target.rejection

        def accumulators_of(site: int) -> LoopAccumulators | str:
            variant = target.variants.get(site)
            if variant is None:
                return "no function was planned for it"
            return LoopAccumulators(f"staged_{variant.symbol}", "float", 0)

        accumulations, rejections = self._accumulations(loop, around, products, accumulators_of, {})
        if rejections:
            return rejections[0]
        body = body_of(self.context.function, loop, accumulations)
        if isinstance(body, str):
            return body
        return plan_ring(self.context, loop, body, accumulations, target)

    def _accumulations(
        self,
        loop: Loop,
        around: tuple[Loop, ...],
        products: Sequence[Operation],
        accumulators: AccumulatorsOf,
        arrays: _Arrays,
    ) -> tuple[tuple[Accumulation, ...], list[str]]:
        """Returns the products whose accumulators stay in registers, and the rejections of the others."""
        accumulations: list[Accumulation] = []
        rejections: list[str] = []
        for product in products:
            functions = kept_accumulators(self.context, loop, product, accumulators)
            if isinstance(functions, str):
                rejections.append(f"line {product.line}: {functions}" if len(products) > 1 else functions)
                continue
            home = loop.hook
            for outer in reversed(around):
                if isinstance(kept_accumulators(self.context, outer, product, accumulators), str):
                    break
                home = outer.hook
            alpha = product.alpha
            assert alpha is not None
            array = arrays.setdefault((functions, home, product.matrices[2].name, alpha), product.own_hook)
            addition = addition_of(self.context.function, product)
            recomputes = functions.ctype == _DOUBLE and self.context.function.solver_rows() > _FEW_SOLVER_ROWS
            accumulations.append(Accumulation(product, functions, home, array, alpha, addition, recomputes))
        return tuple(accumulations), rejections

    def _without_stages(
        self, loop: Loop, accumulations: tuple[Accumulation, ...], rejections: Sequence[str]
    ) -> tuple[tuple[Operation, ...], tuple[Buffer, ...], list[str]]:
        """Returns the loads that run ahead, their second buffers, and the reasons of the decision."""
        if not accumulations:
            return (), (), [*rejections]
        if rejections:
            return (), (), [*rejections, "the other products keep their accumulators in registers"]
        body = body_of(self.context.function, loop, accumulations) if self.target.ahead else ASYNC_COPIES_OFF
        if isinstance(body, str):
            return (), (), [body]
        if loop.kind == "unrolled":
            if problem := problem_of_unrolled(body, accumulations):
                return (), (), [problem]
            return body.loads, (), ["Warp unrolls the loop, so that each iteration has tiles of its own"]
        variants = [self.target.variants[product.operation.site] for product in accumulations]
        buffers = double_buffers(self.context, body, accumulations, variants)
        if isinstance(buffers, str):
            return (), (), [buffers]
        extra = extra_bytes(buffers)
        in_c = sum(buffer.size_bytes for buffer in buffers) - extra
        places = (in_c, "C's memory, which is idle in the loop"), (extra, "extra shared memory")
        return body.loads, buffers, [f"double buffers of {size} bytes lie in {where}" for size, where in places if size]

    def _reverse(
        self, loop: Loop, accumulations: tuple[Accumulation, ...], products: int, reason: str
    ) -> ReverseRing | str:
        """The stages of a loop's reverse pass, or the reason why it has none; empty without an adjoint."""
        if self.context.function.label not in self.context.module.reversed:
            return ""
        if not self.target.ahead:
            return ASYNC_COPIES_OFF
        if self.target.forbidden:
            return self.target.forbidden
        if len(accumulations) < products:
            return reason
        return plan_reverse(self.context, loop, accumulations, self.target)


def _cost(instruction: str, forbidden: str) -> str:
    """What it costs that a loop has no stages (``benchmarks/results/loops.json``), and the remedy."""
    share = _SPEED_WITHOUT_STAGES["fma" if instruction == "fma" else "tensor cores"]
    return (
        f"{forbidden}, so the loop has no stages, from which {instruction} could multiply. "
        f"Such loops reached {share} of the speed of stages with cublasdx on an H100. Set provider and policy to "
        "'auto' for stages"
    )


def _accumulators(ring: Ring | None, reverse: ReverseRing | None) -> int:
    """Registers of a thread that hold accumulators of staged products, at most."""
    arrays = {one.accumulation.array: one.plan.accumulators for one in ring.products} if ring else {}
    return max(sum(arrays.values()), reverse.answer.accumulators if reverse else 0)


# ---- reasons in words


def _where(extra_bytes: int) -> str:
    return f"with {extra_bytes} bytes of extra shared memory" if extra_bytes else "in idle tiles"


def _reason(ring: Ring, rejection: str) -> str:
    """The decision about stages."""
    found = ring.loop
    stages = f"{found.stages} stages of {found.stage_bytes} bytes"
    reason = f"{found.instruction} multiplies {stages}, {_where(found.extra_bytes)}"
    memory = f"a block has {found.shared_bytes} of {found.shared_limit} bytes of shared memory"
    reasons = [text for text in (reason, memory, found.rejection, rejection, ring.rejection) if text]
    if any(product.plan.swapped for product in ring.products):
        reasons.append("it computes the transpose of C")
    return "; ".join(dict.fromkeys(reasons))


def _reverse_reason(reverse: ReverseRing | str) -> str:
    """The decision about the reverse pass of a loop; empty without one."""
    if isinstance(reverse, str):
        return f"no stages: {reverse}" if reverse else ""
    instructions = " and ".join(reverse.answer.instructions)
    return f"{instructions} from stages of {reverse.stage_bytes} bytes, {_where(reverse.answer.extra_bytes)}"


def _store_reason(store: AccumulatorStore | str) -> str:
    """How the accumulators of a loop reach an array; empty without stages."""
    if isinstance(store, AccumulatorStore):
        return "the accumulators are stored from registers"
    return f"the accumulators pass through shared memory, because {store}" if store else ""


def _load_reason(ring: Ring) -> str:
    """How tiles reach the stages (``kernels/module/stage_buffers.cuh``)."""
    size_bytes = DTYPE_BYTES[ring.products[0].variant.a.dtype]
    word = max(size_bytes, _SHORTEST_COPY)
    odd = " or begins at an odd element" if size_bytes < word else ""
    transposed = {buffer.transposed for buffer in ring.buffers.values()}
    texts = []
    if False in transposed:
        texts.append(
            f"async copies of 16 bytes load tiles, or of {word} bytes where rows begin at other multiples of "
            f"{word}, or threads load elements where a row has gaps{odd}"
        )
    if True in transposed:
        texts.append("async copies of single elements transpose tiles on their way")
    return "; ".join(texts)


# ---- accumulators in registers


def kept_accumulators(
    context: Context, loop: Loop, operation: Operation, accumulators: AccumulatorsOf
) -> LoopAccumulators | str:
    """The functions that keep a product's accumulators in registers over a loop, or the reason why they cannot stay."""
    functions = _functions_of(context, operation, accumulators)
    if isinstance(functions, str):
        return functions
    inside = list(operations(loop.nodes))
    if any(value.name == operation.alpha for other in inside for value in other.results):
        return _ALPHA
    leaving = next((other for other in inside if other.effect is Effect.LEAVES), None)
    if leaving is not None:
        return f"line {leaving.line} returns from within the loop: let it return behind the loop"
    if operation.results:
        return _problem_of_new_tile(context, loop, operation) or functions
    c = operation.matrices[2]
    if any(made.name in c.memory for other in inside for made in other.results):
        return "C is a new tile in each iteration"  # e.g. the scores of attention: no change of the loop helps
    totals = {other.matrices[2].name for other in inside if other.product is not None}
    for other in inside:
        adds = other.product is not None and not other.results and other.matrices[2].memory == c.memory
        if adds:
            found = _functions_of(context, other, accumulators)
            if isinstance(found, str):
                return f"line {other.line}: {found}"
            # without accumulators in stages, count is that of a function
            if other.alpha != operation.alpha and functions.count:
                return f"line {other.line}: it has another alpha, which needs accumulators of its own: use one alpha"
        if other.effect is Effect.ALIAS and not totals & {tile.name for tile in other.results}:
            continue  # it makes a view, of which only users read and write elements
        accessed = other.matrices[:2] if adds else other.tiles
        if any(_overlap(context, other, c, tile) for tile in accessed):
            return _uses(other, "C")
    return functions


def _uses(other: Operation, what: str) -> str:
    """The reason against accumulators in registers that an operation needs in each iteration."""
    remedy = ": store it behind the loop" if other.name == STORE else ""
    return f"line {other.line}: {other.name} uses {what} in each iteration{remedy}"


def _overlap(context: Context, at: Operation, c: Tile, tile: Tile) -> bool:
    """True if C and another tile may share memory when the program runs an operation."""
    if not context.may_overlap(c, tile):
        return False
    from warp_tiles.codegen.windows import are_disjoint  # few loops need it

    return not are_disjoint(context.function, at, c, tile)


def addition_of(function: FunctionTrace, operation: Operation) -> Addition | None:
    """Returns what adds a new tile C to another one after a product makes C, if it is in the same block."""
    if not operation.results:
        return None
    block, index = path_to(function.nodes, operation)[-1]
    jumps = (at for at, node in enumerate(block) if any(one.name in JUMPS for one in operations((node,))))
    straight = block[index + 1 : min((at for at in jumps if at > index), default=None)]
    c = operation.matrices[2].name
    for node in straight:
        if not isinstance(node, Operation) or node.hook is None:
            continue
        names = [tile.name for tile in node.tiles]
        builtin = node.elementwise
        if builtin is None or not builtin.sum_sign:
            continue
        if builtin.updates is not None and names[1:] == [c] and names[0] != c:
            return _addition(function, (node,), node.tiles[0], operation, builtin.sum_sign)
        if builtin.updates is None and c in names:
            return _assigned_sum(function, straight, node, operation)
    return None


def _addition(
    function: FunctionTrace, statements: tuple[Operation, ...], target: Tile, product: Operation, sign: int
) -> Addition:
    """The addition of a product's new tile C: direct if the target is dense and begins where a tile's memory does."""
    c = product.matrices[2]
    alike = target.storage == "shared" and (target.dtype, target.shape) == (c.dtype, c.shape)
    sizes = {
        tile.size_bytes
        for one in function.operations()
        for tile in one.tiles
        if alike and tile.owner and {tile.name} == target.memory
    }
    is_direct = sizes == {target.size_bytes} and target.dense and c.dense
    return Addition(statements, target, sign, is_direct)


def _assigned_sum(
    function: FunctionTrace, block: Sequence[Node], operation: Operation, product: Operation
) -> Addition | None:
    """Returns ``s = s + C``, ``s = C + s`` or ``s = s - C`` if nothing else reads the result of the operator."""
    c = product.matrices[2].name
    *operands, result = (tile.name for tile in operation.tiles)
    readers = [one for one in function.operations() if one is not operation and result in {t.name for t in one.tiles}]
    target = readers[0].assigned_tile if len(readers) == 1 and readers[0] in block else None
    if target is None or target.name == c:
        return None
    sign = ELEMENTWISE[operation.name].sum_sign
    forms = [[target.name, c], [c, target.name]] if sign == 1 else [[target.name, c]]
    if operands not in forms:
        return None
    return _addition(function, (operation, readers[0]), target, product, sign)


def _problem_of_new_tile(context: Context, loop: Loop, operation: Operation) -> str:
    """The reason why a product that makes a new tile cannot keep its accumulators in registers; empty if it can."""
    c = operation.matrices[2]
    addition = addition_of(context.function, operation)
    if addition is None:
        is_added = any(_adds(other, c) for other in operations(loop.nodes))
        remedy = ": add to one tile with wp.tile_matmul(a, b, c)" if is_added else ", and is not added to a sum"
        return f"the product is a new tile in each iteration{remedy}"
    if loop.kind == "unrolled":
        return "Warp unrolls the loop, and each iteration has a new tile: use wp.tile_matmul(a, b, c)"
    for other in context.function.operations():
        if other not in (operation, *addition.statements) and any(_touches(context, c, tile) for tile in other.tiles):
            return f"line {other.line}: {other.name} uses the new tile too: use wp.tile_matmul(a, b, c)"
    target = addition.target
    for other in operations(loop.nodes):
        if other not in addition.statements and any(_touches(context, target, tile) for tile in other.tiles):
            return _uses(other, "the sum")
    return ""


def _adds(operation: Operation, c: Tile) -> bool:
    """True if an operation adds a tile to another one, or subtracts it."""
    builtin = operation.elementwise
    if builtin is None or not builtin.sum_sign:
        return False
    is_symmetric = builtin.updates is None and builtin.sum_sign == 1
    return c in operation.tiles[0 if is_symmetric else 1 : 2]


def _touches(context: Context, one: Tile, other: Tile) -> bool:
    return one.name == other.name or context.may_overlap(one, other)


def _functions_of(context: Context, operation: Operation, accumulators: AccumulatorsOf) -> LoopAccumulators | str:
    product = operation.product
    assert product is not None
    if product.alpha is None:
        return _ALPHA
    if isinstance(product.alpha, float) and not math.isfinite(product.alpha):
        return f"alpha is {product.alpha}, which changes zeros: use a finite number"
    if product.beta != 1.0 and not operation.results:
        return "beta is not the constant 1: scale C before the loop"
    a, b, c = operation.matrices
    if any(_overlap(context, operation, c, tile) for tile in (a, b)):
        return "C may share memory with A or B: use tiles of their own"
    return accumulators(product.site)
