"""Decides about loops: which keep the sums of their products in registers, and which load tiles ahead.

The conditions are in :mod:`warp_tiles.codegen.sums` and :mod:`warp_tiles.codegen.pipelines`. All functions are pure, on
a :class:`warp_tiles.codegen.trace.ModuleTrace`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from warp_tiles.codegen.pipelines import Body, Pipeline, body_of, plan_pipeline
from warp_tiles.codegen.reverse import ReverseRing, plan_reverse
from warp_tiles.codegen.stages import LoopTarget, Ring, plan_ring
from warp_tiles.codegen.sum_stores import SumStore, plan_sum_store
from warp_tiles.codegen.sums import Accumulation, LoopSums, SumsOf, addition_of, obstacle_to_sums
from warp_tiles.codegen.trace import FunctionTrace, Loop, ModuleTrace, Operation, loops, own_operations
from warp_tiles.gemm.problem import DTYPE_BYTES

__all__ = ["LoopDecision", "LoopSums", "LoopTarget", "decide"]

# the least measured share of a loop's speed, without its stages
_SPEED_WITHOUT_STAGES = {"tensor cores": 0.09, "fma": 0.73}
_SHORTEST_COPY = 4  # bytes of an async copy, as shortest_copy() in kernels/module/slots.cuh


@dataclass(frozen=True)
class LoopDecision:
    """The decision about one loop.

    Attributes:
        function: Label of the function that contains the loop.
        products: Number of its products, without those of inner loops.
        accumulations: The products whose sums stay in registers.
        pipeline: None if the loop does not load ahead.
        reason: The condition that makes the state possible, or the obstacle to a better one.
        reverse: The stages of its reverse pass, or the reason why that has none; empty without a reverse pass.
        sum_store: The store that takes the sums from registers, or the reason why C is written; empty without stages.
        cost: What a setting that forbids stages costs the loop, and the remedy; empty if none does.
    """

    function: str
    loop: Loop
    products: int
    accumulations: tuple[Accumulation, ...]
    pipeline: Pipeline | None
    reason: str
    reverse: ReverseRing | str = ""
    sum_store: SumStore | str = ""
    cost: str = ""

    @property
    def state(self) -> str:
        """``pipelined``, ``register_sums`` or ``as_warp``."""
        if self.pipeline is not None:
            return "pipelined"
        return "register_sums" if self.accumulations else "as_warp"

    @property
    def stages(self) -> int:
        """Number of buffers of each tile that the loop loads."""
        return self.pipeline.stages if self.pipeline is not None else 1

    @property
    def ring(self) -> Ring | None:
        """The stages of the loop; None if it has none."""
        return self.pipeline.ring if self.pipeline is not None else None

    @property
    def instruction(self) -> str:
        """The instruction of staged products; empty without stages."""
        return self.ring.loop.instruction if self.ring else ""

    @property
    def sums(self) -> int:
        """Registers of a thread that hold sums of staged products, at most."""
        backward = self.reverse.answer.sums if isinstance(self.reverse, ReverseRing) else 0
        if self.ring is None:
            return backward
        products = zip(self.accumulations, self.ring.products)
        return max(backward, sum({c.array: product.sums for c, product in products}.values()))

    @property
    def operands(self) -> int:
        """Registers of a thread that hold operands of staged products without tensor cores, at most."""
        return max((product.operands for product in self.ring.products), default=0) if self.ring else 0

    @property
    def resources(self) -> tuple[int, int, int]:
        """Shared bytes of a block, registers of a thread and resident blocks with stages; zeros without."""
        if self.ring is None:
            return 0, 0, 0
        return self.ring.loop.shared_bytes, self.ring.loop.registers, self.ring.loop.blocks

    @property
    def extra_bytes(self) -> int:
        """Bytes of shared memory that the function needs for stages beyond its tiles."""
        return self.ring.loop.extra_bytes if self.ring else 0

    @property
    def store_reason(self) -> str:
        """How the sums reach an array, in words; empty without stages."""
        if isinstance(self.sum_store, SumStore):
            return "the sums are stored from registers"
        return f"the sums pass through shared memory: {self.sum_store}" if self.sum_store else ""

    @property
    def load_reason(self) -> str:
        """How tiles reach the stages, in words; empty without stages (``kernels/module/slots.cuh``)."""
        if self.ring is None:
            return ""
        size_bytes = DTYPE_BYTES[self.ring.variants[0].a.dtype]
        word = max(size_bytes, _SHORTEST_COPY)
        odd = " or begins at an odd element" if size_bytes < word else ""
        transposed = {slot.transposed for slot in self.ring.slots.values()}
        texts = []
        if False in transposed:
            texts.append(
                f"async copies of 16 bytes load tiles, or of {word} bytes where rows begin at other multiples of "
                f"{word}, or threads load elements where a row has gaps{odd}"
            )
        if True in transposed:
            texts.append("async copies of single elements transpose tiles on their way")
        return "; ".join(texts)

    @property
    def reverse_extra_bytes(self) -> int:
        """The same for its reverse pass, beyond the tiles and their gradients."""
        return self.reverse.answer.extra_bytes if isinstance(self.reverse, ReverseRing) else 0

    @property
    def reverse_reason(self) -> str:
        """The decision about its reverse pass in words; empty without one."""
        if isinstance(self.reverse, ReverseRing):
            return self.reverse.reason
        return f"no stages: {self.reverse}" if self.reverse else ""

    @property
    def reverse_instructions(self) -> tuple[str, ...]:
        """The instructions of staged products of its reverse pass; empty without stages."""
        return self.reverse.answer.instructions if isinstance(self.reverse, ReverseRing) else ()


def decide(
    module: ModuleTrace,
    function: FunctionTrace,
    sums: SumsOf,
    *,
    ahead: bool,
    target: LoopTarget | None = None,
) -> tuple[LoopDecision, ...]:
    """Decides about every loop of a function that contains products.

    Args:
        module: The whole module, for calls of the function.
        function: The function.
        sums: Finds the functions that keep the sums of a site.
        ahead: True if tiles may be loaded ahead.
        target: What loops may use; None without stages.
    """
    target = target or LoopTarget()
    decisions = []
    arrays: dict[tuple[LoopSums, int, str], int] = {}
    for loop, around in loops(function.nodes):
        products = [operation for operation in own_operations(loop) if operation.product is not None]
        if not products:
            continue
        staged, cost = _staged(module, function, loop, around, products, ahead, target), ""
        if isinstance(staged, LoopDecision) and target.forbidden:
            cost = _cost(staged.instruction, target.forbidden)
            staged = target.forbidden
        if isinstance(staged, LoopDecision):
            decisions.append(_with_reverse(module, function, staged, ahead, target))
            continue
        accumulations, obstacles = _accumulations(module, function, loop, around, products, sums, arrays)
        pipeline, reasons = _pipeline(module, function, loop, accumulations, obstacles, ahead)
        # without a function, the obstacle to sums in registers already is the reason
        has_functions = all(product.product.site in target.variants for product in products if product.product)
        if loop.kind != "unrolled" and staged and (pipeline is not None or (has_functions and staged not in reasons)):
            reasons.append(f"{'no' if pipeline is None else 'not more'} stages: {staged}")
        text = "; ".join(dict.fromkeys(reasons))
        decision = LoopDecision(function.label, loop, len(products), accumulations, pipeline, text, cost=cost)
        decisions.append(_with_reverse(module, function, decision, ahead, target))
    return tuple(decisions)


def _cost(instruction: str, forbidden: str) -> str:
    """What it costs that a loop has no stages (``benchmarks/results/forced_provider.json``), and the remedy."""
    share = _SPEED_WITHOUT_STAGES["fma" if instruction == "fma" else "tensor cores"]
    return (
        f"{forbidden}, so the loop has no stages, from which {instruction} could multiply. "
        f"Such loops reached {share} of the speed of stages with cublasdx on an H100. Set provider and policy to "
        "'auto' for stages"
    )


def _with_reverse(
    module: ModuleTrace, function: FunctionTrace, decision: LoopDecision, ahead: bool, target: LoopTarget
) -> LoopDecision:
    """Returns a decision with that about the loop's reverse pass, if the function has an adjoint."""
    if function.label not in module.reversed:
        return decision
    if not ahead:
        return replace(decision, reverse="the setting async_copies is off")
    if target.forbidden:
        return replace(decision, reverse=target.forbidden)
    if len(decision.accumulations) < decision.products:
        return replace(decision, reverse=decision.reason)
    body = body_of(function, decision.loop, decision.accumulations)
    found = plan_reverse(module, function, decision.loop, body, decision.accumulations, target)
    return replace(decision, reverse=found)


