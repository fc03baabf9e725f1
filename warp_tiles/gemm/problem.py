"""The problem: which GEMMs a kernel needs, and those that one ``wp.tile_matmul`` call needs, from its tiles.

A :class:`GemmProblem` holds everything that decides the machine code of one product
``C = alpha * A @ B + beta * C`` on shared-memory tiles, and nothing else. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

from warp_tiles.gemm.hardware import TENSOR_CORES_ARCH
from warp_tiles.gemm.rejected import Rejected

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


def layouts_text(operands: Sequence[Operand]) -> str:
    """The layouts of operands in the symbol of a device function, e.g. ``rrr_ld64_64_64_al16_16_16``."""
    arrangements = "".join(operand.arrangement[0] for operand in operands)
    lds = "_".join(str(operand.leading_dimension) for operand in operands)
    return f"{arrangements}_ld{lds}_al{'_'.join(str(operand.alignment) for operand in operands)}"


def layouts_json(operands: Sequence[Operand]) -> dict[str, Any]:
    return {
        "arrangement": [operand.arrangement for operand in operands],
        "leading_dimensions": [operand.leading_dimension for operand in operands],
        "alignments": [operand.alignment for operand in operands],
    }


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
        tf32 = "_tf32" if self.precision == "tf32" else ""
        layouts = layouts_text(self.operands)
        return f"wt_gemm_{self.m}_{self.n}_{self.k}_{dtypes}{tf32}_{layouts}_t{self.threads}_sm{self.arch}"

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

    def transposed(self) -> GemmProblem:
        """``C^T = B^T A^T``, in the same memory."""
        a, b, c = self.b.transposed(), self.a.transposed(), self.c.transposed()
        return replace(self, m=self.n, n=self.m, a=a, b=b, c=c)

    def describe(self) -> str:
        """A line for messages, e.g. ``64x64x64 float16 x float16 -> float32, 128 threads, sm_90``."""
        return f"{self.size} {self.dtypes}, {self.threads} threads, sm_{self.arch}"

    def to_json(self) -> dict[str, Any]:
        """The fields under the names that ``warp-tiles plan --json`` prints."""
        return {
            **{name: getattr(self, name) for name in ("m", "n", "k", "precision", "threads", "arch")},
            **{f"{name}_dtype": operand.dtype for name, operand in zip("abc", self.operands)},
            **layouts_json(self.operands),
        }


# ---- the problems of a call, from its tiles


@dataclass(frozen=True)
class TileOperand:
    """A tile operand, with the facts of Warp's type system.

    Attributes:
        shape: Rows and columns, in elements.
        strides: Elements from one row, and from one column, to the next.
        layout: Warp's own tag. It decides if a single row or column fits both arrangements.
        aligned_base: True if the base pointer is known to be 16-byte aligned.
    """

    dtype: DType
    shape: tuple[int, int]
    strides: tuple[int, int]
    layout: Arrangement
    aligned_base: bool


@dataclass(frozen=True)
class Target:
    """The GPU and the block that will run the code.

    Attributes:
        arch: Compute capability, or None for the CPU.
        threads: Threads per block.
        scalar_reason: The reason why every product takes the scalar path; None if none must.
    """

    arch: int | None
    threads: int
    scalar_reason: Rejected | None = None


@dataclass(frozen=True)
class Products:
    """The three problems of one call, or the reason why it takes Warp's scalar path.

    Attributes:
        scalar_reason: The reason for the scalar path, or None.
        warnings: Texts of warnings, which the user gets once.
    """

    problems: dict[Role, GemmProblem]
    scalar_reason: Rejected | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_unsupported(self) -> bool:
        """True if no provider can serve a tile; False if the target or the user requires the scalar path."""
        return self.scalar_reason is not None and self.scalar_reason.code == "no_leading_dimension"


def leading_dimension(tile: TileOperand) -> tuple[Arrangement, int] | None:
    """Arrangement and leading dimension (elements) of a tile, or None if its strides fit neither.

    Two examples without one: a broadcast tile has a zero stride, and a tile of every second column of a row-major array
    has no stride of one.
    """
    (rows, cols), (row_stride, col_stride) = tile.shape, tile.strides
    fits: dict[Arrangement, int] = {}
    if col_stride == 1 and row_stride >= cols:
        fits["row_major"] = row_stride
    if row_stride == 1 and col_stride >= rows:
        fits["col_major"] = col_stride
    if not fits:
        return None
    arrangement = tile.layout if tile.layout in fits else next(iter(fits))
    return arrangement, fits[arrangement]


def check_tiles(a: TileOperand, b: TileOperand, out: TileOperand, precision: Precision) -> None:
    """Refuse operands that no backend multiplies, with Warp's exception types.

    Raises:
        TypeError: A dtype is unknown, or the precision is tf32 and a dtype is not float32.
        ValueError: The shapes do not match.
    """
    named = {"a": a, "b": b, "out": out}
    for name, tile in named.items():
        if tile.dtype not in DTYPE_BYTES:
            raise TypeError(
                f"tile_matmul() arguments must be tiles of float16, bfloat16, float32, or float64 entries; "
                f"'{name}' has dtype {tile.dtype}"
            )
    if precision == "tf32" and any(tile.dtype != "float32" for tile in named.values()):
        got = ", ".join(f"{name}: {tile.dtype}" for name, tile in named.items())
        raise TypeError(f"tile_matmul() precision='tf32' requires float32 tiles for a, b, and out; got {got}")
    if a.shape[1] != b.shape[0] or out.shape != (a.shape[0], b.shape[1]):
        raise ValueError(
            "tile_matmul(A, B, C) requires sizes of A, B and C to be consistent for a matmul; "
            f"got A {a.shape}, B {b.shape}, C {out.shape}"
        )


# the text of Warp's own warning
_NO_TF32 = "tile_matmul() cannot honor precision='tf32' for this compilation; falling back to default precision."

_BFLOAT16_REMEDY = (
    " warp_tiles' provider 'own' does, accumulating in float32. It needs a GPU of sm_75 or newer, a multiple of 32 "
    "threads per block, and the setting provider at 'auto' or 'own'."
)

BFLOAT16_OUT_ERROR = (
    "tile_matmul() does not support a bfloat16 'out' tile, because products accumulate in its dtype. "
    "Allowed 'out' dtypes are float16, float32, and float64." + _BFLOAT16_REMEDY
)

BFLOAT16_ADJOINT_ERROR = (
    "tile_matmul() does not support bfloat16 'a' or 'b' tiles when the backward pass is enabled. "
    "Allowed accumulator dtypes are float16, float32, and float64 (the backward pass uses 'a' "
    "and 'b' as accumulators for adjA and adjB). If gradients are not needed, set "
    "`enable_backward=False` on the kernel, e.g. `@wp.kernel(enable_backward=False)`, or on its module."
    + _BFLOAT16_REMEDY
)


def operand_of(tile: TileOperand, arrangement: Arrangement, ld: int) -> Operand:
    """The operand of a tile, with the known alignment of its base and of every row or column."""
    operand = Operand(tile.dtype, arrangement, ld, DTYPE_BYTES[tile.dtype])
    return replace(operand, alignment=operand.line_alignment) if tile.aligned_base else operand


def products(a: TileOperand, b: TileOperand, out: TileOperand, *, precision: Precision, target: Target) -> Products:
    """The forward product and both adjoints of ``tile_matmul(a, b, out)``.

    forward    C    = alpha * A @ B + beta * C
    adjoint_a  adjA += alpha * adjC @ B^T      (M x K, reduced over N)
    adjoint_b  adjB += alpha * A^T @ adjC      (K x N, reduced over M)

    Args:
        a, b, out: Tiles of M x K, K x N and M x N elements.
        precision: ``default`` or ``tf32``, also for the adjoints.

    Raises:
        TypeError: See :func:`check_tiles`. Also if ``out`` is bfloat16 on the scalar path.
        ValueError: See :func:`check_tiles`.
    """
    check_tiles(a, b, out, precision)
    warnings: list[str] = []
    reason = target.scalar_reason
    if not reason and target.arch is None:
        reason = Rejected("cpu")
    derived = [leading_dimension(tile) for tile in (a, b, out)]
    for name, tile, layout in zip(("a", "b", "out"), (a, b, out), derived):
        if not reason and layout is None:
            reason = Rejected("no_leading_dimension", (f"'{name}'", tile.shape, tile.strides))
            warnings.append(
                f"tile_matmul() operand with shape={tile.shape} strides={tile.strides} "
                "cannot be expressed as a leading dimension; using the scalar GEMM path."
            )
    if reason or target.arch is None:
        if out.dtype == "bfloat16":
            raise TypeError(f"{BFLOAT16_OUT_ERROR} Here {reason}.")
        if precision == "tf32":
            warnings.append(_NO_TF32)
        return Products({}, reason, tuple(warnings))
    if precision == "tf32" and target.arch < TENSOR_CORES_ARCH:
        warnings.append(_NO_TF32)
        precision = "default"
    op_a, op_b, op_c = (operand_of(tile, *layout) for tile, layout in zip((a, b, out), derived) if layout is not None)
    (m, k), n = a.shape, b.shape[1]
    arch, threads = target.arch, target.threads
    # a gradient has the layout of its tile
    return Products(
        {
            Role.FORWARD: GemmProblem(m, n, k, op_a, op_b, op_c, precision, threads, arch),
            Role.ADJOINT_A: GemmProblem(m, k, n, op_c, op_b.transposed(), op_a, precision, threads, arch),
            Role.ADJOINT_B: GemmProblem(k, n, m, op_a.transposed(), op_c, op_b, precision, threads, arch),
        },
        warnings=tuple(warnings),
    )


# ---- products that opt out of MathDx

_MOST_THREADS = 256  # of the blocks that were measured


def faster_scalar_path(product: GemmProblem, *, held: bool, differentiated: bool) -> Rejected | None:
    """Why a product that opts out of MathDx is left to Warp's scalar path; None if own templates compute it.

    Of the measured products, the rule builds one that is slower, at 0.93 of Warp's speed (docs/tables.md). Without
    tensor cores, own templates read along K. So a product by itself gains if K is contiguous in A, and B either has it
    so too or has a long K.

    Args:
        held: True if a loop keeps its accumulators in registers, and loads ahead or would add a new tile to C.
        differentiated: True if its adjoints are called.
    """
    dtypes = {operand.dtype for operand in product.operands}
    if "float32" not in (product.a.dtype, product.b.dtype) or {"bfloat16", "float64"} & dtypes:
        return None
    view = product.transposed() if product.c.arrangement == "col_major" else product
    is_faster = held or _is_faster_alone(view)
    if differentiated:
        is_faster = is_faster and all(size % 16 == 0 for size in (product.m, product.n, product.k))
    return None if is_faster else Rejected("scalar_path_is_faster", (product.describe(),))


def _is_faster_alone(view: GemmProblem) -> bool:
    """True if own templates compute a product with float32 operands and a row-major C faster than Warp, in no loop."""
    along_rows = [operand for operand in view.operands if operand.arrangement == "row_major"]
    if view.threads > _MOST_THREADS or any(operand.alignment < operand.line_alignment for operand in along_rows):
        return False
    if view.a.arrangement == "col_major":
        return view.b.arrangement == "row_major" and (view.n == 1 or max(view.m, view.n) <= 8)
    return view.k % 8 == 0 if view.b.arrangement == "col_major" else view.k >= max(view.m, view.n)
