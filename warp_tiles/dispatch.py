"""From the tiles of one ``wp.tile_matmul`` call to the GEMM variants it needs.

Everything here is a pure function of plain values: no Warp, no toolchain, no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from warp_tiles.variant import DTYPE_BYTES, Arrangement, DType, GemmVariant, Operand, Precision, Role

MIN_ARCH = 75
TF32_MIN_ARCH = 80


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
    """Where the code will run.

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
        warnings: What the user should hear once.
    """

    variants: dict[Role, GemmVariant]
    scalar_reason: str = ""
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
        TypeError: A dtype is unknown, ``out`` is bfloat16, or tf32 is asked for with other than float32.
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
    if out.dtype == "bfloat16":
        raise TypeError(
            "tile_matmul() does not support a bfloat16 'out' tile, because products accumulate in its dtype. "
            "Allowed 'out' dtypes are float16, float32, and float64."
        )
    if a.shape[1] != b.shape[0] or out.shape != (a.shape[0], b.shape[1]):
        raise ValueError(
            "tile_matmul(A, B, C) requires sizes of A, B and C to be consistent for a matmul; "
            f"got A {a.shape}, B {b.shape}, C {out.shape}"
        )


# Warp's own words, which its users know
_NO_TF32 = "tile_matmul() cannot honor precision='tf32' for this compilation; falling back to default precision."

BFLOAT16_ADJOINT_ERROR = (
    "tile_matmul() does not support bfloat16 'a' or 'b' tiles when the backward pass is enabled. "
    "Allowed accumulator dtypes are float16, float32, and float64 (the backward pass uses 'a' "
    "and 'b' as accumulators for adjA and adjB). If gradients are not needed, set "
    "`enable_backward=False` on the kernel, e.g. `@wp.kernel(enable_backward=False)`, or on its module."
)


def alignments(operands: tuple[Operand, Operand, Operand], dense: bool, aligned: tuple[bool, bool, bool]) -> list[int]:
    """Alignment in bytes that may be promised for A, B and C.

    The rule is Warp's own (``_gemm_operand_alignments`` of Warp 1.18): 16 where the base pointer is
    16-byte aligned and a packed row spans a multiple of 16 bytes, never with explicit leading
    dimensions, and at most 8 for a 16-bit C, which cuBLASDx cannot store 16 bytes wide.
    """
    bytes_each = [DTYPE_BYTES[operand.dtype] for operand in operands]
    if not dense:
        return bytes_each
    result = [
        16 if known and (operand.leading_dimension * size) % 16 == 0 else size
        for operand, size, known in zip(operands, bytes_each, aligned)
    ]
    if bytes_each[2] == 2:
        result[2] = min(result[2], 8)
    return result


def _with_alignment(variant: GemmVariant, aligned: tuple[bool, bool, bool]) -> GemmVariant:
    operands = (variant.a, variant.b, variant.c)
    a, b, c = (
        replace(operand, alignment=promised)
        for operand, promised in zip(operands, alignments(operands, variant.is_dense, aligned))
    )
    return replace(variant, a=a, b=b, c=c)


def products(a: Tile, b: Tile, out: Tile, *, precision: Precision, target: Target) -> Products:
    """The forward product and both adjoints of ``tile_matmul(a, b, out)``.

    forward    C    = alpha * A @ B + beta * C
    adjoint_a  adjA += alpha * adjC @ B^T      (M x K, reduced over N)
    adjoint_b  adjB += alpha * A^T @ adjC      (K x N, reduced over M)

    Args:
        a, b, out: Tiles of M x K, K x N and M x N elements.
        precision: ``default`` or ``tf32``; the adjoints use the same.
        target: Architecture, threads and what forbids tensor-core code there.

    Raises:
        TypeError, ValueError: See :func:`check_tiles`.
    """
    check_tiles(a, b, out, precision)
    warnings: list[str] = []
    reason = target.scalar_reason
    if not reason and target.arch is None:
        reason = "the target is a CPU"
    if not reason and target.arch is not None and target.arch < MIN_ARCH:
        reason = f"sm_{target.arch} is older than sm_{MIN_ARCH}, the oldest that cuBLASDx is built for here"
    derived = [leading_dimension(tile) for tile in (a, b, out)]
    for name, tile, found in zip(("a", "b", "out"), (a, b, out), derived):
        if not reason and found is None:
            reason = (
                f"'{name}' with shape={tile.shape} strides={tile.strides} "
                "cannot be expressed as a cuBLASDx leading dimension"
            )
            warnings.append(
                f"tile_matmul() operand with shape={tile.shape} strides={tile.strides} "
                "cannot be expressed as a cuBLASDx leading dimension; using the scalar GEMM path."
            )
    if reason or target.arch is None:
        if precision == "tf32":
            warnings.append(_NO_TF32)
        return Products({}, reason, tuple(warnings))
    if precision == "tf32" and target.arch < TF32_MIN_ARCH:
        warnings.append(_NO_TF32)
        precision = "default"
    op_a, op_b, op_c = (
        Operand(tile.dtype, *found, alignment=DTYPE_BYTES[tile.dtype])
        for tile, found in zip((a, b, out), derived)
        if found is not None
    )
    (m, k), n = a.shape, b.shape[1]
    base_a, base_b, base_c = a.aligned_base, b.aligned_base, out.aligned_base
    arch, threads = target.arch, target.threads
    forward = GemmVariant(m, n, k, op_a, op_b, op_c, precision, threads, arch)
    adjoint_a = GemmVariant(m, k, n, op_c, op_b.transposed(), op_a, precision, threads, arch)
    adjoint_b = GemmVariant(k, n, m, op_a.transposed(), op_c, op_b, precision, threads, arch)
    return Products(
        {
            Role.FORWARD: _with_alignment(forward, (base_a, base_b, base_c)),
            Role.ADJOINT_A: _with_alignment(adjoint_a, (base_c, base_b, base_a)),
            Role.ADJOINT_B: _with_alignment(adjoint_b, (base_a, base_c, base_b)),
        },
        warnings=tuple(warnings),
    )
