"""A kernel that reduces the rows of a tile. Tests on the emulator and on a GPU use it."""

from typing import Any

import numpy as np
import numpy.typing as npt

_TEXT = """
@wp.func
def max(x: wp.float32, y: wp.float32):
    return wp.max(x, y)
@wp.kernel(enable_backward=False)
def reduce(
    A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), X: wp.array2d(dtype=wp.float32),
    R: wp.array2d(dtype=wp.float32),
):
    a = wp.tile_load(A, shape=({rows}, 16), storage="shared")
    b = wp.tile_load(B, shape=(16, {columns}), storage="shared")
    x = wp.tile_load(X, shape=({rows}, {columns}), storage="shared")
    wp.tile_store(R[0], wp.tile_sum(x, axis=1))
    wp.tile_store(R[1], wp.tile_reduce(wp.max, x, axis=1))
    wp.tile_store(R[2], wp.tile_reduce(wp.min, x, axis=1))
    y = wp.tile_map(wp.mul, x, x)
    wp.tile_store(R[3], wp.tile_sum(y, axis=1))
    x += y
    wp.tile_store(R[4], wp.tile_sum(x, axis=1))
    wp.tile_matmul(a, b, x)
    wp.tile_store(R[5], wp.tile_sum(x, axis=1))
    wp.tile_store(R[6], wp.tile_reduce(max, x, axis=1))
    wp.tile_store(R[7], wp.tile_sum(x, axis=0))
"""
ROWS = 8  # of R
REDUCED = 6  # reductions of rows by commutative builtins
SIZES = {(64, 64): True, (32, 128): True, (96, 96): True, (16, 256): True, (64, 32): False}


def text(rows: int, columns: int) -> str:
    """The kernel for a tile of so many rows and columns."""
    return _TEXT.format(rows=rows, columns=columns)


def arguments(rows: int, columns: int) -> list[npt.NDArray[Any]]:
    random = np.random.default_rng(rows + columns)
    shapes = (rows, 16), (16, columns), (rows, columns)
    drawn = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    return [*drawn, np.zeros((ROWS, rows + columns), dtype=np.float32)]
