"""The estimated time of a product by its configuration. It is pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from warp_tiles.gemm.dtypes import DTYPE_BYTES
from warp_tiles.heuristics.matmul_problem import (
    WGMMA_ROWS,
    MatmulConfig,
    MatmulProblem,
    blocks_of_multiprocessor,
    ceil_div,
    has_wgmma,
    kind_of,
    resident_blocks,
    steps_of,
)


@dataclass(frozen=True)
class _Rates:
    """Speed of one multiprocessor, fitted to products of random sizes and layouts (not on record): float16 to the GPU's
    times on an H100, before wgmma computed transposes of C, the others to the times of calls on an H200.

    Attributes:
        products: Multiplications with additions in 1 us, of tiles larger than 128x128.
        of_128, two_groups: Its factor for tiles of 128x128 with 128 and with 256 threads.
        of_64, of_32, of_16: Its factor for tiles whose smaller side is 64, 32 and 16.
        loaded: Bytes that are loaded from the L2 cache in 1 us.
        step_us: Time between two steps of a loop that has nothing to load or multiply, in microseconds.
        copy_us: Time that each copy of a thread adds to a step.
        without_wgmma: Factor of the products on GPUs that have wgmma, for tiles that it cannot multiply.
        start_us: Time of a block's start and of its first loads.
        block_us: Time of a block that starts while another one runs.
        stored, stored_alone: Bytes of C that are written in 1 us, while other blocks run, and while none does.
        arrival_us: Time from the last sums of a tile to their addition.
        memory: Bytes that the whole GPU reads or writes in 1 us.
    """

    products: float
    of_128: float
    two_groups: float
    of_64: float
    of_32: float
    of_16: float
    loaded: float
    step_us: float
    copy_us: float = 0.0
    without_wgmma: float = 1.0
    start_us: float = 1.5
    block_us: float = 0.2
    stored: float = 3.0e4
    stored_alone: float = 2.0e4
    arrival_us: float = 3.0
    memory: float = math.inf


_RATES = {
    "float16": _Rates(
        3.74e6, of_128=0.72, two_groups=0.73, of_64=0.96, of_32=0.25, of_16=0.23, loaded=8.44e4, step_us=0.2,
        copy_us=6.3e-3, without_wgmma=0.5, start_us=0.72, block_us=0.91, stored=1.58e4, stored_alone=1.58e4,
        arrival_us=2.85, memory=4.2e6,
    ),
    "tf32": _Rates(
        1.24e6, of_128=1.0, two_groups=1.0, of_64=1.2, of_32=0.4, of_16=0.24, loaded=5.0e4, step_us=0.68
    ),
    "tf32 without wgmma": _Rates(
        1.24e6, of_128=1.0, two_groups=0.95, of_64=1.2, of_32=0.4, of_16=0.24, loaded=1.1e5, step_us=0.16
    ),
    "float32": _Rates(
        1.7e5, of_128=0.96, two_groups=0.93, of_64=0.94, of_32=0.73, of_16=0.44, loaded=7.8e4, step_us=0.68
    ),
    "float64": _Rates(
        1.35e5, of_128=1.0, two_groups=1.0, of_64=0.95, of_32=0.85, of_16=0.51, loaded=8.0e4, step_us=0.4
    ),
}  # fmt: skip
_OVERLAP = 3  # limits that take x and y alone take (x^3 + y^3)^(1/3) together
_MEMORY = 3.0e6  # bytes that the GPU reads or writes in 1 us
_LAUNCH_US = 3.0  # of the kernel that adds the products of a batch
_COPY_BYTES = 16


def cost_us(problem: MatmulProblem, config: MatmulConfig, arch: int, multiprocessors: int) -> float:
    """Estimated time in microseconds. It orders candidates; it is no prediction.

    A multiprocessor is limited by arithmetic, by the bytes that its blocks load from the L2 cache, and by the latency
    of loads, which its resident blocks share.
    """
    is_tf32_without = problem.tf32 and not has_wgmma(problem, arch)
    rates = _RATES["tf32 without wgmma" if is_tf32_without else kind_of(problem)]
    tile = config.tile_m * config.tile_n
    steps = steps_of(problem, config)
    depth = steps * config.tile_k
    loaded = depth * (config.tile_m * DTYPE_BYTES[problem.a] + config.tile_n * DTYPE_BYTES[problem.b])
    is_split = config.split_k > 1 or problem.summed
    stored = tile * DTYPE_BYTES[problem.sums if is_split else problem.out]
    count = blocks_of_multiprocessor(problem, config, multiprocessors)
    fitting = resident_blocks(problem, config, arch)
    resident = min(count, fitting)
    turns = ceil_div(count, resident)
    rate = _rate(rates, config)
    rate *= min(1.0, config.threads / 128, resident * config.threads / _full_threads(problem, arch))
    if arch == 90 and config.tile_m % WGMMA_ROWS and config.tile_n % WGMMA_ROWS:
        rate *= rates.without_wgmma
    copies = loaded / max(1, depth) * config.tile_k / (_COPY_BYTES * config.threads)  # of a thread in a step
    limits = (
        count * tile * depth / rate,
        count * loaded / rates.loaded,
        turns * steps * (rates.step_us + copies * rates.copy_us),
        _array_bytes(problem) / rates.memory,
    )
    time = math.pow(sum(math.pow(limit, _OVERLAP) for limit in limits), 1 / _OVERLAP)
    stored_in_us = rates.stored_alone if fitting == 1 else rates.stored
    time += turns * rates.start_us + count * (rates.block_us + stored / stored_in_us)
    if problem.summed:
        elements = config.split_k * problem.batch * problem.m * problem.n
        time += _LAUNCH_US + 2 * elements * DTYPE_BYTES[problem.sums] / _MEMORY
    elif is_split:  # one block of each tile reads the sums of all slices
        time += rates.arrival_us + config.split_k * tile * DTYPE_BYTES[problem.sums] / rates.loaded
    return time


def _array_bytes(problem: MatmulProblem) -> int:
    """Bytes of all matrices."""
    p = problem
    a, b, out = p.m * p.k * DTYPE_BYTES[p.a], p.k * p.n * DTYPE_BYTES[p.b], p.m * p.n * DTYPE_BYTES[p.out]
    return p.batch * out + (1 if p.a_shared else p.batch) * a + (1 if p.b_shared else p.batch) * b


def _rate(rates: _Rates, config: MatmulConfig) -> float:
    """Multiplications in 1 us, if enough threads are resident."""
    small = min(config.tile_m, config.tile_n)
    rate = rates.products
    if small < 128:
        rate *= rates.of_64 if small >= 64 else rates.of_32 if small >= 32 else rates.of_16
    elif config.tile_m == config.tile_n == 128:
        rate *= rates.two_groups if config.threads == 256 else rates.of_128
    return rate


def _full_threads(problem: MatmulProblem, arch: int) -> int:
    """Threads that keep a multiprocessor's arithmetic busy. One warpgroup does with wgmma, which is asynchronous."""
    return 128 if has_wgmma(problem, arch) else 256
