"""The list of ``warp-tiles tune contribute``: kernels whose loops and functions are measured on each GPU.

The number of blocks follows the number of multiprocessors, so a launch takes about as long on a small GPU
as on a large one.
"""

# mypy: ignore-errors
# Warp reads annotations as values, so they are not types, and the file does not import them from __future__

import math
from dataclasses import dataclass
from typing import Any, Literal

import warp as wp

from warp_tiles._warp.intercept import NotedLaunch
from warp_tiles.errors import ToolchainError, unless_signalled
from warp_tiles.gemm.hardware import TENSOR_CORES_ARCH, shared_limit
from warp_tiles.gemm.problem import DTYPE_BYTES, accumulator_of

_LEAST_BLOCKS, _MOST_BLOCKS = 4, 32  # for a multiprocessor
_ELEMENTS = 2 * 128 * 128  # of C for a multiprocessor, unless it has the least blocks; the host compares them
_STEPS = 64  # iterations of a loop, and products of a function


@dataclass(frozen=True)
class Product:
    """A kernel that multiplies tiles of m x k and k x n elements.

    Attributes:
        subject: ``loop``, which loads the tiles of each product, or ``function``, which multiplies the same ones.
        dtype: Of A and B; ``tf32`` for float32 with this precision.
        b_columns: True if B is the transpose of a tile.
        c_added: True if a loop begins with its tile of C.
    """

    subject: Literal["loop", "function"]
    dtype: str
    m: int
    n: int
    k: int
    threads: int
    b_columns: bool = False
    c_added: bool = False

    @property
    def stored(self) -> str:
        return "float32" if self.dtype == "tf32" else self.dtype

    @property
    def total(self) -> str:
        return accumulator_of(self.stored)

    @property
    def text(self) -> str:
        forms = ", B columns" * self.b_columns + ", C added" * self.c_added
        return f"{self.subject} {self.dtype} {self.m}x{self.n}x{self.k}, {self.threads} threads{forms}"

    def is_possible(self, arch: int) -> bool:
        """True if an architecture has its instructions, and shared memory for its tiles."""
        if self.dtype in ("tf32", "bfloat16") and arch < TENSOR_CORES_ARCH:
            return False
        operands = (self.m + self.n) * self.k * DTYPE_BYTES[self.stored]
        size_bytes = operands + self.m * self.n * DTYPE_BYTES[self.total]
        return size_bytes <= shared_limit(arch, self.threads)

    def launch(self, device: Any, multiprocessors: int) -> NotedLaunch:
        """A launch of its kernel on arrays of zeros. Raises ToolchainError if the device has no memory for them."""
        is_loop = self.subject == "loop"
        count = multiprocessors * max(_LEAST_BLOCKS, min(_MOST_BLOCKS, _ELEMENTS // (self.m * self.n)))
        rows = next(rows for rows in range(math.isqrt(count), 0, -1) if count % rows == 0)  # all rounds are full
        columns = count // rows
        a, b, c = (count, self.m, self.k), (count, self.k, self.n), (count, self.m, self.n)
        if is_loop:
            a, b = (rows * self.m, _STEPS * self.k), (_STEPS * self.k, columns * self.n)
            c = (rows * self.m, columns * self.n)
        b = (*b[:-2], b[-1], b[-2]) if self.b_columns else b
        given = ((a, self.stored), (b, self.stored), (c, self.total))
        try:
            arrays = [wp.zeros(shape, dtype=getattr(wp, dtype), device=device) for shape, dtype in given]
        except unless_signalled(RuntimeError, MemoryError) as error:
            raise ToolchainError(
                f"there is no memory on {device} for the arrays of the {self.text}: {error}",
                remedy="free the GPU's memory, and run the same command again: it continues",
            ) from error
        kernel = (_loop if is_loop else _function)(self)
        dim = (rows, columns, self.threads) if is_loop else (count, self.threads)
        return NotedLaunch(kernel, dim, tuple(arrays), 1, device, self.threads)


def _loop(product: Product) -> Any:
    """A loop as users of Warp write it."""
    m, n, k, b_columns, c_added = product.m, product.n, product.k, product.b_columns, product.c_added
    stored, total, tf32 = getattr(wp, product.stored), getattr(wp, product.total), product.dtype == "tf32"

    def loop(A: wp.array2d(dtype=stored), B: wp.array2d(dtype=stored), C: wp.array2d(dtype=total)):
        i, j = wp.tid()
        if c_added:
            c = wp.tile_load(C, shape=(m, n), offset=(i * m, j * n), storage="shared")
        else:
            c = wp.tile_zeros(shape=(m, n), dtype=total, storage="shared")
        for step in range(0, A.shape[1], k):
            a = wp.tile_load(A, shape=(m, k), offset=(i * m, step), storage="shared")
            if b_columns:
                b = wp.tile_transpose(wp.tile_load(B, shape=(n, k), offset=(j * n, step), storage="shared"))
            else:
                b = wp.tile_load(B, shape=(k, n), offset=(step, j * n), storage="shared")
            if tf32:
                wp.tile_matmul(a, b, c, precision="tf32")
            else:
                wp.tile_matmul(a, b, c)
        wp.tile_store(C, c, offset=(i * m, j * n))

    return wp.kernel(loop, enable_backward=False, module="unique")


def _function(product: Product) -> Any:
    """Products of the same tiles, which stay in shared memory."""
    m, n, k, b_columns, count = product.m, product.n, product.k, product.b_columns, _STEPS
    stored, total, tf32 = getattr(wp, product.stored), getattr(wp, product.total), product.dtype == "tf32"

    def function(A: wp.array3d(dtype=stored), B: wp.array3d(dtype=stored), C: wp.array3d(dtype=total)):
        i = wp.tid()
        a = wp.tile_load(A[i], shape=(m, k), storage="shared")
        if b_columns:
            b = wp.tile_transpose(wp.tile_load(B[i], shape=(n, k), storage="shared"))
        else:
            b = wp.tile_load(B[i], shape=(k, n), storage="shared")
        c = wp.tile_zeros(shape=(m, n), dtype=total, storage="shared")
        for _ in range(count):
            if tf32:
                wp.tile_matmul(a, b, c, precision="tf32")
            else:
                wp.tile_matmul(a, b, c)
        wp.tile_store(C[i], c)

    return wp.kernel(function, enable_backward=False, module="unique")


# tiles that users write, by type: m, n, k, threads, and the forms
# fmt: off
_TILES: dict[Any, tuple[Any, ...]] = {
    ("loop", "float16"): (
        (128, 128, 64, 256), (64, 64, 64, 128), (128, 128, 32, 128), (128, 256, 64, 256), (64, 64, 32, 128),
        (128, 128, 64, 128, "c_added"), (32, 32, 32, 64),
    ),
    ("loop", "bfloat16"): ((128, 128, 64, 256), (64, 64, 64, 128)),
    ("loop", "tf32"): ((128, 128, 32, 256), (64, 64, 32, 128), (128, 128, 32, 128, "b_columns")),
    ("loop", "float32"): (
        (64, 64, 32, 128), (32, 32, 32, 64), (128, 128, 16, 256), (16, 16, 16, 64, "c_added", "b_columns"),
        (32, 32, 32, 128, "c_added", "b_columns"), (64, 64, 16, 128), (128, 128, 32, 256),
        (64, 128, 16, 128, "b_columns"), (64, 64, 32, 128, "c_added"),
    ),
    ("loop", "float64"): ((64, 64, 16, 128), (128, 64, 16, 256), (64, 32, 16, 128), (32, 32, 16, 64)),
    ("function", "float16"): ((64, 64, 64, 128), (32, 32, 32, 64), (128, 128, 32, 256)),
    ("function", "bfloat16"): ((64, 64, 64, 128),),
    ("function", "tf32"): ((64, 64, 64, 128),),
    ("function", "float32"): (
        (16, 16, 16, 64), (32, 32, 32, 128), (16, 16, 16, 64, "b_columns"), (32, 32, 32, 128, "b_columns"),
        (64, 64, 64, 128), (16, 16, 16, 32), (32, 32, 32, 64), (128, 128, 16, 256),
    ),
    ("function", "float64"): ((32, 32, 32, 64), (16, 16, 16, 64), (64, 64, 32, 128)),
}
# fmt: on
_PRODUCTS = [
    Product(*kind, *tile[:4], **dict.fromkeys(tile[4:], True)) for kind, tiles in _TILES.items() for tile in tiles
]
#: The list. Small tiles come first, because they leave some of their share of the time to the large ones.
PRODUCTS = tuple(sorted(_PRODUCTS, key=lambda product: product.m * product.n * product.k))
