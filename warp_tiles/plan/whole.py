"""Kernels that are a product of whole arrays, and the launches of them that cover the arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warp_tiles.plan.expressions import Argument, Expression

LEAST_WORK = 1 << 30  # multiplications of a product whose gradients are worth two more kernels


@dataclass(frozen=True)
class WholeOperand:
    """An operand of the product.

    Attributes:
        position: Position of the array among the kernel's arguments.
        transposed: True if the array is the operand's transpose.
    """

    position: int
    transposed: bool = False

    def shape(self, arguments: Sequence[Argument | None]) -> tuple[int, ...]:
        """Rows and columns of the operand; empty if the argument is not a matrix."""
        found = arguments[self.position]
        if not isinstance(found, tuple) or len(found) != 2:
            return ()
        return found[::-1] if self.transposed else found


@dataclass(frozen=True)
class WholeProduct:
    """A kernel that computes C = A B, if a launch covers the arrays.

    Attributes:
        tile: Rows and columns of a tile of C, and the step along K.
        row_axis, column_axis: The launch dimensions that count tiles of C down and across.
        steps: Start, end and step of the loop's ``range``.
        k_factor, k_constant: A tile begins at ``k_factor * variable + k_constant`` along K.
        site: Number of the site of the product.
        tf32: True if it rounds float32 to tf32. The trace does not tell.
    """

    a: WholeOperand
    b: WholeOperand
    c: WholeOperand
    tile: tuple[int, int, int]
    row_axis: int
    column_axis: int
    steps: tuple[Expression, Expression, Expression]
    k_factor: int
    k_constant: int
    site: int
    tf32: bool = False

    def reason_unsupported(self, blocks: Sequence[int], arguments: Sequence[Argument | None]) -> str:
        """The reason why a launch does not compute the whole product; empty if it does.

        Args:
            blocks: The launch dimensions of a tiled launch, without the threads of a block.
            arguments: The arguments: integers, shapes of arrays, or None for others.
        """
        a, b, c = (operand.shape(arguments) for operand in (self.a, self.b, self.c))
        if not (a and b and c) or (a[0], b[1]) != c or a[1] != b[0]:
            return f"A, B and C have shapes {a}, {b} and {c}"
        (m, n), k = c, a[1]
        tile_m, tile_n, tile_k = self.tile
        wanted = {self.row_axis: -(-m // tile_m), self.column_axis: -(-n // tile_n)}
        if list(blocks) != [wanted[axis] for axis in sorted(wanted)]:
            return f"{tuple(blocks)} blocks do not cover C of shape {c}"
        try:
            start, end, step = (number.value(arguments) for number in self.steps)
            turns = range(start, end, step)
        except (ArithmeticError, TypeError, IndexError, ValueError) as error:
            return f"the loop's range is unknown: {error}"
        first, stride = self.k_factor * start + self.k_constant, self.k_factor * step
        if (first, stride, len(turns)) != (0, tile_k, -(-k // tile_k)):
            return f"{len(turns)} steps of {stride} from {first} do not cover K = {k}"
        return ""
