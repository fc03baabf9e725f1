"""Kernels that store computed tiles, in several forms. Tests on the emulator and on a GPU use them."""

from collections.abc import Callable
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

@wp.func
def store_sum_{out}(C: wp.array2d(dtype=wp.{out}), c: Any, other: Any, i: int, j: int):
    wp.tile_store(C, wp.tile_astype(other + c, dtype=wp.{out}), offset=(i * 32, j * 32))

@wp.func
def old_plus_{out}(x: wp.float32, old: Any):
    return wp.{out}(x + wp.float32(old))

@wp.func
def plus_component_{out}(x: wp.float32, v: wp.vec2):
    return wp.{out}(x + v[0])

@wp.func
def sum_of_eight_{out}(
    a: wp.float32, b: wp.float32, c: wp.float32, d: wp.float32,
    e: wp.float32, f: wp.float32, g: wp.float32, h: wp.float32,
):
    return wp.{out}(a + b + c + d + e + f + g + h)
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
ROW = 'wp.tile_broadcast(wp.tile_load(A, shape=(1, 32), storage="shared"), shape=(32, 32))'
# several operations compute the tile
CHAINS = {
    "chain: sum": """    row = {row}
    wp.tile_store(C, wp.tile_astype(c + row, dtype=wp.{out}), offset=(i * 32, j * 32))""",
    "chain: views between": """    v = wp.tile_load(A, shape=(1, 32), storage="shared")
    d = c + wp.tile_broadcast(v, shape=(32, 32)) + wp.tile_broadcast(v, shape=(32, 32))
    wp.tile_store(C, wp.tile_astype(d, dtype=wp.{out}), offset=(i * 32, j * 32))""",
    "chain: numbers": """    row = {row}
    d = c + row
    e = d * 2.0 - 0.5 * d
    f = -(e / 0.5)
    wp.tile_store(C, wp.tile_astype(d - f, dtype=wp.{out}), offset=(i * 32, j * 32))""",
    "chain: products": """    row = {row}
    half = wp.tile_full(shape=(32, 32), value=0.5, dtype=wp.float32, storage="shared")
    d = (row * c / half) * (1.0 / half) / 2.0
    wp.tile_store(C, wp.tile_astype(d, dtype=wp.{out}), offset=(i * 32, j * 32))""",
    "chain: results are used twice": """    row = {row}
    d0 = c + row
"""
    + "".join(f"    d{n + 1} = (d{n} + d{n}) * 0.5\n" for n in range(12))
    + "    wp.tile_store(C, wp.tile_astype(d12 + d12, dtype=wp.{out}), offset=(i * 32, j * 32))",
    "chain: in place": """    row = {row}
    d = c * 3.0
    e = d - c
    d += row
    d -= e
    wp.tile_store(C, wp.tile_astype(d, dtype=wp.{out}), offset=(i * 32, j * 32))""",
    "chain: half precision": """    d = wp.tile_astype(c, dtype=wp.float16) * wp.float16(0.1) * wp.float16(30.0)
    wp.tile_store(C, wp.tile_astype(d, dtype=wp.{out}), offset=(i * 32, j * 32))""",
    "chain: bits": """    five = wp.tile_full(shape=(32, 32), value=5, dtype=wp.int32, storage="shared")
    even = wp.tile_full(shape=(32, 32), value=62, dtype=wp.int32, storage="shared")
    d = (wp.tile_astype(c, dtype=wp.int32) ^ five) & even | five
    wp.tile_store(C, wp.tile_astype(d, dtype=wp.{out}), offset=(i * 32, j * 32))""",
    "chain: maps": """    d = wp.tile_map(sum_{out}, wp.tile_map(wp.sqrt, c * c), c * float(j))
    wp.tile_store(C, d, offset=(i * 32, j * 32))""",
    "chain: map of eight": """    row = {row}
    d = wp.tile_map(sum_of_eight_{out}, c, row, row, -row, c * 2.0, row, 1.0, float(j))
    wp.tile_store(C, d, offset=(i * 32, j * 32))""",
    "chain: in a function": """    row = {row}
    store_sum_{out}(C, c, row, i, j)""",
    "chain: registers in a function": """    other = wp.tile_load(A, shape=(32, 32), storage="register")
    store_sum_{out}(C, c, other, i, j)""",
    "chain: registers": """    other = wp.tile_load(A, shape=(32, 32), storage="register")
    wp.tile_store(C, wp.tile_astype(c + other, dtype=wp.{out}), offset=(i * 32, j * 32))""",
    "chain: the old tile": """    old = wp.tile_load(C, shape=(32, 32), offset=(i * 32, j * 32))
    row = {row}
    wp.tile_store(C, wp.tile_map(old_plus_{out}, c + row, old), offset=(i * 32, j * 32))""",
    "chain: a result is stored twice": """    d = c * 2.0
    wp.tile_store(C, wp.tile_astype(d, dtype=wp.{out}), offset=(i * 32, j * 32))
    wp.tile_store(C, wp.tile_astype(d, dtype=wp.{out}), offset=(i * 32, j * 32))""",
    "chain: an operand changes": """    row = {row}
    d = c + row
    c += row
    wp.tile_store(C, wp.tile_astype(d, dtype=wp.{out}), offset=(i * 32, j * 32))""",
    "chain: a vector changes": """    v = wp.vec2(1.0, 2.0)
    d = wp.tile_map(plus_component_{out}, c, v)
    v[0] = 5.0
    wp.tile_store(C, d, offset=(i * 32, j * 32))""",
}
BODIES |= CHAINS
# the number of stores that compute the tile themselves; Warp unrolls the loop over four bands
COMPUTED = {"direct": 1, "variable": 1, "transposed": 1, "in bands": 4}
COMPUTED |= {"in a function": 1}  # both calls of the function have this text; with registers it stores elements
COMPUTED |= {"map": 1, "map of two": 1, "map of a number": 1, "map of five": 1, "map of registers": 1}
LEFT = ("registers in a function", "a result is stored twice", "an operand changes", "a vector changes")
COMPUTED |= {form: 1 for form in CHAINS if form.removeprefix("chain: ") not in LEFT}


