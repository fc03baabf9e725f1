"""The GEMM problems that one ``wp.tile_matmul`` call needs, from its tiles.

All functions are pure. They need no Warp, no toolchain and no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from warp_tiles.gemm.hardware import TENSOR_CORES_ARCH
from warp_tiles.gemm.problem import DTYPE_BYTES, Arrangement, DType, GemmProblem, Operand, Precision, Role
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.gemm.tile_config import transposed


@dataclass(frozen=True)
class Tile:
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


def leading_dimension(tile: Tile) -> tuple[Arrangement, int] | None:
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


def check_tiles(a: Tile, b: Tile, out: Tile, precision: Precision) -> None:
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


def operand_of(tile: Tile, arrangement: Arrangement, ld: int) -> Operand:
    """The operand of a tile, with the known alignment of its base and of every row or column."""
    operand = Operand(tile.dtype, arrangement, ld, DTYPE_BYTES[tile.dtype])
    return replace(operand, alignment=operand.line_alignment) if tile.aligned_base else operand


def products(a: Tile, b: Tile, out: Tile, *, precision: Precision, target: Target) -> Products:
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
    view = transposed(product) if product.c.arrangement == "col_major" else product
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
