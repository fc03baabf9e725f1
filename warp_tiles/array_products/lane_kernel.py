"""The kernel of :func:`warp_tiles.matmul` for float32: its tiles, memory, source and estimate. Pure.

It is ``kernels/matmul/lane_matmul.cuh``, for sm_90: by fma.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from warp_tiles.array_products.tensor_kernel import (
    ALIGNMENT,
    BARRIER_BYTES,
    MEMORY,
    MOST_SUMS,
    ROW_BYTES,
    Slices,
    TensorKernel,
    code_of,
    overlapped,
    template,
)
from warp_tiles.gemm.hardware import LANES, WGMMA_ARCH, multiprocessor
from warp_tiles.gemm.problem import DTYPE_BYTES

_BARRIERS = 3  # of a stage: its copies have arrived, it is multiplied, its panels are transposed
_FLAG_BYTES = 4
_SCHEDULER_THREADS = 4 * LANES  # a warp for each scheduler of a multiprocessor
_MOST_STAGES = 4
# estimates, fitted to 27 products with 286 launches on an H200 (docs/experiments.md)
_START_US = 7.5  # of a launch
# bytes of C that a multiprocessor stores in 1 us, in vectors, and one by one by how many blocks are resident
_STORED, _STORED_ELEMENTS = 9.0e4, {1: 6.0e3, 2: 9.0e3}
_STORED_HIDDEN = 2.3e4  # ... one by one, if more are resident
_ADD_US, _ADDED = 2.4, 4.2e4  # of slices: the time until they are added, and the bytes that are added in 1 us
_BLOCK_US = {1: 2.3, 2: 1.3, 3: 0.5}  # of a block's first loads and last stores, by how many are resident and hide them
_UNEVEN = 1.03  # factor of a stage's time if warps transpose unequal numbers of panels
_SLICED = 1.06  # ... if a tile of 128x128 has slices, whose registers are fewer
_OF_TWO_WARPS = 0.95  # speed with two warps for each scheduler, as a part of that with all resident blocks
_SPREAD = 0.5  # later blocks are uneven: the busiest multiprocessor gets so many more than the mean


@dataclass(frozen=True)
class LaneTile:
    """How the threads of a block share a tile.

    Attributes:
        warps_m, warps_n: Warps along M and N.
        lanes_m: Lanes of a warp along M.
        unrolled: The elements of K whose products are unrolled.
        blocks: Resident blocks of a multiprocessor.
        step_us: Time of a multiprocessor for a stage of one block, while so many are resident.
        of_one_warp: Speed with one warp for each scheduler, as a part of that speed.
        transposed: The tile if panels are transposed, which takes registers; None if it is the same.
    """

    warps_m: int
    warps_n: int
    lanes_m: int
    unrolled: int
    blocks: int
    step_us: float
    of_one_warp: float = 1.0
    transposed: LaneTile | None = None


# by rows and columns
TILES = {
    (256, 128): LaneTile(4, 2, 8, 8, 1, 5.4),
    (128, 256): LaneTile(2, 4, 8, 8, 1, 5.4),
    (128, 128): LaneTile(2, 4, 8, 16, 2, 2.65, transposed=LaneTile(2, 2, 8, 16, 2, 3.0, 0.6)),
    (64, 128): LaneTile(2, 2, 4, 32, 3, 1.55, 0.6),
    (128, 64): LaneTile(2, 2, 8, 32, 3, 1.55, 0.6),
    (64, 64): LaneTile(2, 2, 8, 16, 4, 0.74, 0.75, LaneTile(2, 2, 4, 32, 4, 0.785, 0.75)),
}


@dataclass(frozen=True)
class LaneKernel(TensorKernel):
    """The constants of a kernel. It stores C itself, also if ``has_map``: then in vectors."""

    header: ClassVar[str] = "matmul/lane_matmul.cuh"
    entry: ClassVar[str] = "lane_matmul"
    instruction: ClassVar[str] = "fma"
    registers: ClassVar[int] = 0  # the compiler decides
    most_slices: ClassVar[int] = 16
    slice_waves: ClassVar[int] = 2
    is_persistent: ClassVar[bool] = False

    @property
    def warps(self) -> tuple[int, int]:
        return self._tile.warps_m, self._tile.warps_n

    @property
    def threads(self) -> int:
        return LANES * math.prod(self.warps)

    @property
    def resident_blocks(self) -> int:
        return self._tile.blocks

    @property
    def tiles(self) -> Sequence[tuple[int, int]]:
        return tuple(TILES)

    @property
    def in_registers(self) -> bool:
        return False

    @property
    def boxes(self) -> tuple[tuple[int, int], ...]:
        depth, sides = self.tile_k, ((self.tile_m, self.a_along_m), (self.tile_n, self.b_along_n))
        return tuple((depth, depth if is_along else side) for side, is_along in sides)

    @property
    def swizzles(self) -> tuple[int, ...]:
        return 0 if self.a_along_m else ROW_BYTES, 0 if self.b_along_n else ROW_BYTES

    @property
    def stages(self) -> int:
        memory = multiprocessor(WGMMA_ARCH)
        usable = memory.shared_bytes // self.resident_blocks - memory.reserved_bytes
        return min(_MOST_STAGES, (usable - ALIGNMENT - _FLAG_BYTES) // self._stage_bytes)

    @property
    def shared_bytes(self) -> int:
        return self.stages * self._stage_bytes + ALIGNMENT + _FLAG_BYTES

    @property
    def _stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * ROW_BYTES + _BARRIERS * BARRIER_BYTES

    @property
    def _tile(self) -> LaneTile:
        tile = TILES[self.tile_m, self.tile_n]
        return (tile.transposed or tile) if self._transposed_panels else tile

    @property
    def _transposed_panels(self) -> int:
        """The panels of a stage that are transposed, because they are contiguous along K."""
        return ((0 if self.a_along_m else self.tile_m) + (0 if self.b_along_n else self.tile_n)) // self.tile_k

    def _config(self, function: str) -> str:
        return template(
            "LaneConfig",
            *(code_of(self.bias), function, self.tile_m, self.tile_n),
            *(*self.warps, self._tile.lanes_m, self._tile.unrolled, self.stages),
            *(self.a_along_m, self.b_along_n, self.has_beta, self.has_slices, not self.has_map),
        )

    def launch_us(
        self, slices: Slices, k: int, row_bytes: tuple[int, int], array_bytes: int, multiprocessors: int
    ) -> float:
        tile_bytes, steps = self.tile_m * self.tile_n * DTYPE_BYTES[self.a], -(-k // self.tile_k)
        tile, blocks, threads = self._tile, self.resident_blocks, self.threads
        is_uneven = self._transposed_panels > 2 and self._transposed_panels % math.prod(self.warps) > 0
        stored_us = tile_bytes / (_STORED if self.has_map else _STORED_ELEMENTS.get(blocks, _STORED_HIDDEN))
        is_slower = self.has_slices and self.tile_m * self.tile_n >= MOST_SUMS
        step_us = tile.step_us * (_UNEVEN if is_uneven else 1.0) * (_SLICED if is_slower else 1.0)

        def blocks_us(count: int, steps: int, is_first: bool) -> float:
            """The time of so many blocks. Only the first ones are spread evenly."""
            waves, rest = divmod(count, blocks * multiprocessors)
            mean = rest / multiprocessors
            most = math.ceil(mean) if is_first and not waves else min(blocks, max(1.0, mean + _SPREAD)) if rest else 0.0
            warps = round(most * threads / _SCHEDULER_THREADS)
            share = {1: tile.of_one_warp, 2: _OF_TWO_WARPS}.get(warps, 1.0) if most < blocks else 1.0
            block_us = steps * step_us + stored_us + _BLOCK_US.get(blocks, 0.0)
            return (waves * blocks + most / share) * block_us

        time_us = blocks_us(slices.whole, steps, True)
        if slices.split:
            time_us += blocks_us(slices.split * slices.count, -(-steps // slices.count), not slices.whole)
            time_us += _ADD_US + slices.count * tile_bytes / _ADDED
        return _START_US + overlapped(time_us, array_bytes / MEMORY)
