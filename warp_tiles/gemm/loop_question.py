"""The question of a loop of products in its place: everything that decides its pipeline. It is pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from warp_tiles.gemm.hardware import THREAD_REGISTERS
from warp_tiles.gemm.main_loop import (
    main_loop,
    reason_for_double_buffers,
    rivals_double_buffers,
    staged_product,
    uses_fma,
)
from warp_tiles.gemm.pipeline import AUTO, InstructionFamily, LoopMemory, MmaPlan, PipelineConfig, PipelineOverrides
from warp_tiles.gemm.problem import GemmProblem

_LARGE_SIDE = 128  # of a tile of C
_Products = tuple[GemmProblem, ...]


@dataclass(frozen=True)
class LoopAnswer:
    """How a loop is computed in stages.

    Attributes:
        form: Number of the form of the operands in stage buffers.
        rejection: Why its products are not computed by wgmma, although it could compute some of them; else empty.
    """

    loop: PipelineConfig
    form: int
    products: tuple[MmaPlan, ...]
    accumulators: int
    rejection: str = ""

    @property
    def operands(self) -> int:
        """Registers of a thread that hold operands of ``fma``, at most."""
        return max(product.operands for product in self.products)

    @property
    def code(self) -> LoopAnswer:
        """The answer without its reasons. Equal ones make equal code."""
        return replace(self, loop=replace(self.loop, rejection=""), rejection="")


@dataclass(frozen=True)
class LoopQuestion:
    """What decides the pipeline of a loop.

    Attributes:
        forms: The products of the loop with their operands as they lie in stage buffers. If tiles are transposed there,
            a second form has none transposed. The first form that an instruction can multiply counts.
        arrays: The number of the array of accumulators of each product; products of one array add to one C.
        iterations: Iterations of the loop, rounded up to a power of two; 0 if they are known at a launch alone.
        may_double_buffer: True if double buffers are better where few blocks are resident with stages.
        double_buffers_reason: Why the loop keeps double buffers although it could have stages; empty if it does not.
        registers: Registers of a thread that the link of the module allows. They follow from all answers of the module,
            so they are no part of its identity.
    """

    forms: tuple[_Products, ...]
    arrays: tuple[int, ...]
    families: tuple[InstructionFamily, ...]
    memory: LoopMemory
    iterations: int = 0
    may_double_buffer: bool = False
    double_buffers_reason: str = field(default="", compare=False)
    registers: int = field(default=THREAD_REGISTERS, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The fields of its identity by name."""
        return {
            "products": [variant.to_json() for variant in self.forms[0]],
            "arrays": list(self.arrays),
            "families": " ".join(sorted(self.families)),
            **asdict(self.memory),
            "iterations": self.iterations,
        }

    def describe(self) -> str:
        """A line for messages, e.g. ``loop of 128x128x64 float16 x float16 -> float32, 256 threads, sm_90``."""
        first, more = self.forms[0][0], len(self.arrays) - 1
        further = f" and {more} more" if more else ""
        many = f", at most {self.iterations} iterations" if self.iterations else ""
        return f"loop of {first.describe()}{further}, {self.memory.stage_bytes} bytes a stage{many}"

    def answer(self, overrides: PipelineOverrides = AUTO) -> LoopAnswer | str:
        """The pipeline with some fields fixed, or the reason why the loop has no stages."""
        if overrides.family == "double_buffered":
            return "double buffers are asked for"
        families: Collection[InstructionFamily] = self.families if overrides.family is None else (overrides.family,)
        if not set(families) <= set(self.families):
            return f"{overrides.family} cannot be used here: change main_loop"
        fixes_fields = replace(overrides, family=None) != AUTO
        if self.double_buffers_reason and not fixes_fields:
            return self.double_buffers_reason
        reasons = []
        for number, form in enumerate(self.forms):
            found = _products_of_one_instruction(form, families, overrides)
            if isinstance(found, str):
                reasons.append(found)
                continue
            products, rejection = found
            accumulators = sum({array: product.accumulators for array, product in zip(self.arrays, products)}.values())
            loop = main_loop(
                list(zip(form, products)),
                self.memory,
                accumulators=accumulators,
                registers=self.registers,
                may_double_buffer=self.may_double_buffer and not fixes_fields,
                choice=overrides,
            )
            return loop if isinstance(loop, str) else LoopAnswer(loop, number, products, accumulators, rejection)
        return reasons[-1]


def loop_question(
    products: Sequence[tuple[GemmProblem, tuple[str, str]]],
    families: tuple[InstructionFamily, ...],
    memory: LoopMemory,
    *,
    arrays: tuple[int, ...],
    iterations: int = 0,
    registers: int = THREAD_REGISTERS,
) -> LoopQuestion:
    """The question of a loop whose products have operands as they lie in tiles.

    Args:
        products: The forward products, each with the names of the tiles that are its operands.
        iterations: Iterations of the loop; 0 if they are known at a launch alone.
        families, memory, arrays, registers: See :class:`LoopQuestion`.
    """
    return LoopQuestion(
        tuple(tuple(_in_buffers(*product, tiles) for product in products) for tiles in transpositions(products)),
        arrays,
        families,
        memory,
        1 << (iterations - 1).bit_length() if iterations else 0,
        may_double_buffer=all(rivals_double_buffers(problem) for problem, _ in products),
        double_buffers_reason=next(filter(None, (reason_for_double_buffers(problem) for problem, _ in products)), ""),
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
    if any(len(found) > 1 for found in wanted.values()):
        return (frozenset(),)
    return tuple(dict.fromkeys((frozenset(n for n, found in wanted.items() if found == {True}), frozenset[str]())))


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


class PipelineRecords(Protocol):
    """Measured pipelines. They count before the heuristics, and after a setting."""

    def pipeline(self, question: LoopQuestion) -> MeasuredPipeline | None:
        """The fastest measured pipeline of a loop; None leaves the choice to the heuristics."""


def _products_of_one_instruction(
    products: Sequence[GemmProblem], families: Collection[InstructionFamily], overrides: PipelineOverrides
) -> tuple[tuple[MmaPlan, ...], str] | str:
    """Returns how each product is computed and the ``rejection`` of the answer, or the reason why there are none."""
    chosen, rejection = _staged(products, families, overrides), ""
    without_wgmma: tuple[InstructionFamily, ...] = ("mma",)
    if _is_mixed(chosen) and {"wgmma", *without_wgmma} <= set(families):
        chosen = _staged(products, without_wgmma, overrides)
        rejection = "wgmma can multiply only some of its products: use equal tiles for wgmma"
    if isinstance(chosen, str):
        return chosen
    return "its products use different instructions: use equal tiles" if _is_mixed(chosen) else (chosen, rejection)


def _is_mixed(chosen: tuple[MmaPlan, ...] | str) -> bool:
    """True if products use different instructions."""
    return not isinstance(chosen, str) and len({answer.instruction for answer in chosen}) > 1


def _staged(
    products: Sequence[GemmProblem], families: Collection[InstructionFamily], overrides: PipelineOverrides
) -> tuple[MmaPlan, ...] | str:
    chosen = []
    for variant in products:
        answer = staged_product(variant, families, overrides)
        if isinstance(answer, str):
            return answer
        chosen.append(answer)
    return tuple(chosen)
