"""The chooser of the tile configuration of a GEMM problem, and its cost model. Every machine gets the same result.

The cost is the estimated cycles of one multiprocessor for one call. The model counts accesses to shared memory, at the
addresses that ``kernels/tile`` computes. A lane has g = lane // 4 and q = lane % 4; see ``kernels/tile/operand.cuh``
and ``accumulator.cuh``. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Literal, NamedTuple

from warp_tiles.gemm.hardware import (
    BANK_BYTES,
    BANK_LINE_BYTES,
    BANKS,
    LANES,
    paired_registers,
    resident_blocks,
    static_shared_bytes,
)
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem, Operand
from warp_tiles.gemm.tile_config import (
    INSTRUCTION_MNK,
    Instruction,
    Side,
    TileConfig,
    computes_in_double,
    fits,
    instructions,
    registers,
    require_supported,
    result_vectors,
    sides,
    steps_over_k,
    warp_tile_count,
)

_UNROLLED_PRODUCTS = 64 * 64 * 16  # per warp tile: elements of C times elements of K that a lane holds
_UNROLLED_FMAS, _UNROLLED_FMAS_OF_LARGE_TILES = 2048, 1024
_MIN_SLICE = 32  # elements of K per warp with split-K
_MAX_SPLIT_THREADS = 256  # per block; with 512, split-K gains nothing in the mean (docs/templates.md)


@lru_cache(maxsize=4096)
def choose(problem: GemmProblem) -> TileConfig:
    """The tile configuration with the least estimated time: the first of :func:`ranked`."""
    return ranked(problem)[0]


def ranked(problem: GemmProblem) -> list[TileConfig]:
    """All candidates of a problem that fit, by estimated time, fastest first. There is always one.

    Raises:
        UnsupportedProblem: The templates cannot compute the problem. The message names the field.
    """
    require_supported(problem)
    flip = problem.c.arrangement == "col_major"
    view = problem.transposed() if flip else problem
    fitting = [config for config in candidates(view) if fits(view, config)]
    if not fitting:  # with this many threads, registers are too few for tensor cores
        fitting = [config for config in fma_candidates(view) if fits(view, config)]
    return [replace(config, transposed=flip) for config in sorted(fitting, key=lambda config: cost(view, config))]


def candidates(view: GemmProblem) -> Iterator[TileConfig]:
    """Candidates for a row-major C. They use tensor cores wherever these support the operands."""
    thin = min(view.m, view.n) < 4  # such a product leaves most of a tensor core idle
    on_tensor_cores = [i for i in instructions(view) if i != "fma" and not (thin and computes_in_double(view))]
    for instruction in on_tensor_cores:
        yield from mma_candidates(view, instruction)
    if not on_tensor_cores:
        yield from fma_candidates(view)


def _k_vector(view: GemmProblem, instruction: Instruction) -> int:
    """Elements of K that a lane reads at a time: up to 16 bytes, if K has them."""
    step = INSTRUCTION_MNK[instruction][2]
    widest = {16: 8, 8: 4, 4: 2}[step]
    if computes_in_double(view):
        widest = 2
    elif step == 8 and "float32" not in (view.a.dtype, view.b.dtype):
        widest = 8
    while widest > step // 4 and view.k % (4 * widest) and view.k <= 4 * widest * 4:
        widest //= 2
    return widest


def _tile_sizes(extent: int, step: int, most: int, in_double: bool) -> list[int]:
    """Rows or columns of a warp tile: powers of two, and 24 for fp64 if it divides C."""
    powers = [size for size in (8, 16, 32, 64, 128) if size % step == 0 and size <= most]
    fitting = [size for size in powers if size < extent + max(step, size // 4)]
    # for 16-bit elements, the cost model is wrong with three groups
    divides = in_double and 24 % step == 0 and extent % 24 == 0
    return [*fitting, 24] if divides else fitting


def mma_candidates(view: GemmProblem, instruction: Instruction) -> Iterator[TileConfig]:
    """Candidates for a row-major C on tensor cores."""
    rows = INSTRUCTION_MNK[instruction][0]
    vector = _k_vector(view, instruction)
    in_double = computes_in_double(view)
    sizes_m, sizes_n = _tile_sizes(view.m, rows, 64, in_double), _tile_sizes(view.n, 8, 128, in_double)
    for tile_m, tile_n in product(sizes_m, sizes_n):
        config = with_swizzle(view, TileConfig(instruction, tile_m, tile_n, k_vector=vector))
        blocks = max(side.blocks for side in sides(view, config))
        steps = steps_over_k(view, config)
        most = max(1, _UNROLLED_PRODUCTS // (tile_m * tile_n * vector * blocks))
        c_first = replace(config, k_unroll=min(steps, most), c_first=True)
        yield c_first if registers(view, c_first) <= paired_registers(view.arch) else replace(c_first, c_first=False)
        for warps_k in _split_k_values(view):
            yield replace(config, warps_k=warps_k, k_unroll=max(1, min(steps // warps_k, most)))


def _split_k_values(view: GemmProblem) -> Iterator[int]:
    """Candidates for ``warps_k``. The block may have too few warps; :func:`fits` refuses those."""
    if view.threads > _MAX_SPLIT_THREADS:
        return
    warps_k = 2
    while warps_k <= min(view.threads // LANES, view.k // _MIN_SLICE):
        yield warps_k
        warps_k *= 2


def with_swizzle(view: GemmProblem, config: TileConfig) -> TileConfig:
    """The configuration with the swizzle that avoids bank conflicts."""
    a, b = (_operand_swizzle(side, view.k, config.k_vector) for side in sides(view, config))
    return replace(config, swizzle_a=a, swizzle_b=b, swizzle_c=_result_swizzle(view.c, config.tile_n))


def _operand_swizzle(side: Side, k: int, vector: int) -> int:
    """The swizzle of A or B."""
    operand, line = side.operand, side.operand.line_bytes
    if side.k_major:  # pairs of rows conflict; a swizzle exchanges two blocks of K
        return 2 if line % BANK_LINE_BYTES == 0 and k % (8 * vector) == 0 else 1
    if vector * line % BANK_LINE_BYTES:
        return 1
    # the four rows that lanes q = 0 to 3 read conflict
    size, groups, slots = DTYPE_BYTES[operand.dtype], side.tile // 8, side.slots(vector)
    unpadded = operand.leading_dimension == side.tile and line < BANK_LINE_BYTES
    distinct = slots if unpadded else slots // vector
    return _power_of_two_in(slots, min(2 if size == 8 and groups % 4 else 4, distinct))


def _result_swizzle(operand: Operand, tile_n: int) -> int:
    """The swizzle of a row-major C."""
    line, size = operand.line_bytes, DTYPE_BYTES[operand.dtype]
    if line % BANK_LINE_BYTES and BANK_LINE_BYTES % line:  # rows start in different banks
        return 1
    vectors = result_vectors(operand, tile_n)
    elements = tile_n // (4 * vectors)
    rows = max(1, BANK_LINE_BYTES // line)  # rows that fill the banks together
    return _power_of_two_in(vectors, BANK_LINE_BYTES // (4 * elements * size * rows))


def _power_of_two_in(count: int, most: int) -> int:
    """The largest power of two up to ``most`` that divides ``count``; at least 1."""
    power = 1
    while 2 * power <= most and count % (2 * power) == 0:
        power *= 2
    return power


def _shares(extent: int, most: int) -> list[int]:
    """Rows or columns of C that one lane may hold: powers of two, and three times powers of two if they divide C."""
    powers = [share for share in (1, 2, 4, 8, 16) if share <= most]
    return sorted([*powers, *(3 * share for share in powers if extent % (3 * share) == 0 and 3 * share <= most)])


def fma_candidates(view: GemmProblem) -> Iterator[TileConfig]:
    """Candidates without tensor cores."""
    widest = 2 if computes_in_double(view) else 4
    both_k_major = view.a.arrangement == "row_major" and view.b.arrangement == "col_major"
    for lanes_k, lanes_n in product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32)):
        lanes_m = LANES // (lanes_k * lanes_n)
        vector = widest
        while vector > 1 and view.k % (vector * lanes_k):
            vector //= 2
        if lanes_m < 1 or lanes_k > max(1, view.k // 4):
            continue
        for rows, cols in product(_shares(view.m, 16), _shares(view.n, 8)):
            tile_m, tile_n = rows * lanes_m, cols * lanes_n
            if tile_m >= 2 * view.m + lanes_m or tile_n >= 2 * view.n + lanes_n:
                continue
            steps = -(-view.k // (vector * lanes_k))
            is_large = rows * cols > paired_registers(view.arch) // 2
            most = _UNROLLED_FMAS_OF_LARGE_TILES if is_large else _UNROLLED_FMAS
            unroll = min(steps, max(1, most // (rows * cols * vector)))
            conflict = both_k_major and lanes_k == 1 and view.b.line_bytes % BANK_LINE_BYTES == 0
            swizzle = _power_of_two_in(view.k // vector, min(4, lanes_n)) if conflict else 1
            yield TileConfig(
                "fma",
                tile_m,
                tile_n,
                lanes_m,
                lanes_n,
                lanes_k,
                k_vector=vector,
                k_unroll=unroll,
                swizzle_b=swizzle,
                c_first=lanes_k == 1,
            )


# ---- the cost model

_Placement = Literal["single", "spread", "pairs_across", "pairs_along", "pairs_spread"]
_FEW_BLOCKS = 5
_MMA_CYCLES: dict[Instruction, int] = {"mma_m16n8k16": 6, "mma_m16n8k8": 6, "mma_m8n8k4": 16}


@dataclass(frozen=True)
class _Weights:
    """Weights of the estimate's terms, fitted to the times of kernels on an H200 (docs/templates.md).

    Attributes:
        busy: Weight of the busiest unit: shared memory, selects or arithmetic.
        start, wavefront, select, cycle: Latency of a warp tile, and weights of its wavefronts, selects and arithmetic.
        registers: Registers in use per estimated register.
        result: Weight of the wavefronts of C. Loops that keep their accumulators in registers have none.
        idle: Weight of the idle arithmetic of warps without a tile, in blocks of four warps with few blocks resident.
            Without tensor cores it counts for some products only (:func:`_counts_idle_warps`).
        handover, addition: Split-K, for each warp after the first that adds its accumulators to C: latency per warp of
            the block, which waits at a barrier, and weight of the wavefronts of C.
    """

    busy: float
    start: float
    wavefront: float
    select: float
    cycle: float
    registers: float
    result: float = 1
    idle: float = 0
    handover: float = 0
    addition: float = 0


_MMA_WEIGHTS = _Weights(
    busy=0.8, start=1350, wavefront=6.1, select=15.4, cycle=1.4, registers=0.2, handover=250, addition=3
)
_DOUBLE_WEIGHTS = _Weights(
    busy=1.5, start=150, wavefront=0.3, select=3, cycle=0.8, registers=1, result=0, idle=0.2, handover=60, addition=5
)
_FMA_WEIGHTS = _Weights(busy=1.1, start=270, wavefront=1.1, select=1, cycle=0.35, registers=1.2, idle=0.5, handover=25)


# ---- accesses to shared memory


class Access(NamedTuple):
    """The accesses of a warp to one operand of one warp tile. They all have the same pattern.

    Attributes:
        ideal: The wavefronts of the same bytes without bank conflicts, at 128 bytes each.
        per_lane: The accesses of a lane.
    """

    wavefronts: float
    ideal: float
    per_lane: float

    @staticmethod
    def of(elements: int, width: int, size: int, addresses: list[int]) -> Access:
        """The accesses to some elements of ``size`` bytes, ``width`` of them at each of the lanes' addresses."""
        count = elements / (LANES * width)
        wavefronts = count * wavefronts_of(tuple(addresses), width * size)
        return Access(wavefronts, count * width * size * LANES / BANK_LINE_BYTES, count)


