"""The configuration: how this project's own templates compute a GEMM problem, and the limits of these templates.

A :class:`TileConfig` holds every choice that ``kernels/gemm`` leaves open. :func:`warp_tiles.gemm.choose.choose`
chooses one for a problem. Any field can be replaced; :func:`fits` tells whether the result can be built.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

from warp_tiles.errors import UnsupportedProblem
from warp_tiles.gemm.hardware import (
    LANES,
    MIN_ARCH,
    TENSOR_CORES_ARCH,
    WIDE_DOUBLES_ARCH,
    max_registers,
    multiprocessor,
    thread_registers,
)
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem, Operand

Instruction = Literal["mma_m16n8k16", "mma_m16n8k8", "mma_m8n8k4", "fma"]


@dataclass(frozen=True)
class TileConfig:
    """The tiling and the memory accesses with which a block computes C.

    C is cut into warp tiles. Warp w computes tiles w, w + warps, w + 2 * warps, ... With ``warps_k`` above 1 (split-K),
    that many warps compute one warp tile. Each sums an equal slice of K, and they add their results to C one by one.

    Attributes:
        instruction: ``mma_*`` multiplies on tensor cores, ``fma`` in each lane.
        tile_m, tile_n: Rows and columns of a warp tile, which a warp holds in registers.
        lanes_m, lanes_n, lanes_k: The grid of the 32 lanes along M, N and K with ``fma``; 1 with ``mma_*``.
        warps_k: Split-K: the number of warps that share the sum over K of one warp tile; 1 without split-K.
        k_vector: Contiguous elements of K that a lane reads at a time.
        k_unroll: Unrolled steps over K.
        swizzle_a, swizzle_b, swizzle_c: The number of XOR patterns with which lanes permute their accesses to avoid
            bank conflicts: 1 (none), 2 or 4.
        transposed: Compute ``C^T = B^T A^T``, which exchanges rows and columns.
        c_first: Read C before the products instead of after them.
    """

    instruction: Instruction
    tile_m: int
    tile_n: int
    lanes_m: int = 1
    lanes_n: int = 1
    lanes_k: int = 1
    warps_k: int = 1
    k_vector: int = 1
    k_unroll: int = 1
    swizzle_a: int = 1
    swizzle_b: int = 1
    swizzle_c: int = 1
    transposed: bool = False
    c_first: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> TileConfig:
        """The configuration that :meth:`to_json` wrote. Raises a ValueError if a field is missing, unknown or wrong."""
        kinds = {item.name: {"int": int, "bool": bool}.get(str(item.type), str) for item in fields(cls)}
        if not isinstance(data, dict) or set(data) != set(kinds):
            raise ValueError(f"not a tile configuration, which has the fields {', '.join(kinds)}: {data!r}")
        if any(type(data[name]) is not kind for name, kind in kinds.items()):
            raise ValueError(f"not a tile configuration, a field has another type: {data!r}")
        if data["instruction"] not in get_args(Instruction):
            raise ValueError(f"not a tile configuration, instruction is {data['instruction']!r}")
        return cls(**data)

    def describe(self) -> str:
        """A short text for tables, e.g. ``mma_m16n8k16 32x64``."""
        lanes = f", lanes {self.lanes_m}x{self.lanes_n}x{self.lanes_k}" if self.instruction == "fma" else ""
        warps = f", {self.warps_k} warps along K" if self.warps_k > 1 else ""
        return f"{self.instruction} {self.tile_m}x{self.tile_n}{lanes}{warps}"


# ---- limits

AHEAD_REGISTERS = 32  # of a thread whose loop loads ahead into double buffers: addresses and predicates
INSTRUCTION_MNK: dict[Instruction, tuple[int, int, int]] = {
    "mma_m16n8k16": (16, 8, 16),
    "mma_m16n8k8": (16, 8, 8),
    "mma_m8n8k4": (8, 8, 4),
}


def view_of(problem: GemmProblem, config: TileConfig) -> GemmProblem:
    """The problem that a configuration computes: the problem or its transpose, with a row-major C."""
    return problem.transposed() if config.transposed else problem


class Side(NamedTuple):
    """A or B, as the templates read it for a row-major C.

    Attributes:
        k_major: True if it is contiguous along K: a row-major A or a column-major B.
        extent: Rows of A or columns of B.
        tile: Rows or columns of a warp tile.
        swizzle: The number of its XOR patterns.
    """

    operand: Operand
    k_major: bool
    extent: int
    tile: int
    swizzle: int

    @property
    def blocks(self) -> int:
        """Blocks of K that are read at a time. The swizzle of a K-major operand permutes blocks."""
        return self.swizzle if self.k_major else 1

    def reads_pairs(self, vector: int) -> bool:
        """True if lanes read two neighbours along M or N at once, as in ``kernels/tile/operand.cuh``."""
        size = DTYPE_BYTES[self.operand.dtype]
        enough = vector % 2 == 0 if size == 2 else size == 4
        even = self.tile % 16 == 0 and self.extent % 2 == 0 and self.operand.leading_dimension % 2 == 0
        return enough and even and self.operand.alignment >= 2 * size

    def slots(self, vector: int) -> int:
        """Reads of a lane in a block of K, if the operand is not K-major."""
        return vector * (self.tile // 8) // (2 if self.reads_pairs(vector) else 1)


def sides(view: GemmProblem, config: TileConfig) -> tuple[Side, Side]:
    return (
        Side(view.a, view.a.arrangement == "row_major", view.m, config.tile_m, config.swizzle_a),
        Side(view.b, view.b.arrangement == "col_major", view.n, config.tile_n, config.swizzle_b),
    )


def computes_in_double(problem: GemmProblem) -> bool:
    """True if the accumulators are fp64, because a matrix is."""
    return "float64" in (operand.dtype for operand in problem.operands)


def instructions(problem: GemmProblem) -> tuple[Instruction, ...]:
    """The instructions that can multiply this problem's operands on its architecture, tensor cores first."""
    a, b, c = (operand.dtype for operand in problem.operands)
    arch = problem.arch
    usable: list[Instruction] = []
    if computes_in_double(problem):
        if arch >= WIDE_DOUBLES_ARCH:
            usable.append("mma_m16n8k8")
        if arch >= TENSOR_CORES_ARCH:
            usable.append("mma_m8n8k4")
    elif a == b and DTYPE_BYTES[a] == 2:
        if arch >= TENSOR_CORES_ARCH:
            usable.append("mma_m16n8k16")
        elif a == "float16":
            usable.append("mma_m16n8k8")
    elif arch >= TENSOR_CORES_ARCH:
        exact = "float32" not in (a, b)  # fp16 and bf16 fit tf32
        in_two_parts = (a == "float32") != (b == "float32") and DTYPE_BYTES[c] == 2
        if problem.precision == "tf32" or exact or in_two_parts:
            usable.append("mma_m16n8k8")
    return (*usable, "fma")


