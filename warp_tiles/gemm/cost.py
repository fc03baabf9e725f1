"""The cost model: estimated cycles of one multiprocessor for one call with a tile configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warp_tiles.gemm.accesses import accesses
from warp_tiles.gemm.hardware import LANES
from warp_tiles.gemm.limits import (
    INSTRUCTION_MNK,
    computes_in_double,
    line_bytes,
    registers,
    sides,
    warp_tile_count,
)
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem
from warp_tiles.gemm.resources import resident_blocks, static_shared_bytes
from warp_tiles.gemm.tile_config import Instruction, TileConfig
from warp_tiles.gemm.wavefronts import wavefronts_of

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
_FMA_WEIGHTS = _Weights(busy=1.1, start=270, wavefront=1.1, select=1, cycle=0.35, registers=1.2, handover=25)


def _resident_blocks(view: GemmProblem, registers_used: float) -> int:
    """Resident blocks per multiprocessor, if shared memory holds only A, B and C.

    The weights were fitted without the static memory of Warp's headers. With it, tf32 products of 32x32x128 by 128
    threads got another tile, which took 1.4 times as long on an H100.
    """
    sizes = (view.m * view.k, view.k * view.n, view.m * view.n)
    tiles = sum(n * DTYPE_BYTES[o.dtype] for n, o in zip(sizes, (view.a, view.b, view.c)))
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
    elif warps == 4 and blocks <= _FEW_BLOCKS:
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


class Reads(NamedTuple):
    """The reads of A or B by a warp for one warp tile."""

    loads: int
    wavefronts: int


def fma_reads(view: GemmProblem, config: TileConfig) -> tuple[Reads, Reads]:
    """The reads of A and of B without tensor cores, for a row-major C. Tiles at the edges count as full tiles."""
    steps = -(-view.k // (config.k_vector * config.lanes_k))
    shares = config.tile_m // config.lanes_m, config.tile_n // config.lanes_n
    lanes = [_lane(view, config, number) for number in range(LANES)]
    found = []
    for index, (side, count) in enumerate(zip(sides(view, config), shares)):
        size, line = DTYPE_BYTES[side.operand.dtype], line_bytes(side.operand)
        most = max(1, min(16, side.operand.alignment) // size)
        wide = min(config.k_vector if side.k_major else count & -count, most)
        addresses = []
        for lane in lanes:
            k = (lane[2] + (lane[1] & (config.swizzle_b - 1))) * config.k_vector
            addresses.append(lane[index] * line + k * size if side.k_major else k * line + lane[index] * wide * size)
        loads = steps * count * config.k_vector // wide
        found.append(Reads(loads, loads * wavefronts_of(tuple(addresses), wide * size)))
    return found[0], found[1]


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
    busy = products + shuffles + 2 * ((a.loads + b.loads) / config.warps_k + accesses) + 2 * rows * cols
    return (a.wavefronts + b.wavefronts) / config.warps_k + accesses * wide_c * word, 0.0, busy
