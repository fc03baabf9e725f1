"""Bounds of the speed of a product of tiles in shared memory, from data movement and arithmetic alone.

Shared memory moves 128 bytes per clock and multiprocessor. A and B move once for each warp tile that needs them. C
moves in and out once for each warp that adds to it. The arithmetic has a dense rate. Bank conflicts, other instructions
and waiting are left out. So no kernel whose warps all move A, B and C in each call is faster. A kernel that keeps the
sums of a loop in registers can be faster: for it ``c_moves`` is 0.

:func:`ideal` splits C over all warps, and also K if C is as wide as the sums, in the way that moves the fewest bytes.
For example, fp16 64x64x64 with four warps reads A and B twice each, in 512 clocks, which gives 237 TFLOP/s on 132
multiprocessors at 1.755 GHz. If C does not count, each warp sums a quarter of K, and A and B are read once.
:func:`configured` computes the same for the chosen warp tiles, of which there may be fewer than warps.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warp_tiles.gemm.hardware import LANES
from warp_tiles.gemm.problem import DTYPE_BYTES

SHARED_BYTES_PER_CLOCK = 128
# Floating-point operations per clock and multiprocessor of sm_90: 989 TFLOP/s of dense fp16, from NVIDIA's data sheet,
# are 4096 on 132 multiprocessors at 1.83 GHz. mma.sync may stay below the rate of wgmma; `--rate` takes another.
RATES: dict[str, float] = {"fp16": 4096, "tf32": 2048, "fp32": 256, "fp64": 256}
BYTES = {str(name): size for name, size in DTYPE_BYTES.items()}
_SMALLEST_ROWS, _SMALLEST_COLS, _SMALLEST_SHARE = 16, 8, 16  # of a tensor-core instruction


@dataclass(frozen=True)
class Product:
    """``C += A @ B`` and its dtypes."""

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    tf32: bool = False

    @property
    def flops(self) -> int:
        """Floating-point operations of one call."""
        return 2 * self.m * self.n * self.k

    def adjoints(self) -> tuple[Product, Product]:
        """``adjA += adjC @ B^T`` and ``adjB += A^T @ adjC``."""
        return (
            Product(self.m, self.k, self.n, self.c, self.b, self.a, self.tf32),
            Product(self.k, self.n, self.m, self.a, self.c, self.b, self.tf32),
        )

    def arithmetic(self, rates: Mapping[str, float]) -> float:
        """Clocks of one multiprocessor at the dense rate of the narrowest instruction that is exact enough."""
        narrow = sum(BYTES[dtype] == 2 for dtype in (self.a, self.b))
        if "float64" in (self.a, self.b, self.c):
            rate = rates["fp64"]
        elif narrow == 2:
            rate = rates["fp16"] if self.a == self.b else rates["tf32"]
        elif self.tf32:
            rate = rates["tf32"]
        elif narrow == 1 and BYTES[self.c] == 2:
            rate = rates["tf32"] / 2  # the fp32 operand in two parts
        else:
            rate = rates["fp32"]
        return self.flops / rate


@dataclass(frozen=True)
class Bound:
    """Clocks of one multiprocessor, and their limit: ``shared memory`` or ``arithmetic``."""

    clocks: float
    limit: str

    def tflops(self, flops: int, multiprocessors: int, clock_ghz: float) -> float:
        """The rate, in TFLOP/s of the whole GPU, at which ``flops`` are done in these clocks."""
        return flops / self.clocks * multiprocessors * clock_ghz / 1e3


def _bound(product: Product, times_a: int, times_b: int, rates: Mapping[str, float], c_moves: int = 2) -> Bound:
    """The bound if A is read ``times_a`` times and B ``times_b`` times, and C read and written ``c_moves`` times."""
    moved = (
        times_a * product.m * product.k * BYTES[product.a]
        + times_b * product.k * product.n * BYTES[product.b]
        + c_moves * product.m * product.n * BYTES[product.c]
    )
    shared, arithmetic = moved / SHARED_BYTES_PER_CLOCK, product.arithmetic(rates)
    return Bound(shared, "shared memory") if shared >= arithmetic else Bound(arithmetic, "arithmetic")


def ideal(product: Product, threads: int, rates: Mapping[str, float] = RATES, c_moves: int = 2) -> Bound:
    """The bound of the best split of C and K over all warps that have a share. Fewer warps could move less."""
    warps = threads // LANES
    max_rows, max_cols = -(-product.m // _SMALLEST_ROWS), -(-product.n // _SMALLEST_COLS)
    max_parts = max(1, product.k // _SMALLEST_SHARE) if BYTES[product.c] >= 4 else 1
    while True:
        sizes = [size for size in range(1, warps + 1) if warps % size == 0]
        possible = [
            _bound(product, cols, rows, rates, c_moves * parts)
            for rows, cols, parts in itertools.product(sizes, repeat=3)
            if rows * cols * parts == warps and rows <= max_rows and cols <= max_cols and parts <= max_parts
        ]
        if possible:
            return min(possible, key=lambda bound: bound.clocks)
        warps -= 1


def configured(product: Product, tile_config: Mapping[str, Any], rates: Mapping[str, float] = RATES) -> Bound:
    """The bound with the warp tiles of a ``TileConfig``, given as JSON values."""
    tile_m, tile_n = tile_config["tile_m"], tile_config["tile_n"]
    if tile_config["transposed"]:
        tile_m, tile_n = tile_n, tile_m
    return _bound(product, -(-product.n // tile_n), -(-product.m // tile_m), rates, 2 * tile_config["warps_k"])


def in_turn(bounds: Sequence[Bound]) -> Bound:
    """The bound of products one after the other: the sum of their clocks, and the limit of the longest."""
    return Bound(sum(bound.clocks for bound in bounds), max(bounds, key=lambda bound: bound.clocks).limit)
