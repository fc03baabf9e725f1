"""Rates of the loops of :func:`warp_tiles.matmul`, from which ``matmul_choice.py`` estimates their times."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Rates:
    """Speed of one multiprocessor, fitted to products of random sizes and layouts, which are not on record.

    float16 was fitted on an H100, and the times of its blocks with wgmma on an H200, as the other types.
    ``benchmarks/tune_matmul.py --fit`` compares the rates with the times on record of other products
    (``benchmarks/results/matmul_timings.json``), and fits others. docs/experiments.md says why these stay.
    """

    products: float  # multiplications with additions in 1 us, of tiles larger than 128x128
    of_128: float  # its factor for tiles of 128x128 with 128 threads
    two_groups: float  # ... and with 256
    of_64: float  # ... for tiles whose smaller side is 64
    of_32: float
    of_16: float
    loaded: float  # bytes that are loaded from the L2 cache in 1 us
    step_us: float  # between two steps of a loop that has nothing to load or multiply
    copy_us: float = 0.0  # that each copy of a thread adds to a step
    without_wgmma: float = 1.0  # factor of the products on GPUs that have wgmma, for tiles that it cannot multiply
    start_us: float = 1.5  # of a block's start and of its first loads
    block_us: float = 0.2  # of a block that starts while another one runs
    stored: float = 3.0e4  # bytes of C that are written in 1 us while other blocks run
    stored_alone: float = 2.0e4  # ... and while none does
    arrival_us: float = 3.0  # from the last accumulators of a tile to their addition
    memory: float = math.inf  # bytes that the whole GPU reads or writes in 1 us


_HALF = Rates(
    3.74e6, of_128=0.72, two_groups=0.73, of_64=0.96, of_32=0.25, of_16=0.23, loaded=8.44e4, step_us=0.2,
    copy_us=6.3e-3, without_wgmma=0.5, start_us=0.72, block_us=0.91, stored=1.58e4, stored_alone=1.58e4,
    arrival_us=2.85, memory=4.2e6,
)  # fmt: skip
RATES = {
    "float16": replace(_HALF, start_us=0.3, block_us=0.19, stored=3.0e4, stored_alone=3.0e4),
    "float16 without wgmma": _HALF,
    "tf32": Rates(
        1.24e6, of_128=1.0, two_groups=1.0, of_64=1.2, of_32=0.4, of_16=0.24, loaded=5.0e4, step_us=0.68
    ),
    "tf32 without wgmma": Rates(
        1.24e6, of_128=1.0, two_groups=0.95, of_64=1.2, of_32=0.4, of_16=0.24, loaded=1.1e5, step_us=0.16
    ),
    "float32": Rates(
        1.7e5, of_128=0.96, two_groups=0.93, of_64=0.94, of_32=0.73, of_16=0.44, loaded=7.8e4, step_us=0.68
    ),
    "float64": Rates(
        1.35e5, of_128=1.0, two_groups=1.0, of_64=0.95, of_32=0.85, of_16=0.51, loaded=8.0e4, step_us=0.4
    ),
}  # fmt: skip