def _staged(
    module: ModuleTrace,
    function: FunctionTrace,
    loop: Loop,
    around: tuple[Loop, ...],
    products: Sequence[Operation],
    ahead: bool,
    target: LoopTarget,
) -> LoopDecision | str:
    """Returns the decision about a loop that loads into stages, or the reason why it does not."""
    if not target.families or not ahead or loop.kind == "unrolled":
        return target.obstacle

    # equal products that add to one C share their sums
    def sums_of(site: int) -> LoopSums | str:
        variant = target.variants.get(site)
        return LoopSums(f"staged_{variant.symbol}", "float", 0) if variant else "no function was planned for it"

    accumulations, obstacles = _accumulations(module, function, loop, around, products, sums_of, {})
    if obstacles:
        return obstacles[0]
    body = body_of(function, loop, accumulations)
    if not isinstance(body, Body):
        return body
    ring = plan_ring(module, function, loop, body.block, body.loads, accumulations, target)
    if not isinstance(ring, Ring):
        return ring
    found = ring.loop
    where = f"with {found.extra_bytes} bytes of extra shared memory" if found.extra_bytes else "in idle tiles"
    reason = f"{found.instruction} multiplies {found.stages} stages of {found.stage_bytes} bytes, {where}"
    memory = f"a block has {found.shared_bytes} of {found.shared_limit} bytes of shared memory"
    reasons = [text for text in (reason, memory, found.obstacle, target.obstacle, ring.obstacle) if text]
    if any(product.swapped for product in ring.products):
        reasons.append("it computes the transpose of C")
    pipeline = Pipeline((), accumulations, body.loads, ring)
    store = plan_sum_store(function, loop, accumulations, ring)
    return LoopDecision(
        function.label, loop, len(products), accumulations, pipeline, "; ".join(reasons), sum_store=store
    )


