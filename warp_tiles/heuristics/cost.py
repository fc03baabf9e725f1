"""An estimate of what a tile configuration costs: cycles of one multiprocessor for one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warp_tiles.gemm.hardware import (
    LANES,
    REGISTERS,
    RESIDENT_BLOCKS,
    RESIDENT_THREADS,
    SHARED_BYTES,
    THREAD_REGISTERS,
)
from warp_tiles.gemm.tile_config import Instruction, TileConfig
from warp_tiles.gemm.variant import DTYPE_BYTES, GemmVariant
from warp_tiles.heuristics.accesses import accesses
from warp_tiles.heuristics.limits import (
    INSTRUCTION_MNK,
    computes_in_double,
    line_bytes,
    register_tiles,
    registers,
    sides,
)
from warp_tiles.heuristics.wavefronts import wavefronts_of

_FEW_BLOCKS = 5
_MMA_CYCLES: dict[Instruction, int] = {"mma_m16n8k16": 6, "mma_m16n8k8": 6, "mma_m8n8k4": 16}


@dataclass(frozen=True)
class _Weights:
    """Weights of the estimate's terms, fitted to the times of kernels on an H200 (docs/design.md).

    Attributes:
        busy: Of what shared memory, selects or arithmetic are busy with.
        start, wavefront, select, cycle: Of the latency of one register tile, its wavefronts, selects and arithmetic.
        registers: Registers in use for each estimated one.
        result: Of the wavefronts of C, which loops that keep their sums in registers do not have.
        idle: Of the arithmetic of warps without a tile, where few blocks of four warps do not even it out.
        handover, addition: Of each warp after the first that adds its share of K to C: latency for each warp of the
            block, which waits at a barrier, and the wavefronts of C.
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
_FMA_WEIGHTS = _Weights(busy=1.1, start=270, wavefront=1.1, select=1, cycle=0.35, registers=1.2, handover=25)