def require_supported(problem: GemmProblem) -> None:
    """Check that the templates can compute a problem at all. An UnsupportedProblem names the field and its value."""
    if problem.arch < MIN_ARCH:
        raise UnsupportedProblem(f"arch={problem.arch}: sm_{MIN_ARCH} is the oldest supported architecture")
    most = multiprocessor(problem.arch).block_threads
    if problem.threads < LANES or problem.threads % LANES or problem.threads > most:
        raise UnsupportedProblem(f"threads={problem.threads}: the block must have 32 to {most} threads in whole warps")


def registers(problem: GemmProblem, config: TileConfig) -> int:
    """Estimated registers per thread: accumulators, fragments, C and addresses."""
    word = 2 if computes_in_double(problem) else 1
    lanes = LANES // config.lanes_k
    accumulators = config.tile_m * config.tile_n * word // lanes
    if config.instruction == "fma":
        rows, cols = config.tile_m // config.lanes_m, config.tile_n // config.lanes_n
        return accumulators + (rows + cols) * config.k_vector * word + 24
    view = view_of(problem, config)
    held_c = config.tile_m * config.tile_n * max(1, DTYPE_BYTES[view.c.dtype] // 4) // lanes if config.c_first else 0
    blocks = max(side.blocks for side in sides(view, config))
    halves = 1 if config.instruction == "mma_m16n8k16" else 2
    # not all fragments are live at once
    fragments = 3 * (config.tile_m + config.tile_n) // 8 * config.k_vector * blocks * halves // 8 * word
    return accumulators + fragments + held_c + 24


def warp_tile_count(view: GemmProblem, config: TileConfig) -> int:
    """The number of warp tiles of a row-major C."""
    return -(-view.m // config.tile_m) * -(-view.n // config.tile_n)


def steps_over_k(view: GemmProblem, config: TileConfig) -> int:
    """Steps over all of K, which the warps of a split-K divide. A step takes one block of K, times the swizzle."""
    if config.instruction == "fma":
        step = config.k_vector * config.lanes_k * max(config.swizzle_a, config.swizzle_b)
    else:
        step = 4 * config.k_vector * max(side.blocks for side in sides(view, config))
    return -(-view.k // step)


def accumulators_per_thread(problem: GemmProblem, config: TileConfig) -> int:
    """Accumulators that a thread holds over a loop, of all its warp tiles; 0 if the registers cannot hold them."""
    needed, accumulators = registers_with_accumulators(problem, config), _accumulators(problem, config)
    limit = thread_registers(problem.arch, problem.threads)
    if max_registers(problem.arch, problem.threads, 2) is not None:
        # the module is linked for two blocks of up to 256 threads; the estimate is an upper bound
        limit = min(limit, 11 * multiprocessor(problem.arch).registers // (20 * problem.threads))
    return accumulators if needed <= limit else 0


def registers_with_accumulators(problem: GemmProblem, config: TileConfig) -> int:
    """Estimated registers per thread with the accumulators of all its warp tiles, as a loop keeps them."""
    word = 2 if computes_in_double(problem) else 1
    of_tile = config.tile_m * config.tile_n * config.lanes_k // LANES
    others = registers(problem, replace(config, c_first=False)) - of_tile * word
    return others + _accumulators(problem, config) * word


def _accumulators(problem: GemmProblem, config: TileConfig) -> int:
    iterations = -(-warp_tile_count(view_of(problem, config), config) // (problem.threads // LANES))
    return iterations * (config.tile_m * config.tile_n * config.lanes_k // LANES)


def fits(problem: GemmProblem, config: TileConfig) -> bool:
    """True if a configuration can be built for a problem."""
    powers = ("lanes_m", "lanes_n", "lanes_k", "warps_k", "k_vector", "swizzle_a", "swizzle_b", "swizzle_c")
    sizes = {name: getattr(config, name) for name in ("tile_m", "tile_n", "k_unroll", *powers)}
    return (
        config.instruction in instructions(problem)
        and all(value > 0 for value in sizes.values())
        and not any(sizes[name] & (sizes[name] - 1) for name in powers)
        and config.k_vector <= 8
        and max(config.swizzle_a, config.swizzle_b, config.swizzle_c) <= 4
        and (_fits_lanes if config.instruction == "fma" else _fits_instruction)(problem, config)
        and (config.warps_k == 1 or _fits_split(problem, config))
        and registers(problem, config) <= thread_registers(problem.arch, problem.threads)
    )


def _fits_lanes(problem: GemmProblem, config: TileConfig) -> bool:
    """True if the lanes of a warp share its tile, and the swizzle divides K."""
    swizzle = max(config.swizzle_a, config.swizzle_b)
    return (
        config.lanes_m * config.lanes_n * config.lanes_k == LANES
        and config.tile_m % config.lanes_m == config.tile_n % config.lanes_n == 0
        and (swizzle == 1 or problem.k % (config.k_vector * config.lanes_k * swizzle) == 0)
    )


def _fits_split(problem: GemmProblem, config: TileConfig) -> bool:
    """True if the warps of the block share K. They add to C one after another, after their products, unrounded."""
    view = view_of(problem, config)
    split, warps = config.warps_k, problem.threads // LANES
    return (
        warps % split == 0
        and warp_tile_count(view, config) * split <= warps
        and steps_over_k(view, config) % split == 0
        and not config.c_first
        and DTYPE_BYTES[problem.c.dtype] >= (8 if computes_in_double(problem) else 4)
    )


def result_vectors(operand: Operand, tile_n: int) -> int:
    """Vectors of a row of C per lane. A vector has four elements or two; four lanes share a row."""
    elements = 4 if DTYPE_BYTES[operand.dtype] < 8 and tile_n % 16 == 0 else 2
    return tile_n // (4 * elements)


def _fits_instruction(problem: GemmProblem, config: TileConfig) -> bool:
    """True if instructions of tensor cores fill the warp tile, and swizzles divide what a lane reads and writes."""
    view = view_of(problem, config)
    m, n, k = INSTRUCTION_MNK[config.instruction]
    both = sides(view, config)
    blocks = [side.blocks for side in both]
    return (
        (config.lanes_m, config.lanes_n, config.lanes_k) == (1, 1, 1)
        and config.tile_m % m == config.tile_n % n == 4 * config.k_vector % k == 0
        and all(side.k_major or side.slots(config.k_vector) % side.swizzle == 0 for side in both)
        and result_vectors(view.c, config.tile_n) % config.swizzle_c == 0
        and max(blocks) % min(blocks) == 0
    )