def _accumulations(
    module: ModuleTrace,
    function: FunctionTrace,
    loop: Loop,
    around: tuple[Loop, ...],
    products: Sequence[Operation],
    sums: SumsOf,
    arrays: dict[tuple[LoopSums, int, str], int],
) -> tuple[tuple[Accumulation, ...], list[str]]:
    """Returns the products whose sums stay in registers, and the obstacles of the others."""
    accumulations: list[Accumulation] = []
    obstacles: list[str] = []
    for operation in products:
        obstacle = obstacle_to_sums(module, function, loop, operation, sums)
        if obstacle:
            obstacles.append(f"line {operation.line}: {obstacle}" if len(products) > 1 else obstacle)
            continue
        home = loop
        for outer in reversed(around):
            if obstacle_to_sums(module, function, outer, operation, sums):
                break
            home = outer
        assert operation.product is not None
        assert operation.hook is not None
        functions = sums(operation.product.site)
        assert isinstance(functions, LoopSums)
        array = arrays.setdefault((functions, home.hook, operation.matrices[2].name), operation.hook)
        addition = addition_of(function, operation)
        accumulations.append(Accumulation(operation, functions, home, array, addition))
    return tuple(accumulations), obstacles


def _pipeline(
    module: ModuleTrace,
    function: FunctionTrace,
    loop: Loop,
    accumulations: tuple[Accumulation, ...],
    obstacles: Sequence[str],
    ahead: bool,
) -> tuple[Pipeline | None, list[str]]:
    """Returns the pipeline of a loop, if it has one, and the reasons of the decision."""
    if not accumulations:
        return None, [*obstacles]
    if obstacles:
        return None, [*obstacles, "the other products keep their sums in registers"]
    if not ahead:
        return None, ["the setting async_copies is off"]
    pipeline = plan_pipeline(module, function, loop, accumulations)
    if not isinstance(pipeline, Pipeline):
        return None, [pipeline]
    if loop.kind == "unrolled":
        return pipeline, ["Warp unrolls the loop, so that each iteration has tiles of its own"]
    return pipeline, [f"double buffers of {pipeline.buffer_bytes} bytes lie in C's memory, which is idle in the loop"]