@dataclass(frozen=True)
class Inputs:
    """The values from which a form's kernel computes C.

    Attributes:
        product: A B.
        row: The first elements of A's first row, in each tile.
        tile: The first tile of A, in each tile.
        column: The tile's number in its row of tiles.
    """

    product: Values
    row: Values
    tile: Values
    column: Values


def _halves(given: Inputs) -> Values:
    scaled: Values = given.product.astype(np.float16) * np.float16(0.1) * np.float16(30.0)
    return scaled


# C as a function of the inputs; C is the product in all other forms
EXPECTED: dict[str, Callable[[Inputs], Values]] = {
    "map": lambda given: given.product + 2,
    "map of two": lambda given: 2 * given.product,
    "map of a number": lambda given: given.product + given.column,
    "map of five": lambda given: given.product + 7 + given.row,
    "in a function": lambda given: given.product + given.row,
    "map of registers": lambda given: given.product + given.tile,
    "registers in a function": lambda given: given.product + given.tile,
    "chain: sum": lambda given: given.product + given.row,
    "chain: views between": lambda given: given.product + 2 * given.row,
    "chain: numbers": lambda given: 4 * (given.product + given.row),
    "chain: products": lambda given: 2 * given.product * given.row,
    "chain: results are used twice": lambda given: 2 * (given.product + given.row),
    "chain: in place": lambda given: given.product + given.row,
    "chain: half precision": _halves,
    "chain: bits": lambda given: (given.product.astype(np.int32) ^ 5) & 62 | 5,
    "chain: maps": lambda given: given.product * (1 + given.column),
    "chain: map of eight": lambda given: 3 * given.product + 2 * given.row + 1 + given.column,
    "chain: in a function": lambda given: given.product + given.row,
    "chain: registers in a function": lambda given: given.product + given.tile,
    "chain: registers": lambda given: given.product + given.tile,
    "chain: the old tile": lambda given: given.product + given.row + 7,
    "chain: a result is stored twice": lambda given: 2 * given.product,
    "chain: an operand changes": lambda given: given.product + given.row,
    "chain: a vector changes": lambda given: given.product + 1,
}
# the operations round, and the kernel has gradients
ROUNDED = (
    HEAD.format(name="rounded", out="float16").replace("(enable_backward=False)", "")
    + f"""
    row = {ROW}
    d = (c + row) * 0.3 - c / 7.0
    h = wp.tile_astype(d, dtype=wp.float16)
    wp.tile_store(C, h * wp.float16(0.7) + h, offset=(i * 32, j * 32))
"""
)
# The reverse pass repeats no loop, so a gradient that depends on the product's elements needs one without a loop.
NONLINEAR = """
from typing import Any

@wp.func
def activated(x: wp.float32, bias: wp.float32):
    y = 0.25 * (x - 8.0) + bias
    return y * wp.tanh(y)

@wp.func
def store_activated(C: wp.array2d(dtype=wp.{out}), c: Any, row: Any, i: int, j: int):
    d = wp.tile_map(activated, c, row)
    e = wp.tile_map(wp.sin, d) * d - c / 3.0
    wp.tile_store(C, wp.tile_astype(e, dtype=wp.{out}), offset=(i * 32, j * 32))

@wp.kernel
def rounded(
    A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.{out}),
    flag: int,
):
    i, j = wp.tid()
    a = wp.tile_load(A, shape=(32, 16), offset=(i * 32, 0), storage="shared")
    b = wp.tile_load(B, shape=(16, 32), offset=(0, j * 32), storage="shared")
    c = wp.tile_matmul(a, b)
    row = {row}
    if flag > 0:
        store_activated(C, c, row, i, j)
"""
# kernels with gradients: the type of C and the source of the kernel `rounded`
REVERSED = {"rounded": ("float16", ROUNDED)}
REVERSED |= {f"nonlinear {out}": (out, NONLINEAR.format(out=out, row=ROW)) for out in ("float16", "float32", "float64")}
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
        return (HEAD + BODIES[self.form] + "\n").format(name=name, out=self.out, row=ROW)

    def functions(self) -> str:
        """The source of the functions of its kernel."""
        return f"from typing import Any\n{FUNCTIONS.format(out=self.out)}"

    def arrays(self) -> tuple[Values, Values, Values, Values]:
        """A, B, C before and the expected C after the launch."""
        draw = np.random.default_rng(3)
        rows, columns = SIZES[self.size]
        a, b = draw.integers(0, 3, (rows, 40)).astype(np.float32), draw.integers(0, 2, (40, columns)).astype(np.float32)
        c = np.full((rows, columns), 7, dtype=self.out)
        tile = np.zeros((32, 32), dtype=np.float32)
        tile[:, :] = a[:32, :32]
        given = Inputs(
            a @ b,
            np.tile(a[0, :32], 2)[:columns],
            np.tile(tile, (2, 2))[:rows, :columns],
            np.arange(columns, dtype=np.float32) // 32,
        )
        expected = EXPECTED.get(self.form, lambda given: given.product)(given)
        return a, b, c, expected.astype(self.out)
