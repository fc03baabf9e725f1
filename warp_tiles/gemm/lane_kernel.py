"""The kernel of :func:`warp_tiles.matmul` for float32 and float64: its tiles, memory, source and estimate. Pure.

It is ``kernels/matmul/lane_matmul.cuh``, for sm_90: by fma, or by mma.sync for float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from warp_tiles.gemm.hardware import LANES, WGMMA_ARCH, multiprocessor
from warp_tiles.gemm.problem import DTYPE_BYTES
from warp_tiles.gemm.tensor_kernel import (
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

_BARRIERS = 3  # of a stage: its copies have arrived, it is multiplied, its panels are transposed
_FLAG_BYTES = 4
_SCHEDULER_THREADS = 4 * LANES  # a warp for each scheduler of a multiprocessor
_MOST_STAGES = 4
# estimates of float32 fitted to 27 products on an H200 (docs/experiments.md)
_START_US = 4.0  # of a launch
_STORED = 8.0e4  # bytes of C that a multiprocessor stores in 1 us
_ADD_US, _ADDED = 1.9, 3.2e4  # of slices: the time until they are added, and the bytes that are added in 1 us
_BLOCK_US = {1: 3.0, 2: 2.0, 3: 0.5}  # of a block's first loads and last stores, by how many are resident and hide them
_UNEVEN = 1.02  # factor of a stage's time if warps transpose unequal numbers of panels
_SHARES = {1: 0.68, 2: 0.93}  # of the speed of a multiprocessor, by the warps of each scheduler, if it could have more


@dataclass(frozen=True)
class Tile:
    """How the threads of a block share a tile.

    Attributes:
        warps_m, warps_n: Warps along M and N.
        lanes_m: Lanes of a warp along M.
        blocks: Blocks of a multiprocessor.
        step_us: The time of a multiprocessor for a stage of one block, if it runs so many.
        transposed: Another way, if panels are transposed, which takes registers.
    """

    warps_m: int
    warps_n: int
    lanes_m: int
    blocks: int
    step_us: float
    transposed: Tile | None = None


# by rows and columns
TILES = {
    "float32": {
        (256, 128): Tile(4, 2, 8, 1, 5.6),
        (128, 256): Tile(2, 4, 8, 1, 5.6),
        (128, 128): Tile(2, 4, 8, 2, 2.67, Tile(2, 2, 8, 2, 2.93)),
        (64, 128): Tile(2, 2, 4, 3, 1.55),
        (128, 64): Tile(2, 2, 8, 3, 1.55),
        (64, 64): Tile(2, 2, 4, 4, 0.8),
    },
    "float64": {
        (128, 128): Tile(2, 4, 8, 1, 1.15),
        (64, 128): Tile(2, 2, 8, 2, 0.58),
        (128, 64): Tile(2, 2, 8, 2, 0.58),
        (64, 64): Tile(2, 2, 8, 3, 0.3),
    },
}


@dataclass(frozen=True)
class LaneKernel(TensorKernel):
    """The constants of a kernel. It stores C itself, also if ``has_map``: then in vectors."""

    header: ClassVar[str] = "matmul/lane_matmul.cuh"
    entry: ClassVar[str] = "lane_matmul"
    registers: ClassVar[int] = 0  # the compiler decides
    most_slices: ClassVar[int] = 16
    slice_waves: ClassVar[int] = 2
    is_persistent: ClassVar[bool] = False

    @property
    def instruction(self) -> str:  # type: ignore[override]  # not a constant here
        return "fma" if self.a == "float32" else "mma"

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
        return tuple(TILES[self.a])

    @property
    def in_registers(self) -> bool:
        return False

    @property
    def boxes(self) -> tuple[tuple[int, int], ...]:
        depth, sides = self.tile_k, ((self.tile_m, self.a_along_m), (self.tile_n, self.b_along_n))
        most = depth if self.a == "float64" else max(self.tile_m, self.tile_n)
        return tuple((min(side, most), depth) if is_along else (depth, side) for side, is_along in sides)

    @property
    def swizzles(self) -> tuple[int, ...]:
        is_float = self.a == "float32"
        return 0 if is_float and self.a_along_m else ROW_BYTES, 0 if is_float and self.b_along_n else ROW_BYTES

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
    def _tile(self) -> Tile:
        tile = TILES[self.a][self.tile_m, self.tile_n]
        return (tile.transposed or tile) if self._transposed_panels else tile

    @property
    def _transposed_panels(self) -> int:
        """The panels of a stage that are transposed: along K, or those of B along N for float64."""
        is_b_transposed = self.b_along_n if self.a == "float64" else not self.b_along_n
        lines = (0 if self.a_along_m else self.tile_m) + (self.tile_n if is_b_transposed else 0)
        return lines // self.tile_k

    def _config(self, function: str) -> str:
        return template(
            "LaneConfig",
            *(code_of(self.a), code_of(self.bias), function, self.tile_m, self.tile_n),
            *(*self.warps, self._tile.lanes_m, self.stages),
            *(self.a_along_m, self.b_along_n, self.has_beta, self.has_slices, not self.has_map),
        )

    def launch_us(self, slices: Slices, k: int, array_bytes: int, multiprocessors: int) -> float:
        """Estimated time of a launch in microseconds."""
        tile_bytes, steps = self.tile_m * self.tile_n * DTYPE_BYTES[self.a], -(-k // self.tile_k)
        is_uneven = self._transposed_panels % math.prod(self.warps) > 0
        step_us = self._tile.step_us * (_UNEVEN if is_uneven else 1.0)

        def blocks_us(blocks: int, steps: int) -> float:
            waves, rest = divmod(-(-blocks // multiprocessors), self.resident_blocks)
            share = _SHARES.get(rest * self.threads // _SCHEDULER_THREADS, 1.0)
            block_us = steps * step_us + tile_bytes / _STORED + _BLOCK_US.get(self.resident_blocks, 0.0)
            return (waves * self.resident_blocks + rest / share) * block_us

        time_us = blocks_us(slices.whole, steps)
        if slices.split:
            time_us += blocks_us(slices.split * slices.count, -(-steps // slices.count))
            time_us += _ADD_US + slices.count * tile_bytes / _ADDED
        return _START_US + overlapped(time_us, array_bytes / MEMORY)
