"""The kernel of :func:`warp_tiles.matmul` for float32 and float64: its tiles, memory, source and estimate. Pure.

It is ``kernels/matmul/lane_matmul.cuh``, for sm_90: by fma, and by mma.sync for float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from warp_tiles.array_products.tensor_kernel import (
    ALIGNMENT,
    BARRIER_BYTES,
    MEMORY,
    ROW_BYTES,
    Slices,
    TensorKernel,
    code_of,
    overlapped,
    template,
)
from warp_tiles.gemm.hardware import LANES, WGMMA_ARCH, multiprocessor
from warp_tiles.gemm.pipeline import WARPGROUP
from warp_tiles.gemm.problem import DTYPE_BYTES

_BARRIERS = 3  # of a stage: its copies have arrived, it is multiplied, its panels are transposed
_FLAG_BYTES = 4
_SCHEDULERS = 4  # of a multiprocessor
_MOST_STAGES = {"float32": 4, "float64": 6}
_UNEVEN_PANELS = 1.02  # factor of a stage's time if warps transpose unequal numbers of panels


@dataclass(frozen=True)
class LaneRates:
    """Constants of the estimates, fitted to launches on an H200 (docs/experiments.md).

    Attributes:
        start_us: Of a launch.
        stored: Bytes of C that a multiprocessor stores in 1 us, in vectors.
        stored_elements: ... one by one, by the number of resident blocks.
        stored_hidden: ... one by one, if more are resident.
        add_us, added: Of slices: the time until they are added, and the bytes that are added in 1 us.
        uneven_slices_us: Further time of a long and a short slice.
        block_us: Of a block's first loads and last stores, by the number of resident blocks, which hide them.
        of_two_warps: Speed with two warps for each scheduler, as a part of that with all resident blocks.
        spread: Later blocks are uneven: the busiest multiprocessor gets so many more than the mean.
    """

    start_us: float
    stored: float
    stored_elements: Mapping[int, float]
    stored_hidden: float
    add_us: float
    added: float
    block_us: Mapping[int, float]
    of_two_warps: float
    spread: float
    uneven_slices_us: float = 0.0


# fitted to 27 products with 286 launches (float32), and to 31 with 566 (float64)
RATES = {
    "float32": LaneRates(
        start_us=7.5, stored=9.0e4, stored_elements={1: 6.0e3, 2: 9.0e3}, stored_hidden=2.3e4, add_us=2.4, added=4.2e4,
        block_us={1: 2.3, 2: 1.3, 3: 0.5}, of_two_warps=0.95, spread=0.5,
    ),
    "float64": LaneRates(
        start_us=8.2, stored=1.5e5, stored_elements={}, stored_hidden=1.5e5, add_us=1.8, added=4.0e4,
        block_us={1: 2.2, 2: 0.6, 3: 0.4, 4: 0.3}, of_two_warps=0.78, spread=0.43, uneven_slices_us=11.0,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class LaneTile:
    """How the threads of a block share a tile.

    Attributes:
        warps_m, warps_n: Warps along M and N.
        blocks: Resident blocks of a multiprocessor.
        step_us: Time of a multiprocessor for a stage of one block, while so many are resident.
        of_one_warp: Speed with one warp for each scheduler, as a part of that speed.
        transposed: The tile if panels are transposed, which takes registers; None if it is the same.
        has_loaders: True if a warpgroup beside them only loads.
        lanes_m: Of float32: the lanes of a warp along M.
        unrolled: Of float32: the elements of K whose products are unrolled.
    """

    warps_m: int
    warps_n: int
    blocks: int
    step_us: float
    of_one_warp: float = 1.0
    transposed: LaneTile | None = None
    has_loaders: bool = False
    lanes_m: int = 0
    unrolled: int = 0


# by rows and columns
TILES: dict[str, dict[tuple[int, int], LaneTile]] = {
    "float32": {
        (256, 128): LaneTile(4, 2, blocks=1, step_us=5.4, lanes_m=4, unrolled=8),
        (128, 256): LaneTile(2, 4, blocks=1, step_us=5.4, lanes_m=4, unrolled=8),
        (128, 128): LaneTile(2, 4, blocks=2, step_us=2.65, lanes_m=8, unrolled=16,
            transposed=LaneTile(2, 2, blocks=2, step_us=2.78, lanes_m=4, unrolled=8, of_one_warp=0.84)),
        (64, 128): LaneTile(2, 2, blocks=3, step_us=1.40, lanes_m=4, unrolled=16, of_one_warp=0.73),
        (128, 64): LaneTile(2, 2, blocks=3, step_us=1.40, lanes_m=8, unrolled=16, of_one_warp=0.73),
        (64, 64): LaneTile(2, 2, blocks=4, step_us=0.74, lanes_m=4, unrolled=16, of_one_warp=0.75,
            transposed=LaneTile(2, 2, blocks=4, step_us=0.785, lanes_m=4, unrolled=32, of_one_warp=0.75)),
    },
    "float64": {
        (128, 128): LaneTile(2, 4, blocks=1, step_us=1.15, has_loaders=True),
        (64, 128): LaneTile(1, 4, blocks=2, step_us=0.63, of_one_warp=0.63),
        (128, 64): LaneTile(2, 2, blocks=2, step_us=0.63, of_one_warp=0.63),
        (96, 64): LaneTile(3, 2, blocks=2, step_us=0.50, of_one_warp=0.63),
        (64, 64): LaneTile(2, 2, blocks=3, step_us=0.317, of_one_warp=0.63),
        (64, 32): LaneTile(2, 1, blocks=4, step_us=0.18, of_one_warp=0.63),
        (32, 64): LaneTile(1, 2, blocks=4, step_us=0.18, of_one_warp=0.63),
    },
}  # fmt: skip


@dataclass(frozen=True)
class LaneKernel(TensorKernel):
    """The constants of a kernel. It stores C itself, also if ``has_map``: then in vectors."""

    header: ClassVar[str] = "matmul/lane_matmul.cuh"
    entry: ClassVar[str] = "lane_matmul"
    registers: ClassVar[int] = 0  # the compiler decides
    most_slices: ClassVar[int] = 16
    is_persistent: ClassVar[bool] = False

    @property
    def instruction(self) -> str:
        return "mma" if self.a == "float64" else "fma"

    @property
    def warps(self) -> tuple[int, int]:
        return self._tile.warps_m, self._tile.warps_n

    @property
    def threads(self) -> int:
        return LANES * math.prod(self.warps) + (WARPGROUP if self._tile.has_loaders else 0)

    @property
    def resident_blocks(self) -> int:
        return self._tile.blocks

    @property
    def tiles(self) -> Sequence[tuple[int, int]]:
        return tuple(TILES[self.a])

    @property
    def may_have_slices(self) -> bool:
        return True

    def most_waves(self, *, are_alone: bool) -> int:
        return 4 if are_alone and self.a == "float32" else 2

    @property
    def in_registers(self) -> bool:
        return False

    @property
    def boxes(self) -> tuple[tuple[int, int], ...]:
        depth, sides = self.tile_k, ((self.tile_m, self.a_along_m), (self.tile_n, self.b_along_n))
        return tuple((depth, depth if is_along else side) for side, is_along in sides)

    @property
    def swizzles(self) -> tuple[int, ...]:
        along = ROW_BYTES if self.a == "float64" else 0
        return along if self.a_along_m else ROW_BYTES, along if self.b_along_n else ROW_BYTES

    @property
    def stages(self) -> int:
        memory = multiprocessor(WGMMA_ARCH)
        usable = memory.shared_bytes // self.resident_blocks - memory.reserved_bytes
        return min(_MOST_STAGES[self.a], (usable - ALIGNMENT - _FLAG_BYTES) // self._stage_bytes)

    @property
    def shared_bytes(self) -> int:
        return self.stages * self._stage_bytes + ALIGNMENT + _FLAG_BYTES

    @property
    def _stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * ROW_BYTES + _BARRIERS * BARRIER_BYTES

    @property
    def _tile(self) -> LaneTile:
        tile = TILES[self.a][self.tile_m, self.tile_n]
        return (tile.transposed or tile) if self._transposed_panels else tile

    @property
    def _transposed_panels(self) -> int:
        """The panels of a stage that are transposed: those of float32 that are contiguous along K."""
        if self.a == "float64":
            return 0
        return ((0 if self.a_along_m else self.tile_m) + (0 if self.b_along_n else self.tile_n)) // self.tile_k

    def _config(self, function: str) -> str:
        tile = self._tile
        return template(
            "LaneConfig",
            code_of(self.a),
            *(code_of(self.bias), function, self.tile_m, self.tile_n),
            *(*self.warps, tile.has_loaders, self.stages),
            *(self.a_along_m, self.b_along_n, self.has_beta, self.has_slices, not self.has_map),
            *((tile.lanes_m, tile.unrolled) if self.instruction == "fma" else ()),
        )

    def launch_us(
        self, slices: Slices, k: int, row_bytes: tuple[int, int], array_bytes: int, multiprocessors: int
    ) -> float:
        tile_bytes, steps = self.tile_m * self.tile_n * DTYPE_BYTES[self.a], -(-k // self.tile_k)
        tile, blocks, rates = self._tile, self.resident_blocks, RATES[self.a]
        are_uneven = self._transposed_panels > 2 and self._transposed_panels % math.prod(self.warps) > 0
        stored = rates.stored if self.has_map else rates.stored_elements.get(blocks, rates.stored_hidden)
        step_us = tile.step_us * (_UNEVEN_PANELS if are_uneven else 1.0)

        def one_block_us(stages: int) -> float:
            return stages * step_us + tile_bytes / stored + rates.block_us.get(blocks, 0.0)

        def blocks_us(count: int, stages: int, is_first: bool) -> float:
            """The time of so many blocks. Only the first ones are spread evenly."""
            waves, rest = divmod(count, blocks * multiprocessors)
            mean = rest / multiprocessors
            even = is_first and not waves
            most = math.ceil(mean) if even else min(blocks, max(1.0, mean + rates.spread)) if rest else 0.0
            warps = most * math.prod(self.warps) / _SCHEDULERS
            of_warps = {1: tile.of_one_warp, 2: rates.of_two_warps}.get(max(1, round(warps)), 1.0) * min(1.0, warps)
            share = of_warps if 0 < most < blocks else 1.0
            return (waves * blocks + most / share) * one_block_us(stages)

        time_us = blocks_us(slices.whole, steps, True)
        if slices.split:
            if slices.is_uneven:  # second slices run beside the first ones
                first_us = blocks_us(slices.split, slices.stages, not slices.whole)
                time_us += max(first_us, slices.split / multiprocessors * one_block_us(steps)) + rates.uneven_slices_us
            else:
                time_us += blocks_us(slices.split * slices.count, slices.stages, not slices.whole)
            time_us += rates.add_us + slices.count * tile_bytes / rates.added
        return rates.start_us + overlapped(time_us, array_bytes / MEMORY)
