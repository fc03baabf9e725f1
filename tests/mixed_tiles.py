"""A kernel whose loop has other tiles beside a product; shared by several test modules."""

from __future__ import annotations

KERNEL = """
@wp.kernel(enable_backward={enable_backward})
def mixed_tiles(
    A: wp.array2d(dtype=wp.float32),
    B: wp.array2d(dtype=wp.float32),
    C: wp.array2d(dtype=wp.float32),
    D: wp.array2d(dtype=wp.float32),
):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    sums = wp.tile_zeros(shape=(1, 64), dtype=wp.float32)
    for step in range(A.shape[1] // 32):
        a = wp.tile_load(A, shape=(64, 32), offset=(i * 64, step * 32), storage="shared")
        b = wp.tile_load(B, shape=(32, 64), offset=(step * 32, j * 64), storage="shared")
        row = wp.tile_load(B, shape=(1, 64), offset=(step * 32, j * 64), storage="register")
        narrow = wp.tile_load(B, shape=(32, 3), offset=(step * 32, j * 64), storage="shared")
        sums += row * wp.tile_sum(narrow)[0]
        copy = a
        wp.tile_matmul(copy, b, c)
    wp.tile_store(C, c, offset=(i * 64, j * 64))
    wp.tile_store(D, sums, offset=(i, j * 64))
"""


def mixed_tiles(*, enable_backward: bool) -> str:
    """Text of the kernel: in one loop a product, a reduction, a tile in registers and a tile with rows of 12 bytes."""
    return KERNEL.format(enable_backward=enable_backward)
