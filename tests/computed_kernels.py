"""Kernels that store computed tiles, in several forms. Tests on the emulator and on a GPU use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]

FUNCTIONS = """
@wp.func
def halved_{out}(x: wp.float32, y: wp.float32, scale: wp.float32, z: Any, bias: wp.float32):
    return wp.{out}((x + y) * scale + wp.float32(z) + bias)

@wp.func
def sum_{out}(x: wp.float32, y: wp.float32):
    return wp.{out}(x + y)

@wp.func
def plus_{out}(x: wp.float32):
    return wp.{out}(x + wp.float32(2.0))

@wp.func
def store_{out}(C: wp.array2d(dtype=wp.{out}), c: Any, other: Any, i: int, j: int):
    wp.tile_store(C, wp.tile_map(sum_{out}, c, other), offset=(i * 32, j * 32))
"""
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
    "map": "    wp.tile_store(C, wp.tile_map(plus_{out}, c), offset=(i * 32, j * 32))",
    "map of two": "    wp.tile_store(C, wp.tile_map(sum_{out}, c, c), offset=(i * 32, j * 32))",
    "map of a number": "    wp.tile_store(C, wp.tile_map(sum_{out}, c, float(j)), offset=(i * 32, j * 32))",
    "map of five": """    half = wp.tile_load(A, shape=(1, 32), offset=(0, 0), storage="shared")
    row = wp.tile_broadcast(half, shape=(32, 32))
    old = wp.tile_load(C, shape=(32, 32), offset=(i * 32, j * 32), storage="shared")
    result = wp.tile_map(halved_{out}, c, c, 0.5, old, row)
    wp.tile_store(C, result, offset=(i * 32, j * 32))""",
    "map of registers": """    other = wp.tile_load(A, shape=(32, 32), offset=(0, 0), storage="register")
    wp.tile_store(C, wp.tile_map(sum_{out}, c, other), offset=(i * 32, j * 32))""",
    "in a function": """    row = wp.tile_broadcast(wp.tile_load(A, shape=(1, 32), storage="shared"), shape=(32, 32))
    store_{out}(C, c, row, i, j)""",
    "registers in a function": """    other = wp.tile_load(A, shape=(32, 32), storage="register")
    store_{out}(C, c, other, i, j)""",
    "in bands": """    for row in range(0, 32, 8):
        band = wp.tile_view(c, offset=(row, 0), shape=(8, 32))
        wp.tile_store(C, wp.tile_astype(band, dtype=wp.{out}), offset=(i * 32 + row, j * 32))""",
}
# the number of stores that compute the tile themselves; Warp unrolls the loop over four bands
COMPUTED = {"direct": 1, "variable": 1, "transposed": 1, "in bands": 4}
COMPUTED |= {"in a function": 1}  # both calls of the function have this text; with registers it stores elements
COMPUTED |= {"map": 1, "map of two": 1, "map of a number": 1, "map of five": 1}
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

    def functions(self) -> str:
        """The source of the functions of its kernel."""
        return f"from typing import Any\n{FUNCTIONS.format(out=self.out)}"

    def arrays(self) -> tuple[Values, Values, Values, Values]:
        """A, B, C before and the expected C after the launch."""
        draw = np.random.default_rng(3)
        rows, columns = SIZES[self.size]
        a, b = draw.integers(0, 3, (rows, 40)).astype(np.float32), draw.integers(0, 2, (40, columns)).astype(np.float32)
        c = np.full((rows, columns), 7, dtype=self.out)
        return a, b, c, self._expected(a, a @ b).astype(self.out)

    def _expected(self, a: Values, product: Values) -> Values:
        rows, columns = product.shape
        if self.form == "map":
            return product + 2
        if self.form == "map of two":
            return 2 * product
        if self.form == "map of a number":
            return product + np.arange(columns) // 32
        first = np.tile(a[0, :32], 2)[:columns]
        if self.form == "map of five":
            return product + 7 + first
        if self.form == "in a function":
            return product + first
        if self.form in ("map of registers", "registers in a function"):
            tile = np.zeros((32, 32), dtype=np.float32)
            tile[:, :] = a[:32, :32]
            return product + np.tile(tile, (2, 2))[:rows, :columns]
        return product
