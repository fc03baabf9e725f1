"""Loops of products that load into stages, with the expected results. Several test modules use them."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]

HEADER = """
from typing import Any

@wp.func
def twice_plus(x: Any, y: Any):
    return x + x + y
"""
START = 'c = wp.tile_zeros(shape=({m}, {n}), dtype=wp.{total}, storage="shared")'
LOADS = (
    "a = wp.tile_load(A, shape={a_shape}, offset={a_offset}, storage='shared'{options})",
    "b = wp.tile_load(B, shape={b_shape}, offset={b_offset}, storage='shared'{options})",
)
PRODUCT = 'wp.tile_matmul({a}, {b}, c, precision="{precision}")'
STORE = "wp.tile_store(C, c, offset=(i * {m}, j * {n}))"
KERNEL = """
@wp.kernel(enable_backward={backward})
def {name}(
    A: wp.array2d(dtype=wp.{dtype}), B: wp.array2d(dtype=wp.{dtype}), E: wp.array2d(dtype=wp.{total}),
    C: wp.array2d(dtype=wp.{total}),
):
    i, j = wp.tid()
{body}
"""


@dataclass(frozen=True)
class Case:
    """One loop: a block tile of m x n, steps of k, and arrays of rows x depth and depth x columns elements.

    Attributes:
        start: Statements before the loop.
        product: The product, by default into ``c``.
        finish: Statements after the loop.
        expected: The expected C of A B and E.
        dtype: Of A and B. C and E are float64 or float32.
        precision: Of the product.
        options: Further arguments of the loads, after a comma.
        alpha: The factor of the product, in its gradients.
    """

    m: int
    n: int
    k: int
    rows: int
    columns: int
    depth: int
    a_transposed: bool = False
    b_transposed: bool = False
    start: str = START
    product: str = PRODUCT
    finish: str = STORE
    expected: Callable[[Values, Values], Values] = lambda product, e: product
    dtype: str = "float16"
    precision: str = "default"
    options: str = ""
    alpha: float = 1

    @property
    def total(self) -> str:
        """The dtype of C."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def stored(self) -> str:
        """The dtype of A and B in NumPy, which has no bfloat16."""
        return "float32" if self.dtype == "bfloat16" else self.dtype

    def text(self, name: str, *, backward: bool = False) -> str:
        """The source of its kernel, with an adjoint if ``backward``."""
        a_shape, a_offset = f"({self.m}, {self.k})", f"(i * {self.m}, s * {self.k})"
        b_shape, b_offset = f"({self.k}, {self.n})", f"(s * {self.k}, j * {self.n})"
        if self.a_transposed:
            a_shape, a_offset = f"({self.k}, {self.m})", f"(s * {self.k}, i * {self.m})"
        if self.b_transposed:
            b_shape, b_offset = f"({self.n}, {self.k})", f"(j * {self.n}, s * {self.k})"
        a = "wp.tile_transpose(a)" if self.a_transposed else "a"
        b = "wp.tile_transpose(b)" if self.b_transposed else "b"
        inner = [*LOADS, self.product.format(a=a, b=b, precision=self.precision)]
        lines = [
            self.start,
            f"for s in range({-(-self.depth // self.k)} + 0 * A.shape[0]):",
            *("    " + x for x in inner),
        ]
        lines += self.finish.splitlines()
        body = "\n".join("    " + line for line in lines)
        body = body.format(
            m=self.m, n=self.n, k=self.k, a_shape=a_shape, a_offset=a_offset, b_shape=b_shape, b_offset=b_offset,
            total=self.total, options=self.options,
        )  # fmt: skip
        return KERNEL.format(name=name, body=body, dtype=self.dtype, total=self.total, backward=backward)

    def arrays(self, seed: int) -> tuple[Values, Values, Values, Values]:
        """A, B and E of small integers, and the product."""
        draw = np.random.default_rng(seed)
        a = draw.integers(-3, 4, (self.rows, self.depth)).astype(self.stored)
        b = draw.integers(-3, 4, (self.depth, self.columns)).astype(self.stored)
        e = draw.integers(-9, 10, (self.rows, self.columns)).astype(self.total)
        stored_a = np.ascontiguousarray(a.T) if self.a_transposed else a
        stored_b = np.ascontiguousarray(b.T) if self.b_transposed else b
        return stored_a, stored_b, e, a.astype(self.total) @ b.astype(self.total)

    def gradients(self, seed: int, g: Values) -> tuple[Values, Values]:
        """The gradients of A and B as they are stored, for the arrays of a seed, without rounding.

        Args:
            seed: That of :meth:`arrays`.
            g: The gradient of the accumulators.
        """
        stored_a, stored_b, *_ = self.arrays(seed)
        a, b = (values.astype(np.float64) for values in (stored_a, stored_b))
        a, b = a.T if self.a_transposed else a, b.T if self.b_transposed else b
        of_a, of_b = self.alpha * g @ b.T, a.T @ g * self.alpha
        return of_a.T if self.a_transposed else of_a, of_b.T if self.b_transposed else of_b

    @property
    def grid(self) -> tuple[int, int]:
        return -(-self.rows // self.m), -(-self.columns // self.n)


LOAD_E = 'c = wp.tile_load(E, shape=({m}, {n}), offset=(i * {m}, j * {n}), storage="shared")'
ADD_E = """e = wp.tile_load(E, shape=({m}, {n}), offset=(i * {m}, j * {n}))
wp.tile_store(C, wp.tile_map(twice_plus, c, e), offset=(i * {m}, j * {n}))"""


def scaled(alpha: int | str) -> str:
    """A product with a factor: a number or an expression."""
    return PRODUCT.replace("c, ", f"c, alpha={alpha if isinstance(alpha, str) else float(alpha)}, ")


FORMS = {
    "common": Case(64, 64, 32, 128, 64, 160),
    "one turn": Case(64, 64, 32, 64, 64, 32),
    "no turn": Case(64, 64, 32, 64, 64, 0),
    "edges": Case(64, 64, 32, 72, 40, 88),
    "unaligned rows": Case(64, 64, 32, 70, 71, 75),
    "start value": Case(64, 64, 32, 64, 64, 96, start=LOAD_E, expected=lambda product, e: product + e),
    "start value, alpha of -1": Case(
        64, 64, 32, 64, 64, 96, start=LOAD_E, product=scaled(-1), expected=lambda product, e: e - product, alpha=-1
    ),
    "start value, alpha of 2": Case(
        64, 64, 32, 64, 64, 96, start=LOAD_E, product=scaled(2), expected=lambda product, e: e + 2 * product, alpha=2
    ),
    "two products, alpha of 1 and of -2": Case(
        64, 64, 32, 64, 64, 96,
        product="\n        ".join([PRODUCT, scaled(-2)]),
        finish=ADD_E,
        expected=lambda product, e: e - 2 * product,
    ),
    "epilogue": Case(64, 64, 32, 64, 64, 96, finish=ADD_E, expected=lambda product, e: 2 * product + e),
    "two products": Case(
        64, 64, 32, 64, 64, 96,
        product="\n        ".join([PRODUCT, PRODUCT]),
        expected=lambda product, e: 2 * product,
    ),
    "a transposed": Case(64, 64, 32, 128, 64, 96, a_transposed=True),
    "b transposed": Case(64, 64, 32, 64, 128, 96, b_transposed=True),
    "both transposed": Case(64, 32, 16, 128, 64, 64, a_transposed=True, b_transposed=True),
}  # fmt: skip


# those of which a reverse pass is emulated
LINEAR = {name: case for name, case in FORMS.items() if name != "epilogue" and not name.startswith("two products")}
# tiles that two warpgroups share by rows and by columns, with each layout
WIDE = {
    f"{m}x{n}, {'a' * a}{'b' * b}": Case(m, n, 16, m + 8, n - 4, 52, a, b)
    for m, n in ((128, 128), (128, 256))
    for a in (False, True)
    for b in (False, True)
}


# tiles whose rows are no multiple of 64, with each layout, so that wgmma computes the transpose of C; with edges
FLAT = {
    f"{m}x{n}, {'a' * a}{'b' * b}": Case(m, n, k, m + 5, 2 * n - 4, 3 * k + 8, a, b)
    for m, n, k in ((16, 128, 64), (32, 128, 16), (48, 64, 32), (80, 128, 32), (32, 192, 32))
    for a in (False, True)
    for b in (False, True)
}


def with_type(cases: Mapping[str, Case], dtype: str, precision: str = "default") -> dict[str, Case]:
    """The cases with operands of another type."""
    return {name: replace(case, dtype=dtype, precision=precision) for name, case in cases.items()}


def drawn(seed: int, sides: Sequence[int] = (64, 128), widths: Sequence[int] = (32, 48, 64, 96, 128)) -> Case:
    """A case with random sizes.

    Args:
        seed: Of the random numbers.
        sides, widths: Rows and columns of its tile of C.
    """
    draw = random.Random(seed)
    m, n, k = draw.choice(sides), draw.choice(widths), draw.choice([16, 32, 64])
    rows, columns = draw.choice([m, m + 8, 2 * m - 3]), draw.choice([n, n - 8, n + 5])
    depth = draw.choice([k, 3 * k, 5 * k, 4 * k - 8, 3 * k + 1])
    return Case(m, n, k, rows, columns, depth, draw.random() < 0.4, draw.random() < 0.4)
