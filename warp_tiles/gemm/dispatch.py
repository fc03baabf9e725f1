"""From the tiles of one ``wp.tile_matmul`` call to the GEMM variants it needs.

Everything here is a pure function of plain values: no Warp, no toolchain, no GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from warp_tiles.gemm.hardware import TF32_MIN_ARCH
from warp_tiles.gemm.variant import DTYPE_BYTES, Arrangement, DType, GemmVariant, Operand, Precision, Role


@dataclass(frozen=True)
class Tile:
    """A tile operand as Warp's type system states it.

    Attributes:
        dtype: Element type.
        shape: Rows and columns, in elements.
        strides: Elements from one row, and from one column, to the next.
        layout: Warp's own tag, which decides when a single row or column fits both arrangements.
        aligned_base: Whether the base pointer is known to be 16-byte aligned.
    """

    dtype: DType
    shape: tuple[int, int]
    strides: tuple[int, int]
    layout: Arrangement
    aligned_base: bool


@dataclass(frozen=True)
class Target:
    """The GPU and the block on which the code will run.

    Attributes:
        arch: Compute capability, or None for the CPU.
        threads: Threads per block.
        scalar_reason: Why every product takes the scalar path here; empty if it need not.
    """

    arch: int | None
    threads: int
    scalar_reason: str = ""


@dataclass(frozen=True)
class Products:
    """The three variants of one call, or the reason why it takes Warp's scalar path.

    Attributes:
        variants: By role; empty on the scalar path.
        scalar_reason: Empty unless the scalar path is taken.
        obstacle: What of a tile no provider can serve; empty if the target or the user asks for the scalar path.
        warnings: Texts to warn the user of once.
    """

    variants: dict[Role, GemmVariant]
    scalar_reason: str = ""
    obstacle: str = ""
    warnings: tuple[str, ...] = ()


def leading_dimension(tile: Tile) -> tuple[Arrangement, int] | None:
    """Arrangement and leading dimension (elements) of a tile, or None if its strides fit neither.

    A broadcast tile has a zero stride and a tile of every second column a stride of two in both
    directions; neither is a matrix that a BLAS call can name.
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
    """Refuse operands that no backend multiplies, with the exception types that Warp uses.

    Raises:
        TypeError: A dtype is unknown, or tf32 is asked for with other than float32.
        ValueError: The shapes do not multiply.
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


# Warp's own words, which its users know
_NO_TF32 = "tile_matmul() cannot honor precision='tf32' for this compilation; falling back to default precision."

_BFLOAT16_REMEDY = (
    " warp_tiles' provider 'mma' does, accumulating in float32: for a GPU of sm_75 or newer with a multiple of 32 "
    "threads per block, with the provider left at 'auto' or set to 'mma'."
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
    """A tile as an operand, with what is known about the alignment of its base and of every row or column start."""
    size = DTYPE_BYTES[tile.dtype]
    return Operand(tile.dtype, arrangement, ld, math.gcd(ld * size, 16) if tile.aligned_base else size)


def products(a: Tile, b: Tile, out: Tile, *, precision: Precision, target: Target) -> Products:
    """The forward product and both adjoints of ``tile_matmul(a, b, out)``.

    forward    C    = alpha * A @ B + beta * C
    adjoint_a  adjA += alpha * adjC @ B^T      (M x K, reduced over N)
    adjoint_b  adjB += alpha * A^T @ adjC      (K x N, reduced over M)

    Args:
        a, b, out: Tiles of M x K, K x N and M x N elements.
        precision: ``default`` or ``tf32``; the adjoints use the same.
        target: Architecture, threads and what forbids functions of their own there.

    Raises:
        TypeError, ValueError: See :func:`check_tiles`; or ``out`` is bfloat16 on the scalar path.
    """
    check_tiles(a, b, out, precision)
    warnings: list[str] = []
    obstacle, reason = "", target.scalar_reason
    if not reason and target.arch is None:
        reason = "the target is a CPU"
    derived = [leading_dimension(tile) for tile in (a, b, out)]
    for name, tile, found in zip(("a", "b", "out"), (a, b, out), derived):
        if not reason and found is None:
            obstacle = reason = (
                f"'{name}' with shape={tile.shape} strides={tile.strides} cannot be expressed as a leading dimension"
            )
            warnings.append(
                f"tile_matmul() operand with shape={tile.shape} strides={tile.strides} "
                "cannot be expressed as a leading dimension; using the scalar GEMM path."
            )
    if reason or target.arch is None:
        if out.dtype == "bfloat16":
            raise TypeError(f"{BFLOAT16_OUT_ERROR} Here {reason}.")
        if precision == "tf32":
            warnings.append(_NO_TF32)
        return Products({}, reason, obstacle, tuple(warnings))
    if precision == "tf32" and target.arch < TF32_MIN_ARCH:
        warnings.append(_NO_TF32)
        precision = "default"
    op_a, op_b, op_c = (operand_of(tile, *found) for tile, found in zip((a, b, out), derived) if found is not None)
    (m, k), n = a.shape, b.shape[1]
    arch, threads = target.arch, target.threads
    # a gradient lies as its tile does
    return Products(
        {
            Role.FORWARD: GemmVariant(m, n, k, op_a, op_b, op_c, precision, threads, arch),
            Role.ADJOINT_A: GemmVariant(m, k, n, op_c, op_b.transposed(), op_a, precision, threads, arch),
            Role.ADJOINT_B: GemmVariant(k, n, m, op_a.transposed(), op_c, op_b, precision, threads, arch),
        },
        warnings=tuple(warnings),
    )
