"""Kernels that store converted tiles, in several forms. Tests on the emulator and on a GPU use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]

HEAD = """
@wp.kernel(enable_backward=False)
def {name}(
    A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.{out}),
    flag: int,
):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=(32, 32), dtype=wp.float32, storage="shared")
    for k in range(0, A.shape[1], 16):
        a = wp.tile_load(A, shape=(32, 16), offset=(i * 32, k), storage="shared")
        b = wp.tile_load(B, shape=(16, 32), offset=(k, j * 32), storage="shared")
        wp.tile_matmul(a, b, c)
"""
BODIES = {
    "direct": "    wp.tile_store(C, wp.tile_astype(c, dtype=wp.{out}), offset=(i * 32, j * 32))",
    "variable": "    d = wp.tile_astype(c, dtype=wp.{out})\n    wp.tile_store(C, d, offset=(i * 32, j * 32))",
    "twice": """    d = wp.tile_astype(c, dtype=wp.{out})
    wp.tile_store(C, d, offset=(i * 32, j * 32))
    wp.tile_store(C, d, offset=(i * 32, j * 32))""",
    "changed between": """    d = wp.tile_astype(c, dtype=wp.{out})
    c += wp.tile_ones(shape=(32, 32), dtype=wp.float32, storage="shared")
    wp.tile_store(C, d, offset=(i * 32, j * 32))""",
    "transposed": """    t = wp.tile_transpose(c)
    wp.tile_store(C, wp.tile_astype(wp.tile_transpose(t), dtype=wp.{out}), offset=(i * 32, j * 32))""",
    "in a branch": """    d = wp.tile_astype(c, dtype=wp.{out})
    if flag > 0:
        wp.tile_store(C, d, offset=(i * 32, j * 32))""",
    "in bands": """    for row in range(0, 32, 8):
        band = wp.tile_view(c, offset=(row, 0), shape=(8, 32))
        wp.tile_store(C, wp.tile_astype(band, dtype=wp.{out}), offset=(i * 32 + row, j * 32))""",
}
# the number of stores that convert the tile themselves; Warp unrolls the loop over four bands
CONVERTED = {"direct": 1, "variable": 1, "transposed": 1, "in bands": 4}
TYPES = ("float16", "float64", "int32", "uint8")
SIZES = {"whole": (64, 64), "edges": (56, 40), "unaligned": (50, 37)}


@dataclass(frozen=True)
class Case:
    """A kernel with arrays of integers.

    Attributes:
        form: One of ``BODIES``.
        out: The type of C.
        size: One of ``SIZES``: rows and columns of C.
    """

    form: str
    out: str
    size: str

    def text(self, name: str) -> str:
        """The source of its kernel."""
        return (HEAD + BODIES[self.form] + "\n").format(name=name, out=self.out)

    def arrays(self) -> tuple[Values, Values, Values]:
        """A, B and the expected C."""
        draw = np.random.default_rng(3)
        rows, columns = SIZES[self.size]
        a, b = draw.integers(0, 3, (rows, 40)).astype(np.float32), draw.integers(0, 2, (40, columns)).astype(np.float32)
        return a, b, (a @ b).astype(self.out)
