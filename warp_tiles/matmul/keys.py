"""The constants that decide the kernels of a product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warp_tiles.gemm.dtypes import DType
from warp_tiles.gemm.pipeline import AUTO, PipelineOverrides


@dataclass(frozen=True)
class Epilogue:
    """What follows the sums: C = epilogue(alpha * factor * sums + beta * C + bias).

    Attributes:
        out: Element type of C.
        bias: Element type of the bias; None without one.
        has_beta: True if C is read.
        function: A Warp function of one scalar; None without one.
        sums: Element type of the sums.
        has_factor: True if alpha is multiplied by a factor in an array, which a kernel computed.
    """

    out: DType
    bias: DType | None = None
    has_beta: bool = False
    function: Any = None
    sums: DType = "float32"
    has_factor: bool = False


@dataclass(frozen=True)
class TileKernel:
    """The constants of a kernel with a loop of products.

    Attributes:
        a, b: Element types of the arrays.
        tile: Rows and columns of a tile of C, and elements of K in one step.
        a_transposed, b_transposed: True if the array is the operand's transpose.
        tf32: True for tensor cores that round float32 to tf32.
        epilogue: What follows the loop; None stores the sums of each slice of K in a matrix of its own.
        scaled: False if alpha is 1.
        slices: The number of slices of K. Several blocks compute one tile of C, each from one slice.
        in_parts: The operand that is a sum of two arrays, ``a`` or ``b``.
        main_loop: What is fixed of its loop's pipeline.
        is_persistent: True if a block computes several tiles one after another.
    """

    a: DType
    b: DType
    tile: tuple[int, int, int]
    a_transposed: bool
    b_transposed: bool
    tf32: bool
    epilogue: Epilogue | None
    scaled: bool = True
    slices: int = 1
    in_parts: str | None = None
    main_loop: PipelineOverrides = AUTO
    is_persistent: bool = False

    @property
    def sums(self) -> DType:
        """Element type of the sums."""
        return "float64" if self.a == "float64" else "float32"

    @property
    def stored(self) -> Epilogue:
        """What the kernel stores: after the epilogue, or the sums alone."""
        return self.epilogue or Epilogue(self.sums, sums=self.sums)

    @property
    def is_split(self) -> bool:
        """True if the last block of each tile adds the slices and applies the epilogue."""
        return self.slices > 1 and self.epilogue is not None

    @property
    def is_plain(self) -> bool:
        """True if the sums of a tile are only rounded to C's type."""
        last = self.epilogue
        return last is None or (not self.scaled and last == Epilogue(last.out, sums=self.sums))
