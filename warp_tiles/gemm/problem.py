"""The problem: which GEMM a kernel needs.

A :class:`GemmProblem` holds everything that decides the machine code of one product
``C = alpha * A @ B + beta * C`` on shared-memory tiles, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

DType = Literal["float16", "bfloat16", "float32", "float64"]
Arrangement = Literal["row_major", "col_major"]
Precision = Literal["default", "tf32"]


@dataclass(frozen=True)
class DTypeInfo:
    """One element type.

    Attributes:
        name: Its name in Warp's Python API, e.g. ``float16``.
        code: Its name in the symbols of device functions.
        warp_type: Its C++ type in the source that Warp generates.
        cuda_type: Its C++ type in CUDA's headers, which cuBLASDx uses.
        roundoff: Unit roundoff, https://en.wikipedia.org/wiki/Machine_epsilon.
    """

    name: DType
    size_bytes: int
    code: str
    kernel_type: str
    warp_type: str
    cuda_type: str
    roundoff: float


DTYPES: dict[DType, DTypeInfo] = {
    info.name: info
    for info in (
        DTypeInfo("float16", 2, "f16", "wt::f16", "wp::float16", "__half", 2.0**-11),
        DTypeInfo("bfloat16", 2, "bf16", "wt::bf16", "wp::bfloat16", "__nv_bfloat16", 2.0**-8),
        DTypeInfo("float32", 4, "f32", "float", "wp::float32", "float", 2.0**-24),
        DTypeInfo("float64", 8, "f64", "double", "wp::float64", "double", 2.0**-53),
    )
}
DTYPE_BYTES: dict[DType, int] = {name: info.size_bytes for name, info in DTYPES.items()}


def accumulator_of(dtype: DType) -> DType:
    """Element type of the sums of products of an element type."""
    return "float64" if dtype == "float64" else "float32"


class Role(str, Enum):
    """The purpose of a product: the call itself or one of its two adjoints."""

    FORWARD = "forward"
    ADJOINT_A = "adjoint_a"
    ADJOINT_B = "adjoint_b"
    ADJOINT = "adjoint"  # of a solver function, which has only one


PRODUCT_ROLES = (Role.FORWARD, Role.ADJOINT_A, Role.ADJOINT_B)


@dataclass(frozen=True)
class Operand:
    """One matrix of a product in shared memory.

    Attributes:
        dtype: Element type.
        arrangement: ``row_major`` when elements of a row are contiguous, else ``col_major``.
        leading_dimension: Elements between the starts of two rows (``row_major``) or columns.
        alignment: Known alignment of the base pointer and of every row (``row_major``) or column, in bytes: a power of
            two, at most 16. A provider may assume less.
    """

    dtype: DType
    arrangement: Arrangement
    leading_dimension: int
    alignment: int

    @property
    def line_bytes(self) -> int:
        """Bytes between the starts of two rows (row-major) or two columns (column-major)."""
        return self.leading_dimension * DTYPE_BYTES[self.dtype]

    @property
    def line_alignment(self) -> int:
        """The alignment of its rows or columns if the base is aligned, in bytes, at most 16."""
        return math.gcd(self.line_bytes, 16)

    def transposed(self) -> Operand:
        """The operand whose matrix is the transpose, in the same memory."""
        flipped: Arrangement = "col_major" if self.arrangement == "row_major" else "row_major"
        return Operand(self.dtype, flipped, self.leading_dimension, self.alignment)


def dense_operand(dtype: DType, rows: int, columns: int, *, transposed: bool = False) -> Operand:
    """A matrix without padding whose base is aligned. Its columns are contiguous if it is transposed, else its rows."""
    packed = Operand(dtype, "col_major" if transposed else "row_major", rows if transposed else columns, 16)
    return replace(packed, alignment=packed.line_alignment)


@dataclass(frozen=True)
class GemmProblem:
    """``C = alpha * A @ B + beta * C`` with A of M x K, B of K x N and C of M x N elements.

    Attributes:
        m, n, k: Sizes in elements.
        a, b, c: The operands; C's dtype is also the dtype of alpha and beta.
        precision: ``tf32`` multiplies fp32 operands as tf32, without rounding them, and accumulates in fp32.
        threads: Threads of the one-dimensional block. All of them take part.
        arch: Target compute capability, e.g. ``90``.
    """

    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    c: Operand
    precision: Precision
    threads: int
    arch: int

    @property
    def dense_leading_dimensions(self) -> tuple[int, int, int]:
        """Leading dimensions that A, B and C would have without padding, in elements."""
        return (
            self.k if self.a.arrangement == "row_major" else self.m,
            self.n if self.b.arrangement == "row_major" else self.k,
            self.n if self.c.arrangement == "row_major" else self.m,
        )

    @property
    def operands(self) -> tuple[Operand, Operand, Operand]:
        return self.a, self.b, self.c

    @property
    def leading_dimensions(self) -> tuple[int, ...]:
        return tuple(operand.leading_dimension for operand in self.operands)

    @property
    def is_dense(self) -> bool:
        """True if no operand is padded."""
        return self.leading_dimensions == self.dense_leading_dimensions

    @property
    def element_alignments(self) -> tuple[int, ...]:
        """The alignment of one element of A, B and C, in bytes. No operand has less."""
        return tuple(DTYPE_BYTES[operand.dtype] for operand in self.operands)

    @property
    def alignments(self) -> tuple[int, ...]:
        return tuple(operand.alignment for operand in self.operands)

    @property
    def symbol(self) -> str:
        """Name of the device function. Problems and symbols correspond one to one."""
        dtypes = "_".join(DTYPES[operand.dtype].code for operand in self.operands)
        arrangements = "".join(operand.arrangement[0] for operand in self.operands)
        lds, alignments = ("_".join(map(str, numbers)) for numbers in (self.leading_dimensions, self.alignments))
        tf32 = "_tf32" if self.precision == "tf32" else ""
        return (
            f"wt_gemm_{self.m}_{self.n}_{self.k}_{dtypes}{tf32}_{arrangements}"
            f"_ld{lds}_al{alignments}_t{self.threads}_sm{self.arch}"
        )

    @property
    def size(self) -> str:
        """Sizes for tables, e.g. ``64x64x32``."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def dtypes(self) -> str:
        """Element types of A, B and C, e.g. ``float32 x float32 -> float32 (tf32)``."""
        return f"{self.a.dtype} x {self.b.dtype} -> {self.c.dtype}{' (tf32)' * (self.precision == 'tf32')}"

    def without_alignment(self) -> GemmProblem:
        """The same product, with only the alignment of an element promised."""
        a, b, c = (replace(operand, alignment=DTYPE_BYTES[operand.dtype]) for operand in self.operands)
        return replace(self, a=a, b=b, c=c)

    def describe(self) -> str:
        """A line for messages, e.g. ``64x64x64 float16 x float16 -> float32, 128 threads, sm_90``."""
        return f"{self.size} {self.dtypes}, {self.threads} threads, sm_{self.arch}"

    def to_json(self) -> dict[str, Any]:
        """The fields under the names that ``warp-tiles plan --json`` prints."""
        return {
            **{name: getattr(self, name) for name in ("m", "n", "k", "precision", "threads", "arch")},
            **{f"{name}_dtype": operand.dtype for name, operand in zip("abc", self.operands)},
            "arrangement": [operand.arrangement for operand in self.operands],
            "leading_dimensions": list(self.leading_dimensions),
            "alignments": list(self.alignments),
        }
