"""The arguments from which a block computes its matrix, its slice and its tile. Pure."""

from __future__ import annotations


def inverse(divisor: int) -> int:
    """2**32 divided by a positive divisor, rounded down, and at most 2**32 - 1.

    For a number below 2**32, the upper 32 bits of its product with the inverse are its quotient, or one less.
    """
    return min(2**32 // divisor, 2**32 - 1)


def raster_arguments(rows: int, columns: int, group: int, slices: int) -> list[int]:
    """The arguments ``rows`` to ``of_last_height`` of :func:`warp_tiles.matmul.kernels.tile_kernel`.

    Args:
        rows, columns: Tiles of C.
        group: Rows of tiles in a group.
        slices: Slices of K.
    """
    divisors = (rows * columns * slices, rows * columns, group * columns, group, rows % group or group)
    return [rows, columns, group, *map(inverse, divisors)]
