"""The configuration of a loop of products: how its block loads the tiles of an iteration, and multiplies them.

The instruction and its warps are chosen here (:func:`staged_product`), the stages in :mod:`.main_loop`. All functions
are pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from warp_tiles.gemm.hardware import ASYNC_COPIES_ARCH, LANES, accumulator_registers, has_wgmma, loop_registers
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem, Operand, accumulator_of
from warp_tiles.gemm.rejected import Rejected, refuse, rejectable
from warp_tiles.gemm.tile_config import instructions

LoopInstruction = Literal["wgmma", "mma_m16n8k16", "mma_m16n8k8", "mma_m8n8k4", "fma"]

# What loops may use besides fma: wgmma, or the instructions of mma.sync
InstructionFamily = Literal["wgmma", "mma"]

STAGE_ALIGNMENT = 1024  # bytes; the swizzling pattern of a stage buffer repeats after so many


LEAST_STAGES, MOST_STAGES = 2, 12
_FIELDS = {
    "stages": range(LEAST_STAGES, MOST_STAGES + 1),
    "in_flight": range(2),
    "warps_m": range(1, 33),
    "blocks": range(1, 5),
}


@dataclass(frozen=True)
class PipelineOverrides:
    """What the setting ``main_loop`` fixes of a loop's pipeline. The chooser decides about each field that is None.

    Attributes:
        family: The instructions of staged products, or ``double_buffered`` for double buffers in place of stages.
        stages, in_flight: Those of :class:`PipelineConfig`. Only ``wgmma`` has products in flight.
        warps_m: That of :class:`MmaPlan`.
        blocks: Resident blocks of a multiprocessor for which the stages leave room, if they fit. A launch with few
            blocks wants a small number, because more stages hide the latency of loads that no other block hides.
    """

    family: Literal["wgmma", "mma", "double_buffered"] | None = None
    stages: int | None = None
    in_flight: int | None = None
    warps_m: int | None = None
    blocks: int | None = None

    @staticmethod
    def parse(text: str) -> PipelineOverrides:
        """The choice in a setting's text: ``auto``, or words and fields with commas between, e.g. ``mma,stages=3``.

        Raises:
            ValueError: A word, field or number is unknown. The message names it.
        """
        fields: dict[str, Any] = {}
        for part in text.split(","):
            name, is_number, value = part.strip().partition("=")
            if not is_number:
                name, value = "family", name
            if name in fields:
                raise ValueError(f"{name} is given twice")
            if name == "family" and value in ("auto", "wgmma", "mma", "double_buffered"):
                fields[name] = None if value == "auto" else value
            elif name in _FIELDS and value.isdecimal() and int(value) in _FIELDS[name]:
                fields[name] = int(value)
            else:
                raise ValueError(f"{part.strip()!r} is unknown")
        if fields.get("family") == "double_buffered" and len(fields) > 1:
            raise ValueError("double buffers have no other fields")
        return PipelineOverrides(**fields)

    @property
    def text(self) -> str:
        """The choice as the setting has it: the inverse of :meth:`parse`."""
        fixed = [f"{name}={value}" for name in _FIELDS if (value := getattr(self, name)) is not None]
        return ",".join([*([self.family] if self.family else []), *fixed]) or "auto"


AUTO = PipelineOverrides()  # fixes nothing


@dataclass(frozen=True)
class MmaPlan:
    """How a block multiplies two tiles in stage buffers (``*_product.cuh`` in ``kernels/module``).

    Attributes:
        instruction: ``wgmma`` (sm_90a); an ``mma.sync`` of 16-bit types, of tf32 or of fp64; or ``fma`` of fp32.
        warps_m, warps_n: The grid of warps over C, or of warpgroups (four warps) with ``wgmma``.
        operands: Registers of a thread that hold operands of ``fma``.
        through_registers: The operand that ``wgmma`` reads from registers; empty if it reads both from shared memory.
        lanes_m: Lanes of a warp along M with ``fma``; the others lie along N.
        swapped: True if ``wgmma`` reads both operands from shared memory and computes the transpose of C.
    """

    instruction: LoopInstruction
    warps_m: int
    warps_n: int
    accumulators: int
    through_registers: Literal["", "a", "b"] = ""
    lanes_m: int = 0
    operands: int = 0
    swapped: bool = False


def products_registers(arch: int, plans: Sequence[MmaPlan], accumulators: int, *, reverse: bool = False) -> int:
    """Registers of a thread that a loop of products takes, by estimate. ``accumulators`` are those of all products."""
    return max(
        loop_registers(
            arch,
            plan.instruction,
            accumulators,
            plan.operands,
            through_registers=bool(plan.through_registers),
            reverse=reverse,
        )
        for plan in plans
    )


@dataclass(frozen=True)
class LoopMemory:
    """The shared memory of a loop's block.

    Attributes:
        tile_bytes: Bytes of all tiles of the function.
        idle_bytes: Bytes of neighbouring tiles that are idle in the loop; the stages may lie there.
        at_end: True if these tiles are the last ones of the function, so that extra memory continues them.
        around_bytes: Bytes of the tiles of functions that call this one.
        beside_solvers: True if the function also calls solvers, which wait for latency that other blocks hide.
    """

    stage_bytes: int
    tile_bytes: int
    idle_bytes: int
    at_end: bool = True
    around_bytes: int = 0
    beside_solvers: bool = False

    def extra_bytes(self, needed: int) -> int:
        """Bytes that a ring of so many bytes needs beyond idle tiles. It may begin up to an alignment later."""
        needed += STAGE_ALIGNMENT
        if needed <= self.idle_bytes:
            return 0
        return needed - self.idle_bytes if self.at_end else needed

    def total_bytes(self, needed: int) -> int:
        return self.around_bytes + self.tile_bytes + self.extra_bytes(needed)


@dataclass(frozen=True)
class PipelineConfig:
    """The pipeline of a loop: a ring of stages, each with the tiles that one iteration loads.

    Attributes:
        in_flight: Iterations whose products may be in progress while the next ones are issued: 0 or 1.
        extra_bytes: Bytes of shared memory that the kernel needs beyond its tiles.
        blocks: Resident blocks of a multiprocessor, as far as shared memory and the registers of a thread decide,
            within the limit of the module.
        shared_bytes: Bytes of shared memory of the function with its stages, and of the tiles around it.
        registers: Registers of a thread that the loop takes, by estimate, without a limit of the module.
        rejection: Why it has no more stages; None if more would not help, or if a setting fixes their number.
    """

    instruction: LoopInstruction
    stages: int
    in_flight: int
    stage_bytes: int
    extra_bytes: int
    blocks: int
    shared_bytes: int
    shared_limit: int
    registers: int
    rejection: Rejected | None = None


# ---- the instruction with which a block multiplies tiles in stage buffers, and its warps

WARPGROUP = 4 * LANES  # threads
WGMMA_ROWS = 64  # of an instruction of wgmma: rows of C, or of its transpose
_REGISTER_OPERAND_K = 16  # of K in an iteration, if an operand is in registers


def _panel_elements(operand: Operand, columns: int) -> int:
    """Elements in a row of a panel of a stage buffer, by the contiguous elements of its tile (``BufferLayout``)."""
    size = DTYPE_BYTES[operand.dtype]
    return next(width for width in (128, 64, 32) if columns * size % width == 0) // size


@rejectable
def staged_product(
    problem: GemmProblem,
    families: Collection[InstructionFamily],
    choice: PipelineOverrides = AUTO,
) -> MmaPlan:
    """How a block multiplies tiles in stage buffers, or the reason why it cannot.

    Args:
        problem: The forward product, with its operands as they lie in stage buffers.
        choice: What the settings fix.
    """
    refuse(problem.arch < ASYNC_COPIES_ARCH, "no_async_copies", problem.arch)
    dtype, c = problem.a.dtype, problem.c
    refuse(problem.b.dtype != dtype, "two_dtypes")
    total = accumulator_of(dtype)
    refuse(c.dtype != total or c.arrangement != "row_major" or not problem.is_dense, "unsuitable_c", total)
    step = 16 if DTYPE_BYTES[dtype] == 2 else 8
    refuse(bool(problem.m % 16 or problem.n % 16 or problem.k % step), "unsuitable_size", problem.size, step)
    accumulators, available = accumulators_of(problem), accumulator_registers(problem.arch, problem.threads)
    refuse(accumulators > available, "many_accumulators", problem.size, accumulators, available)
    plans = _ways(problem, families)
    refuse(not plans, "no_grid" if uses_fma(problem) else "no_tensor_core_grid", problem.threads, problem.size)
    fitting = [product for product in plans if choice.warps_m in (None, product.warps_m)]
    grids = ", ".join(dict.fromkeys(str(product.warps_m) for product in plans))
    refuse(not fitting, "warps_m", choice.warps_m, problem.size, grids)
    return fitting[0]


def uses_fma(problem: GemmProblem) -> bool:
    """True for products whose stages are multiplied without tensor cores."""
    return problem.a.dtype == "float32" and problem.precision != "tf32"


def _ways(problem: GemmProblem, families: Collection[InstructionFamily]) -> list[MmaPlan]:
    """The ways to multiply, the best one first."""
    if problem.threads % LANES:
        return []
    if uses_fma(problem):
        return list(_fma_products(problem))
    plans = list(_warpgroup_products(problem)) if "wgmma" in families else []
    if plans or "mma" not in families:
        return plans
    mma = instructions(problem)[0]
    return [MmaPlan(mma, *grid, accumulators_of(problem)) for grid in _warp_grids(problem)]


def accumulators_of(problem: GemmProblem) -> int:
    return problem.m * problem.n // problem.threads * (DTYPE_BYTES[problem.c.dtype] // 4)


def _warpgroup_products(problem: GemmProblem) -> Iterator[MmaPlan]:
    """Products by wgmma, the one with the widest instructions first.

    wgmma reads 16-bit operands of any layout from shared memory, and tf32 operands if they are contiguous along K. If
    no grid gives each group a multiple of 64 rows of C, wgmma computes C^T = B^T A^T, whose rows are C's columns.
    """
    if not has_wgmma(problem.arch) or problem.threads % WARPGROUP:
        return
    groups = problem.threads // WARPGROUP
    grids = [(groups_x, groups // groups_x) for groups_x in range(groups, 0, -1) if groups % groups_x == 0]
    a_k_major, b_k_major = problem.a.arrangement == "row_major", problem.b.arrangement == "col_major"
    if problem.a.dtype == "float32" and not (a_k_major and b_k_major):
        yield from _products_through_registers(problem, grids)
    elif DTYPE_BYTES[problem.a.dtype] <= 4:
        straight = list(_products_from_buffers(problem, grids, swapped=False))
        yield from straight or _products_from_buffers(problem, grids, swapped=True)


def _products_through_registers(problem: GemmProblem, grids: Sequence[tuple[int, int]]) -> Iterator[MmaPlan]:
    """Products of two tf32 operands, one contiguous along K and the other along M or N.

    The latter is the instruction's A in registers: A itself, or B in C^T = B^T A^T. If neither is contiguous along K,
    there are none.
    """
    a_k_major, b_k_major = problem.a.arrangement == "row_major", problem.b.arrangement == "col_major"
    if not (a_k_major or b_k_major) or problem.k % _REGISTER_OPERAND_K:
        return
    through: Literal["a", "b"] = "b" if a_k_major else "a"
    for groups_m, groups_n in reversed(grids) if through == "b" else grids:
        if problem.m % groups_m or problem.n % groups_n:
            continue
        m, n = problem.m // groups_m, problem.n // groups_n
        lines, width = (n, m) if through == "b" else (m, n)
        if lines % WGMMA_ROWS == 0 and width % 16 == 0:
            yield MmaPlan("wgmma", groups_m, groups_n, accumulators_of(problem), through)


def _products_from_buffers(
    problem: GemmProblem, grids: Sequence[tuple[int, int]], *, swapped: bool
) -> Iterator[MmaPlan]:
    """Products whose operands both lie in shared memory.

    Args:
        grids: Numbers of groups along the instruction's rows and along its columns.
        swapped: True if the instruction computes the transpose of C, whose rows are C's columns.
    """
    lines, width = (problem.n, problem.m) if swapped else (problem.m, problem.n)
    y = problem.a if swapped else problem.b  # the instruction's B
    is_k_major = y.arrangement == ("row_major" if swapped else "col_major")
    for groups_x, groups_y in grids:
        if lines % (WGMMA_ROWS * groups_x) or width % (16 * groups_y):
            continue
        if not is_k_major and width // groups_y % _panel_elements(y, width):
            continue  # a group's columns begin in the middle of a panel
        groups_m, groups_n = (groups_y, groups_x) if swapped else (groups_x, groups_y)
        yield MmaPlan("wgmma", groups_m, groups_n, accumulators_of(problem), swapped=swapped)


def _warp_grids(problem: GemmProblem) -> list[tuple[int, int]]:
    """Grids of warps, the one that reads the least shared memory first."""
    warps = problem.threads // LANES
    # a vector of tf32 that is contiguous along M or N has lines of four fragments
    tf32 = problem.a.dtype == "float32"
    rows = 32 if tf32 and problem.a.arrangement == "col_major" else 16
    columns = 32 if tf32 and problem.b.arrangement == "row_major" else 16
    grids = [
        (warps_m, warps // warps_m)
        for warps_m in range(1, warps + 1)
        if warps % warps_m == 0 and problem.m % (rows * warps_m) == 0
        if problem.n % (columns * (warps // warps_m)) == 0
    ]
    return sorted(grids, key=lambda grid: problem.m // grid[0] + problem.n // grid[1])


def _fma_products(problem: GemmProblem) -> Iterator[MmaPlan]:
    """Products without tensor cores, the one whose lanes and warps read the fewest values first."""
    warps = problem.threads // LANES
    grids = []
    for warps_m, lanes_m in itertools.product([w for w in range(1, warps + 1) if warps % w == 0], (4, 8)):
        warps_n, lanes_n = warps // warps_m, LANES // lanes_m
        if problem.m % (warps_m * lanes_m) or problem.n % (warps_n * lanes_n):
            continue
        rows, columns = problem.m // (warps_m * lanes_m), problem.n // (warps_n * lanes_n)  # of a lane
        # A vector of an operand that is contiguous along M or N has four lines, and a warp reads whole panels of it. A
        # warp reads whole swizzling patterns of the other one, which repeat after eight lines.
        a = (4, _panel_elements(problem.a, problem.m)) if problem.a.arrangement == "col_major" else (1, 8)
        b = (4, _panel_elements(problem.b, problem.n)) if problem.b.arrangement == "row_major" else (1, 8)
        if not (rows % a[0] or rows * lanes_m % a[1] or columns % b[0] or columns * lanes_n % b[1]):
            of_warp = rows * lanes_m + columns * lanes_n
            operands = _fma_operands(rows, a[0] == 1) + _fma_operands(columns, b[0] == 1)
            grids.append((rows + columns, of_warp, -rows, warps_m, lanes_m, operands))
    for *_, warps_m, lanes_m, operands in sorted(grids):
        yield MmaPlan("fma", warps_m, warps // warps_m, accumulators_of(problem), lanes_m=lanes_m, operands=operands)


def _fma_operands(lines: int, along_k: bool) -> int:
    """Registers of a lane that hold an operand of fma, as ``FmaProduct`` has them: one or two sets of vectors."""
    depth = 4 if along_k else 1
    return (2 if lines <= 8 or not along_k else 1) * lines * depth