@lru_cache(maxsize=4096)
def wavefronts_of(addresses: tuple[int, ...], size_bytes: int) -> int:
    """Wavefronts of one access of all lanes. A wavefront moves 128 bytes of shared memory.

    The hardware serves lanes in groups of up to 128 bytes: all 32 lanes with up to 4 bytes each, half of them with 8
    bytes, a quarter with 16. A group has twice as many lanes if every lane shares its address with the lane next to it
    or the next but one. It takes as many wavefronts as its busiest bank has distinct words. Measured on an H200
    (docs/templates.md).

    Args:
        addresses: Byte offset of each of the 32 lanes.
        size_bytes: Bytes that each lane accesses, at most 16.
    """
    group = min(LANES, LANES * BANK_BYTES // max(size_bytes, BANK_BYTES))
    shared = any(all(addresses[i] == addresses[i ^ bit] for i in range(LANES)) for bit in (1, 2))
    if shared and group < LANES:
        group *= 2
    total = 0
    for start in range(0, LANES, group):
        words: dict[int, set[int]] = {}
        for address in addresses[start : start + group]:
            for word in range(address // BANK_BYTES, (address + size_bytes - 1) // BANK_BYTES + 1):
                words.setdefault(word % BANKS, set()).add(word)
        total += max(len(accessed) for accessed in words.values())
    return total


def _position(placement: _Placement, group: int, member: int) -> int:
    """Row or column of member 0 to 7 of a group of eight, as in ``kernels/tile/placement.cuh``."""
    pair = group // 2
    if placement == "single":
        return 8 * group + member
    if placement == "spread":
        return 8 * group + (member ^ 4 * (pair & 1))
    if placement == "pairs_across":
        return 16 * pair + 4 * (member // 2) + 2 * (group % 2) + member % 2
    if placement == "pairs_along":
        return 16 * pair + 2 * member + group % 2
    return 16 * pair + 2 * (member ^ 4 * (pair // 2 & 1)) + group % 2


def _placement_of(side: Side, vector: int, wide: bool) -> _Placement:
    """The placement of the rows of A or the columns of B."""
    if side.k_major:
        return "pairs_across" if wide and side.tile % 16 == 0 else "single"
    size = DTYPE_BYTES[side.operand.dtype]
    if side.reads_pairs(vector):
        return "pairs_along" if size == 2 else "pairs_spread"
    return "spread" if size == 8 and side.tile % 32 == 0 else "single"


def _operand_access(side: Side, k: int, vector: int, placement: _Placement) -> Access:
    """The reads of A or B for all of K. A row-major A and a column-major B are K-major."""
    size, line, ways = DTYPE_BYTES[side.operand.dtype], side.operand.line_bytes, side.swizzle
    lanes = [divmod(lane, 4) for lane in range(LANES)]
    if side.k_major:
        width = min(vector, max(1, side.operand.alignment // size))
        blocks = [(g >> _swizzle_shift(line)) & (ways - 1) for g, _ in lanes]
        addresses = [
            _position(placement, 0, g) * line + (4 * vector * block + vector * q) * size
            for (g, q), block in zip(lanes, blocks)
        ]
    else:
        width = 2 if side.reads_pairs(vector) else 1
        slots = side.slots(vector) // vector
        sources = [q & (ways - 1) for _, q in lanes]
        addresses = [
            (vector * q + source // slots) * line + _position(placement, source % slots * width, g) * size
            for (g, q), source in zip(lanes, sources)
        ]
    return Access.of(side.tile * max(k, 4 * vector), width, size, addresses)


def _result_access(operand: Operand, rows: _Placement, columns: _Placement, config: TileConfig, n: int) -> Access:
    """One pass over a row-major C, its reads or its writes."""
    size, line = DTYPE_BYTES[operand.dtype], operand.line_bytes
    paired = columns not in ("single", "spread")
    elements = 4 if paired else 2
    vectors = config.tile_n // (4 * elements)
    ways = config.swizzle_c if vectors % config.swizzle_c == 0 else 1
    distance = 2 if rows in ("pairs_along", "pairs_spread") else 1
    width = min(elements, max(1, min(16, operand.alignment) // size), n & -n)
    addresses = []
    for lane in range(LANES):
        g, q = divmod(lane, 4)
        vector = (g >> _swizzle_shift(distance * line)) & (ways - 1)
        if paired:
            swizzled = q ^ 2 * (vector // 2 & 1) if columns == "pairs_spread" else q
            column = 16 * vector + 4 * swizzled
        else:
            column = 8 * vector + (2 * q ^ 4 * (vector // 2 & 1) if columns == "spread" else 2 * q)
        addresses.append(_position(rows, 0, g) * line + column * size)
    return Access.of(config.tile_m * config.tile_n, width, size, addresses)


def accesses(view: GemmProblem, config: TileConfig) -> tuple[Access, Access, Access]:
    """The reads of A, B and C for one warp tile on tensor cores and a row-major C. Writes of C equal its reads."""
    a, b = sides(view, config)
    rows = _placement_of(a, config.k_vector, not a.k_major)
    columns = _placement_of(b, config.k_vector, not b.k_major or DTYPE_BYTES[view.c.dtype] <= 4)
    read_a, read_b = (_operand_access(side, view.k, config.k_vector, at) for side, at in ((a, rows), (b, columns)))
    return read_a, read_b, _result_access(view.c, rows, columns, config, view.n)


def _swizzle_shift(line: int) -> int:
    """The number of low bits of a row index that the swizzle skips, as in ``kernels/tile/swizzle.cuh``."""
    return 0 if line % 128 == 0 else 1 if line % 64 == 0 else 2 if line % 32 == 0 else 3


# ---- estimated cycles


def _resident_blocks(view: GemmProblem, registers_used: float) -> int:
    """Resident blocks per multiprocessor, if shared memory holds only A, B and C.

    The weights were fitted without the static memory of Warp's headers. With it, tf32 products of 32x32x128 by 128
    threads got another tile, which took 1.4 times as long on an H100.
    """
    sizes = (view.m * view.k, view.k * view.n, view.m * view.n)
    tiles = sum(n * DTYPE_BYTES[o.dtype] for n, o in zip(sizes, view.operands))
    tiles -= static_shared_bytes(view.threads)
    return max(1, resident_blocks(view.arch, view.threads, shared_bytes=tiles, registers=registers_used))


def cost(view: GemmProblem, config: TileConfig) -> float:
    """Estimated cycles: the time of the busiest unit, and the latency that the resident blocks do not hide."""
    tiles = warp_tile_count(view, config) * config.warps_k  # with split-K, slices of warp tiles
    warps = view.threads // LANES
    iterations = -(-tiles // warps)
    on_lanes = config.instruction == "fma"
    if on_lanes:
        weights, (wavefronts, selects, arithmetic) = _FMA_WEIGHTS, _fma_estimate(view, config)
    else:
        weights = _DOUBLE_WEIGHTS if computes_in_double(view) else _MMA_WEIGHTS
        wavefronts, selects, arithmetic = _mma_estimate(view, config, weights.result)
    blocks = _resident_blocks(view, weights.registers * registers(view, config))
    scheduled: float = tiles
    if warps == 2:  # the first warp is always on the same half of the schedulers, so an odd tile has only that half
        scheduled += tiles % 2
    elif warps == 4 and blocks <= _FEW_BLOCKS and (not on_lanes or _counts_idle_warps(view, config)):
        scheduled += weights.idle * (-tiles % 4)
    busy = max(tiles * wavefronts, scheduled * max(selects / 2, arithmetic / 4))
    serial = weights.start + weights.wavefront * wavefronts + weights.select * selects + weights.cycle * arithmetic
    time = weights.busy * busy + iterations * serial / blocks
    # of two configurations with about equal times, the one with fewer bank conflicts wins
    conflicts = 1.0 if on_lanes else max(1.0, wavefront_ratio(view, config) / 1.25)
    additions = 0.0
    if config.warps_k > 1:
        moved = 0.0 if on_lanes else 2 * warp_tile_count(view, config) * accesses(view, config)[2].wavefronts
        additions = (config.warps_k - 1) * (weights.handover * warps / blocks + weights.addition * moved)
    return float(time * conflicts**0.3 + additions)


def _counts_idle_warps(view: GemmProblem, config: TileConfig) -> bool:
    """True if idle warps count for a product without tensor cores. Others were slower with it (docs/experiments.md)."""
    return not computes_in_double(view) and config.lanes_k == 1 and view.b.arrangement == "row_major"


def wavefront_ratio(view: GemmProblem, config: TileConfig) -> float:
    """Wavefronts of a product on tensor cores, relative to the fewest for the same bytes."""
    a, b, c = accesses(view, config)
    passes = 2 * config.warps_k  # over C
    return (a.wavefronts + b.wavefronts + passes * c.wavefronts) / (a.ideal + b.ideal + passes * c.ideal)


def _mma_estimate(view: GemmProblem, config: TileConfig, result: float) -> tuple[float, float, float]:
    """Wavefronts (C's are weighted by ``result``), selects per lane and tensor-core cycles of a warp for one tile."""
    m, n, k = INSTRUCTION_MNK[config.instruction]
    a, b, c = accesses(view, config)
    wavefronts = (a.wavefronts + b.wavefronts) / config.warps_k + 2 * result * c.wavefronts
    selects = c.ideal * (config.swizzle_c.bit_length() - 1)
    for side, access in zip(sides(view, config), (a, b)):
        packs = 1 if not side.k_major and DTYPE_BYTES[side.operand.dtype] == 2 else 0
        selects += access.ideal / config.warps_k * (side.swizzle.bit_length() - 1 + packs)
    count = config.tile_m / m * config.tile_n / n * -(-view.k // k) / config.warps_k
    cycles = 32 if computes_in_double(view) and k == 8 else _MMA_CYCLES[config.instruction]
    return wavefronts, selects, count * cycles


def _lane(view: GemmProblem, config: TileConfig, number: int) -> tuple[int, int, int]:
    """The position of a lane along M, N and K, as in ``kernels/gemm/fma_gemm.cuh``."""
    if view.b.arrangement == "row_major" and config.lanes_n >= 8:
        k, rest = divmod(number, LANES // config.lanes_k)
    else:
        rest, k = divmod(number, config.lanes_k)
    return rest // config.lanes_n, rest % config.lanes_n, k


def fma_reads(view: GemmProblem, config: TileConfig) -> tuple[Access, Access]:
    """The reads of A and of B without tensor cores, for a row-major C. Tiles at the edges count as full tiles."""
    steps = -(-view.k // (config.k_vector * config.lanes_k))
    shares = config.tile_m // config.lanes_m, config.tile_n // config.lanes_n
    lanes = [_lane(view, config, number) for number in range(LANES)]
    reads = []
    for index, (side, count) in enumerate(zip(sides(view, config), shares)):
        size, line = DTYPE_BYTES[side.operand.dtype], side.operand.line_bytes
        most = max(1, min(16, side.operand.alignment) // size)
        wide = min(config.k_vector if side.k_major else count & -count, most)
        addresses = []
        for lane in lanes:
            k = (lane[2] + (lane[1] & (config.swizzle_b - 1))) * config.k_vector
            addresses.append(lane[index] * line + k * size if side.k_major else k * line + lane[index] * wide * size)
        reads.append(Access.of(steps * count * config.k_vector // wide * wide * LANES, wide, size, addresses))
    return reads[0], reads[1]


def _fma_estimate(view: GemmProblem, config: TileConfig) -> tuple[float, float, float]:
    """Wavefronts, selects per lane and scheduler cycles of a warp for one tile."""
    word = 2 if computes_in_double(view) else 1
    rows, cols = config.tile_m // config.lanes_m, config.tile_n // config.lanes_n
    steps = -(-view.k // (config.k_vector * config.lanes_k)) / config.warps_k
    a, b = fma_reads(view, config)
    products = steps * rows * cols * config.k_vector * word * 1.2
    shuffles = rows * cols * 4 * word * (config.lanes_k.bit_length() - 1)
    wide_c = max(1, min(cols & -cols, 16 // DTYPE_BYTES[view.c.dtype]))
    accesses = 2 * rows * cols // wide_c
    busy = products + shuffles + 2 * ((a.per_lane + b.per_lane) / config.warps_k + accesses) + 2 * rows * cols
    return (a.wavefronts + b.wavefronts) / config.warps_k + accesses * wide_c * word, 0.0, busy