def _resident_blocks(view: GemmVariant, registers_used: float) -> int:
    """Blocks of one multiprocessor, if shared memory holds A, B and C alone."""
    sizes = (view.m * view.k, view.k * view.n, view.m * view.n)
    tiles = sum(n * DTYPE_BYTES[o.dtype] for n, o in zip(sizes, (view.a, view.b, view.c)))
    by_registers = int(REGISTERS / (min(THREAD_REGISTERS, registers_used) * view.threads))
    return max(1, min(SHARED_BYTES // (tiles + 1024), by_registers, RESIDENT_THREADS // view.threads, RESIDENT_BLOCKS))


def cost(view: GemmVariant, config: TileConfig) -> float:
    """Estimated cycles: what shared memory, selects and arithmetic need, latency that few blocks cannot hide."""
    tiles = register_tiles(view, config) * config.warps_k  # or parts of tiles, each a warp's
    warps = view.threads // LANES
    iterations = -(-tiles // warps)
    lanewise = config.instruction == "fma"
    if lanewise:
        weights, (wavefronts, selects, arithmetic) = _FMA_WEIGHTS, _fma_estimate(view, config)
    else:
        weights = _DOUBLE_WEIGHTS if computes_in_double(view) else _MMA_WEIGHTS
        wavefronts, selects, arithmetic = _mma_estimate(view, config, weights.result)
    blocks = _resident_blocks(view, weights.registers * registers(view, config))
    scheduled: float = tiles
    if warps == 2:  # the first one is always on the same half of the schedulers, which is all that an odd tile has
        scheduled += tiles % 2
    elif warps == 4 and blocks <= _FEW_BLOCKS:
        scheduled += weights.idle * (-tiles % 4)
    busy = max(tiles * wavefronts, scheduled * max(selects / 2, arithmetic / 4))
    serial = weights.start + weights.wavefront * wavefronts + weights.select * selects + weights.cycle * arithmetic
    estimate_of_time = weights.busy * busy + iterations * serial / blocks
    # of two that are about as fast, the one without conflicts
    rough = 1.0 if lanewise else max(1.0, wavefront_ratio(view, config) / 1.25)
    additions = 0.0
    if config.warps_k > 1:
        moved = 0.0 if lanewise else 2 * register_tiles(view, config) * accesses(view, config)[2].wavefronts
        additions = (config.warps_k - 1) * (weights.handover * warps / blocks + weights.addition * moved)
    return float(estimate_of_time * rough**0.3 + additions)


def wavefront_ratio(view: GemmVariant, config: TileConfig) -> float:
    """Wavefronts of a product on tensor cores relative to the fewest that as many bytes take."""
    a, b, c = accesses(view, config)
    passes = 2 * config.warps_k  # over C
    return (a.wavefronts + b.wavefronts + passes * c.wavefronts) / (a.ideal + b.ideal + passes * c.ideal)


def _mma_estimate(view: GemmVariant, config: TileConfig, result: float) -> tuple[float, float, float]:
    """Of a warp's share of a register tile: wavefronts, some of them of C, selects a lane, and tensor-core cycles."""
    m, n, k = INSTRUCTION_MNK[config.instruction]
    a, b, c = accesses(view, config)
    wavefronts = (a.wavefronts + b.wavefronts) / config.warps_k + 2 * result * c.wavefronts
    selects = c.ideal * (config.swizzle_c.bit_length() - 1)
    for side, access in zip(sides(view, config), (a, b)):
        packs = 1 if not side.along and DTYPE_BYTES[side.operand.dtype] == 2 else 0
        selects += access.ideal / config.warps_k * (side.swizzle.bit_length() - 1 + packs)
    count = config.tile_m / m * config.tile_n / n * -(-view.k // k) / config.warps_k
    cycles = 32 if computes_in_double(view) and k == 8 else _MMA_CYCLES[config.instruction]
    return wavefronts, selects, count * cycles


def _lane(view: GemmVariant, config: TileConfig, number: int) -> tuple[int, int, int]:
    """Return the position of a lane along M, N and K, as ``kernels/gemm/fma_gemm.cuh`` computes it."""
    if view.b.arrangement == "row_major" and config.lanes_n >= 8:
        k, rest = divmod(number, LANES // config.lanes_k)
    else:
        rest, k = divmod(number, config.lanes_k)
    return rest // config.lanes_n, rest % config.lanes_n, k


class Reads(NamedTuple):
    """How a warp reads A or B for one register tile.

    Attributes:
        loads: Instructions.
        wavefronts: What they take together.
    """

    loads: int
    wavefronts: int


def fma_reads(view: GemmVariant, config: TileConfig) -> tuple[Reads, Reads]:
    """Reads of A and of B without tensor cores, for a row-major C; edges count as if they were inside."""
    steps = -(-view.k // (config.k_vector * config.lanes_k))
    shares = config.tile_m // config.lanes_m, config.tile_n // config.lanes_n
    lanes = [_lane(view, config, number) for number in range(LANES)]
    found = []
    for index, (side, count) in enumerate(zip(sides(view, config), shares)):
        size, line = DTYPE_BYTES[side.operand.dtype], line_bytes(side.operand)
        most = max(1, min(16, side.operand.alignment) // size)
        wide = min(config.k_vector if side.along else count & -count, most)
        places = []
        for lane in lanes:
            k = (lane[2] + (lane[1] & (config.swizzle_b - 1))) * config.k_vector
            places.append(lane[index] * line + k * size if side.along else k * line + lane[index] * wide * size)
        loads = steps * count * config.k_vector // wide
        found.append(Reads(loads, loads * wavefronts_of(tuple(places), wide * size)))
    return found[0], found[1]


def _fma_estimate(view: GemmVariant, config: TileConfig) -> tuple[float, float, float]:
    """Of a warp's share of a register tile: wavefronts, selects a lane, and cycles of its scheduler."""
    word = 2 if computes_in_double(view) else 1
    rows, cols = config.tile_m // config.lanes_m, config.tile_n // config.lanes_n
    steps = -(-view.k // (config.k_vector * config.lanes_k)) / config.warps_k
    a, b = fma_reads(view, config)
    products = steps * rows * cols * config.k_vector * word * 1.2
    shuffles = rows * cols * 4 * word * (config.lanes_k.bit_length() - 1)
    wide_c = max(1, min(cols & -cols, 16 // DTYPE_BYTES[view.c.dtype]))
    accesses = 2 * rows * cols // wide_c
    busy = products + shuffles + 2 * ((a.loads + b.loads) / config.warps_k + accesses) + 2 * rows * cols
    return (a.wavefronts + b.wavefronts) / config.warps_k + accesses * wide_c * word, 0.0, busy
