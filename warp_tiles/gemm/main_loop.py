"""The problem of a loop of products, and the choosers of its pipeline and of its reverse pass.

They are pure: every machine gets the same result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from warp_tiles.gemm.hardware import (
    LANES,
    accumulator_registers,
    allows_pair,
    max_registers,
    multiprocessor,
    pair_limit,
    resident_blocks,
    shared_limit,
)
from warp_tiles.gemm.pipeline import (
    AUTO,
    LEAST_STAGES,
    MOST_STAGES,
    STAGE_ALIGNMENT,
    InstructionFamily,
    LoopMemory,
    MmaPlan,
    PipelineConfig,
    PipelineOverrides,
    accumulators_of,
    products_registers,
    staged_product,
    uses_fma,
)
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem, Operand, dense_operand
from warp_tiles.gemm.rejected import Refused, Rejected, accepted, counted, refuse, rejectable

_LARGE_SIDE = 128  # of a tile of C


@dataclass(frozen=True)
class LoopPlan:
    """How a loop is computed in stages.

    ``form`` is the number of the form of the operands in stage buffers, ``rejection`` why wgmma computes no product,
    although it could compute some of them.
    """

    loop: PipelineConfig
    form: int
    products: tuple[MmaPlan, ...]
    accumulators: int
    rejection: Rejected | None = None

    @property
    def code(self) -> LoopPlan:
        """The plan without its reasons. Equal ones make equal code."""
        return replace(self, loop=replace(self.loop, rejection=None), rejection=None)


@dataclass(frozen=True)
class LoopProblem:
    """What decides the pipeline of a loop.

    Attributes:
        forms: The products of the loop with their operands as they lie in stage buffers. If tiles are transposed there,
            a second form has none transposed. The first form that an instruction can multiply counts.
        arrays: The number of the array of accumulators of each product; products of one array add to one C.
        iterations: Iterations of the loop, rounded up to a power of two; 0 if they are known at a launch alone.
        may_double_buffer: True if double buffers are better where few blocks are resident with stages.
        double_buffers_reason: Why the loop keeps double buffers although it could have stages.
        registers: Registers of a thread that the link of the module allows; None for all that a block may have. They
            follow from all plans of the module, so they are no part of its identity.
    """

    forms: tuple[tuple[GemmProblem, ...], ...]
    arrays: tuple[int, ...]
    families: tuple[InstructionFamily, ...]
    memory: LoopMemory
    iterations: int = 0
    may_double_buffer: bool = False
    double_buffers_reason: Rejected | None = field(default=None, compare=False)
    registers: int | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        memory = asdict(self.memory)
        if not self.memory.beside_solvers:
            del memory["beside_solvers"]  # so that earlier records count
        return {
            "products": [problem.to_json() for problem in self.forms[0]],
            "arrays": list(self.arrays),
            "families": " ".join(sorted(self.families)),
            **memory,
            "iterations": self.iterations,
        }

    def describe(self) -> str:
        """A line for messages, e.g. ``loop of 128x128x64 float16 x float16 -> float32, 256 threads, sm_90``."""
        first, more = self.forms[0][0], len(self.arrays) - 1
        further = f" and {more} more" if more else ""
        many = f", at most {self.iterations} iterations" if self.iterations else ""
        return f"loop of {first.describe()}{further}, {self.memory.stage_bytes} bytes a stage{many}"

    def plan_alone(self, overrides: PipelineOverrides = AUTO) -> LoopPlan | Rejected:
        """The plan in a module without other loops: with the register limit of two blocks if it allows that."""
        arch, threads = self.forms[0][0].arch, self.forms[0][0].threads
        if (limit := pair_limit(arch, threads)) is not None:
            paired = replace(self, registers=limit).plan(overrides)
            if isinstance(paired, Rejected) or allows_pair(
                arch, limit, paired.loop.registers, alone=paired.loop.blocks == 1
            ):
                return paired
        return self.plan(overrides)

    @rejectable
    def plan(self, overrides: PipelineOverrides = AUTO) -> LoopPlan:
        """The pipeline with some fields fixed, or the reason why the loop has no stages."""
        if overrides.family == "double_buffered":
            raise Refused(Rejected("double_buffers_asked"))
        families: Collection[InstructionFamily] = self.families if overrides.family is None else (overrides.family,)
        refuse(not set(families) <= set(self.families), "family", overrides.family)
        fixes_fields = replace(overrides, family=None) != AUTO
        if not fixes_fields:
            accepted(self.double_buffers_reason)
        planned = [_plans(form, families, overrides) for form in self.forms]
        number = next((number for number, plans in enumerate(planned) if not isinstance(plans, Rejected)), -1)
        plans, rejection = accepted(planned[number])
        accumulators = sum({array: plan.accumulators for array, plan in zip(self.arrays, plans)}.values())
        products = list(zip(self.forms[number], plans))
        loop = self._pipeline(products, accumulators, overrides, is_fixed=fixes_fields)
        return LoopPlan(loop, number, plans, accumulators, rejection)

    def _pipeline(
        self,
        products: Sequence[tuple[GemmProblem, MmaPlan]],
        accumulators: int,
        choice: PipelineOverrides,
        *,
        is_fixed: bool,
    ) -> PipelineConfig:
        """The pipeline. It is refused if shared memory does not suffice.

        The order of pipelines by mma.sync and fma is that of :func:`_preference`. With wgmma and beside solvers, two
        resident blocks come before more stages, because they cover the time in which one of them waits. With wgmma, a
        ring of four stages or more keeps the products of one iteration in flight. If ``choice`` has a number of
        resident blocks, so many share all memory for their stages.

        Args:
            accumulators: Registers of a thread that hold accumulators of all products.
            is_fixed: True if ``choice`` fixes a field, so that double buffers are no alternative.
        """
        (problem, product), memory = products[0], self.memory
        arch, threads = problem.arch, problem.threads
        needed = products_registers(arch, [product for _, product in products], accumulators)
        allowed = self.registers or max_registers(arch, threads) or multiprocessor(arch).thread_registers
        used = min(needed, allowed)
        limit = shared_limit(arch, threads)
        most = MOST_STAGES if choice.blocks else _useful_stages(product, blocks=1)
        counts = range(LEAST_STAGES, most + 1) if choice.stages is None else (choice.stages,)
        possible = [count for count in counts if _is_possible(product, count, choice.in_flight or 0)]
        refuse(not possible, "none_in_flight", product.instruction, counts[0])
        pipelines = []
        for stages in possible:
            ring = stages * memory.stage_bytes
            total = memory.total_bytes(ring)
            if total > limit:
                continue
            blocks = max(1, resident_blocks(arch, threads, shared_bytes=total, registers=used))
            in_flight = choice.in_flight
            if in_flight is None:
                in_flight = int(stages >= _OVERLAPPED_STAGES and _is_possible(product, stages, 1))
            pipelines.append(
                PipelineConfig(
                    product.instruction,
                    stages,
                    in_flight,
                    memory.stage_bytes,
                    memory.extra_bytes(ring),
                    blocks,
                    shared_bytes=total,
                    shared_limit=limit,
                    registers=needed,
                )
            )
        total = memory.total_bytes(possible[0] * memory.stage_bytes)
        refuse(not pipelines, "stages_do_not_fit", possible[0], memory.stage_bytes, total, limit)
        is_slow = product.instruction == "fma" or problem.a.dtype == "float64"
        least_warps = LEAST_WARPS if is_slow else _LEAST_MMA_WARPS
        least_warps = _LEAST_WARPS_BESIDE_SOLVERS if memory.beside_solvers else least_warps
        if choice.blocks or product.instruction == "wgmma" or memory.beside_solvers:
            wanted = choice.blocks or (2 if product.instruction == "wgmma" else max(2, least_warps * LANES // threads))
            is_given = bool(choice.blocks or choice.stages)
            useful = [loop for loop in pipelines if is_given or loop.stages <= _useful_stages(product, loop.blocks)]
            first = most if is_given else _USEFUL_STAGES
            best = max(
                useful, key=lambda loop: (min(loop.blocks, wanted), min(loop.stages, first), loop.blocks, loop.stages)
            )
        else:
            is_float64 = problem.a.dtype == "float64"
            best = max(
                pipelines, key=partial(_preference, threads=threads, needs_warps=is_slow, needs_blocks=is_float64)
            )
        resident = resident_blocks(arch, threads, shared_bytes=memory.around_bytes + memory.tile_bytes, registers=used)
        if choice.stages is None and choice.blocks is None and product.instruction != "wgmma":
            rivals = self.may_double_buffer and not is_fixed
            _refuse_few_blocks(best, product, threads, max(1, resident), least_warps, rivals)
        return replace(best, rejection=_reason_for_no_more(best, pipelines, possible))


def loop_problem(
    products: Sequence[tuple[GemmProblem, tuple[str, str]]],
    families: tuple[InstructionFamily, ...],
    memory: LoopMemory,
    *,
    arrays: tuple[int, ...],
    iterations: int = 0,
    registers: int | None = None,
) -> LoopProblem:
    """The problem of a loop whose products have operands as they lie in tiles.

    Args:
        products: The forward products, each with the names of the tiles that are its operands.
        iterations: The iterations of the loop, not rounded; 0 if only a launch knows them. See :class:`LoopProblem`
            for the others.
    """
    return LoopProblem(
        tuple(tuple(_in_buffers(*product, tiles) for product in products) for tiles in transpositions(products)),
        arrays,
        families,
        memory,
        1 << (iterations - 1).bit_length() if iterations else 0,
        may_double_buffer=all(_rivals_double_buffers(problem) for problem, _ in products),
        double_buffers_reason=next(
            filter(None, (reason_for_double_buffers(problem, memory.beside_solvers) for problem, _ in products)), None
        ),
        registers=registers,
    )


def transpositions(products: Sequence[tuple[GemmProblem, tuple[str, str]]]) -> tuple[frozenset[str], ...]:
    """The tiles whose stage buffers are transposed, in each form of the operands.

    Lanes without tensor cores multiply vectors along M and N. So float32 tiles are transposed that products have
    contiguous along K. Two transposed tiles take many copies, which only large tiles of C are worth. If products want
    a tile in both ways, no tile is transposed, because products with one C have one type.
    """
    wanted: dict[str, set[bool]] = {}
    for problem, (a, b) in products:
        a_along, b_along = problem.a.arrangement == "row_major", problem.b.arrangement == "col_major"
        may_transpose = uses_fma(problem)
        may_transpose = may_transpose and (min(problem.m, problem.n) >= _LARGE_SIDE or not (a_along and b_along))
        wanted.setdefault(a, set()).add(a_along and may_transpose)
        wanted.setdefault(b, set()).add(b_along and may_transpose)
    if any(len(choices) > 1 for choices in wanted.values()):
        return (frozenset(),)
    return tuple(dict.fromkeys((frozenset(n for n, choices in wanted.items() if choices == {True}), frozenset[str]())))


def _in_buffers(problem: GemmProblem, operands: tuple[str, str], transposed: Collection[str]) -> GemmProblem:
    """A product with its operands as they lie in stage buffers."""
    a, b = operands
    if not problem.is_dense:
        return problem
    if a in transposed:
        problem = replace(problem, a=replace(problem.a, arrangement="col_major", leading_dimension=problem.m))
    if b in transposed:
        problem = replace(problem, b=replace(problem.b, arrangement="row_major", leading_dimension=problem.n))
    return problem


@dataclass(frozen=True)
class MeasuredPipeline:
    """The fastest pipeline of a loop, by measurement: what it fixes, and its speed as text for the plan."""

    overrides: PipelineOverrides
    reason: str


class PipelineMeasurements(Protocol):
    """Measured pipelines. They count before the heuristics, and after a setting."""

    def pipeline(self, problem: LoopProblem) -> MeasuredPipeline | None:
        """The fastest measured pipeline of a loop; None leaves the choice to the heuristics."""


@rejectable
def _plans(
    products: Sequence[GemmProblem], families: Collection[InstructionFamily], overrides: PipelineOverrides
) -> tuple[tuple[MmaPlan, ...], Rejected | None]:
    """How each product is computed, by one instruction, and the ``rejection`` of the plan; or the reason for none."""
    plans = tuple(accepted(staged_product(problem, families, overrides)) for problem in products)
    if len({plan.instruction for plan in plans}) == 1:
        return plans, None
    refuse(not {"wgmma", "mma"} <= set(families), "several_instructions")
    mma: tuple[InstructionFamily, ...] = ("mma",)
    without, _ = accepted(_plans(products, mma, overrides))
    return without, Rejected("partly_wgmma")


# ---- the chooser

_USEFUL_STAGES = 4  # if other blocks multiply meanwhile; more hide no more latency then
_LOADS_IN_FLIGHT = 8  # stages of a multiprocessor that are being loaded; more hide no more latency
_OVERLAPPED_STAGES = 4  # with so many, loads have enough beside the one of products in flight
LEAST_WARPS = 8  # of a multiprocessor, so that others multiply while one waits for its block
_LEAST_MMA_WARPS = 4  # for 16-bit types and tf32, one for each scheduler; in fp64, two blocks of 4 warps were faster
# beside solvers: with 8 resident warps, five of six blocked factorizations in fp64 took 1.13 to 1.56 times as long with
# stages; with 20, those in fp32 took half as long or less (benchmarks/results/solvers.json)
_LEAST_WARPS_BESIDE_SOLVERS = 20
_LEAST_FMA_ACCUMULATORS = 32  # of a thread
# in extra memory, double buffers made loops with a start value of C 1.0 to 1.3 times as fast on an H200; with 4
# accumulators of a thread, or with fewer blocks of few warps, they took up to 1.1 times as long (docs/experiments.md)
_LEAST_BUFFERED_ACCUMULATORS, _LEAST_BUFFERED_WARPS = 8, 20
# beside solvers, where B is contiguous along K: blocked factorizations took 1.08 to 1.23 times as long with stages if a
# thread had 2, and half as long or less if it had 8 (benchmarks/results/solvers.json)
_LEAST_ACCUMULATORS_BESIDE_SOLVERS = 4
# with so many accumulators of a thread, two blocks were slower than double buffers
_MANY_FMA_ACCUMULATORS, _LEAST_FMA_BLOCKS = 64, 3


def _rivals_double_buffers(problem: GemmProblem) -> bool:
    """True for products that are fast from double buffers too: those by fma, if the rows of B are contiguous."""
    return uses_fma(problem) and problem.b.arrangement == "row_major"


def reason_for_double_buffers(problem: GemmProblem, beside_solvers: bool = False) -> Rejected | None:
    """The reason why a loop keeps double buffers although it could have stages; None if it has none.

    On an H200, stages made fp32 loops with 32 accumulators of a thread or more 1.01 to 1.08 times as fast
    (``benchmarks/results/loops.json``).

    Args:
        problem: The forward product, with its operands as they lie in tiles.
        beside_solvers: See :class:`LoopMemory`.
    """
    accumulators, code, least = accumulators_of(problem), "", 0
    if _rivals_double_buffers(problem):
        code, least = "few_accumulators", _LEAST_FMA_ACCUMULATORS
    elif beside_solvers and uses_fma(problem):
        code, least = "few_accumulators_beside_solver", _LEAST_ACCUMULATORS_BESIDE_SOLVERS
    return Rejected(code, (_few(accumulators), least)) if accumulators < least else None


def _few(accumulators: int) -> str:
    return {0: "less than one accumulator", 1: "one accumulator"}.get(accumulators, f"{accumulators} accumulators")


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def _useful_stages(product: MmaPlan, blocks: int) -> int:
    """Stages beyond which a loop gains nothing, more for one or two blocks with ``wgmma`` (docs/experiments.md)."""
    return _USEFUL_STAGES + max(0, 3 - blocks) if product.instruction == "wgmma" else _USEFUL_STAGES


def _preference(loop: PipelineConfig, threads: int, needs_warps: bool, needs_blocks: bool) -> tuple[int, ...]:
    """The order of pipelines by mma.sync or fma, the best one last.

    Loads in flight count first, until enough hide the latency of memory; then resident blocks, which multiply while one
    waits at its barrier; then stages. Products by fma and in fp64 need a number of warps before that, and those in fp64
    two blocks (``benchmarks/results/against.json``, ``benchmarks/results/other_gpus.json``).
    """
    warps = min(loop.blocks * threads // LANES, LEAST_WARPS) if needs_warps else 0
    blocks = min(loop.blocks, 2) if needs_blocks else 0
    in_flight = min(loop.blocks * (loop.stages - 1), _LOADS_IN_FLIGHT)
    return warps, blocks, in_flight, loop.blocks, loop.stages


def _reason_for_no_more(
    best: PipelineConfig, fitting: Sequence[PipelineConfig], possible: Sequence[int]
) -> Rejected | None:
    """Why a pipeline has no more stages, given all that fit and all numbers of stages that were tried."""
    fuller = next((loop for loop in fitting if loop.stages > best.stages), None)
    if fuller is not None:
        values = _ordinal(fuller.stages), counted(fuller.blocks, "resident block"), best.blocks
        return Rejected("next_stage_leaves_fewer_blocks", values) if fuller.blocks < best.blocks else None
    more = next((stages for stages in possible if stages > best.stages), 0)
    return Rejected("next_stage_does_not_fit", (_ordinal(more),)) if more else None


def _refuse_few_blocks(
    loop: PipelineConfig, product: MmaPlan, threads: int, without: int, least_warps: int, may_double_buffer: bool
) -> None:
    """Refuses few resident blocks, which are slower than double buffers."""
    warps = loop.blocks * threads // LANES
    refuse(may_double_buffer and warps < LEAST_WARPS, "few_warps", warps, LEAST_WARPS)
    many_accumulators = may_double_buffer and product.accumulators >= _MANY_FMA_ACCUMULATORS
    are_few = warps < least_warps or (many_accumulators and loop.blocks < _LEAST_FMA_BLOCKS)
    resident = counted(loop.blocks, "resident block")
    refuse(loop.blocks < without and are_few, "few_blocks", resident, threads, without)


@rejectable
def reason_for_no_buffers(problems: Sequence[GemmProblem], memory: LoopMemory, extra_bytes: int) -> None:
    refuse(memory.beside_solvers, "buffers_beside_solver")
    accumulators, least = min(map(accumulators_of, problems)), _LEAST_BUFFERED_ACCUMULATORS
    refuse(accumulators < least, "few_accumulators_for_buffers", _few(accumulators), least)
    tiles, arch, threads = memory.around_bytes + memory.tile_bytes, problems[0].arch, problems[0].threads
    total, limit = tiles + extra_bytes, shared_limit(arch, threads)
    refuse(total > limit, "buffers_do_not_fit", total, limit)
    blocks, without = (resident_blocks(arch, threads, shared_bytes=shared) for shared in (total, tiles))
    are_few = blocks < without and blocks * threads < LANES * _LEAST_BUFFERED_WARPS
    refuse(are_few, "few_blocks_with_buffers", counted(blocks, "resident block"), threads, without)


def _is_possible(product: MmaPlan, stages: int, in_flight: int) -> bool:
    """True if a ring can have so many stages: each iteration that the block waits for is loaded before (``Ring``)."""
    may_be_in_flight = not in_flight or product.instruction == "wgmma"
    return may_be_in_flight and stages - in_flight >= 2


# ---- the reverse pass

# The reverse pass of C += A B computes two products in each iteration: G B^T and A^T G, where G is the gradient of C.
# Each is computed in the orientation of the tile that the loop loads, so that the result has its place in a stage.
# An iteration's products take longer than the loads of the next one. A third stage gains nothing, because atomic
# additions to the L2 cache take the time (docs/experiments.md).
STAGES = 2


@dataclass(frozen=True)
class GradientProduct:
    """The product that computes the gradient of a tile, by the threads that take part. G may be its left operand."""

    problem: GemmProblem
    plan: MmaPlan
    gradient_is_a: bool


@dataclass(frozen=True)
class ReverseLoop:
    """How a block computes the reverse pass of a loop, with extra memory beyond its tiles and their gradients."""

    of_a: GradientProduct
    of_b: GradientProduct
    needed_bytes: int
    extra_bytes: int

    @property
    def instructions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.of_a.plan.instruction, self.of_b.plan.instruction)))

    @property
    def accumulators(self) -> int:
        return self.of_a.plan.accumulators + self.of_b.plan.accumulators

    @property
    def registers(self) -> int:
        """Registers of a thread that its products take, by estimate."""
        arch, plans = self.of_a.problem.arch, (self.of_a.plan, self.of_b.plan)
        return products_registers(arch, plans, self.accumulators, reverse=True)


@rejectable
def reverse_loop(
    forward: GemmProblem,
    families: Collection[InstructionFamily],
    memory: LoopMemory,
) -> ReverseLoop:
    """The reverse pass of a loop, or the reason why it has no stages. ``memory`` has a gradient beside each tile."""
    products = []
    for problem, gradient_is_a in gradient_problems(forward):
        shared = _shared_product(problem, families)
        if isinstance(shared, Rejected):
            shared = shared.after(f"gradients of {problem.size}: ")
        products.append(GradientProduct(*accepted(shared), gradient_is_a))
    needed = gradient_bytes(forward) + STAGES * memory.stage_bytes
    of_a, of_b = products
    loop = ReverseLoop(of_a, of_b, needed, memory.extra_bytes(needed))
    available = accumulator_registers(forward.arch, forward.threads)
    refuse(loop.accumulators > available, "many_gradient_accumulators", loop.accumulators, available)
    total, limit = memory.total_bytes(needed), shared_limit(forward.arch, forward.threads)
    refuse(total > limit, "gradients_do_not_fit", STAGES, total, limit)
    return loop


def _shared_product(
    problem: GemmProblem, families: Collection[InstructionFamily]
) -> tuple[GemmProblem, MmaPlan] | Rejected:
    """The product, by as many threads of the block as can share it, or the reason why none can.

    A short step along K leaves few rows or columns in the gradient of a tile.
    """
    plan = staged_product(problem, families)
    if isinstance(plan, MmaPlan):
        return problem, plan
    if problem.threads >= 2 * LANES:
        shared = _shared_product(replace(problem, threads=problem.threads // 2), families)
        if not isinstance(shared, Rejected):
            return shared
    return plan


def gradient_bytes(forward: GemmProblem) -> int:
    """Bytes of the copies of G: one in the operands' type, or two parts of 16-bit operands."""
    size = DTYPE_BYTES[forward.a.dtype]
    part = -(-forward.m * forward.n * size // STAGE_ALIGNMENT) * STAGE_ALIGNMENT
    return part * (2 if size == 2 else 1)


def gradient_problems(forward: GemmProblem) -> Sequence[tuple[GemmProblem, bool]]:
    """The products for the gradients of A and B, and whether G is their left operand.

    The gradient of an operand that is loaded as its transpose is computed transposed. G is row-major.
    """
    m, n, k, dtype = forward.m, forward.n, forward.k, forward.a.dtype
    a_transposed, b_transposed = (operand.arrangement == "col_major" for operand in (forward.a, forward.b))
    a = dense_operand(dtype, m, k, transposed=a_transposed)
    b = dense_operand(dtype, k, n, transposed=b_transposed)
    g = dense_operand(dtype, m, n)
    of_a = (b, g.transposed(), (k, m, n)) if a_transposed else (g, b.transposed(), (m, k, n))
    of_b = (g.transposed(), a, (n, k, m)) if b_transposed else (a.transposed(), g, (k, n, m))
    return (_problem(forward, *of_a), not a_transposed), (_problem(forward, *of_b), b_transposed)


def _problem(forward: GemmProblem, a: Operand, b: Operand, sizes: tuple[int, int, int]) -> GemmProblem:
    m, n, k = sizes
    return replace(forward, m=m, n=n, k=k, a=a, b=b, c=dense_operand(forward.c.dtype, m, n))
