"""Kernels that are a product of whole arrays, and the launches of them that cover the arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from warp_tiles.gemm.rejected import Refused, Rejected, refuse, rejectable

LEAST_WORK = 1 << 30  # multiplications of a product whose gradients are worth two more kernels

# ---- integers of a kernel that the arguments of a launch decide

Argument = int | tuple[int, ...]  # a number, or the shape of an array

# integers as C++ computes them: a division of integers rounds towards zero
_OPERATIONS: Mapping[str, Callable[..., int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: abs(x) % abs(y) * (1 if x >= 0 else -1),
    "min": min,
    "max": max,
    "neg": lambda x: -x,
    "copy": lambda x: x,
    "int": lambda x: x,
    "int32": lambda x: x,
}


@dataclass(frozen=True)
class Expression:
    """An integer.

    Attributes:
        operation: ``constant``, ``argument``, ``extent`` of an array's dimension, or the key of a builtin.
        numbers: The constant; the position of the argument; or the positions of the array and of the dimension.
    """

    operation: str
    numbers: tuple[int, ...] = ()
    operands: tuple[Expression, ...] = ()

    def value(self, arguments: Sequence[Argument | None]) -> int:
        """Its value.

        Args:
            arguments: The arguments of the launch; None for one that is neither an integer nor an array.

        Raises:
            ArithmeticError: It divides by zero, or a result is no 32-bit integer.
            TypeError: An argument is neither an integer nor an array.
            IndexError: An array has no such dimension.
        """
        if self.operation == "constant":
            return self.numbers[0]
        if self.operation in ("argument", "extent"):
            argument = arguments[self.numbers[0]]
            if self.operation == "extent" and isinstance(argument, tuple):
                return argument[self.numbers[1]]
            if self.operation == "argument" and isinstance(argument, int):
                return argument
            raise TypeError(f"argument {self.numbers[0]} is {argument!r}")
        result = _OPERATIONS[self.operation](*(operand.value(arguments) for operand in self.operands))
        if not -(2**31) <= result < 2**31:
            raise OverflowError(f"{self.operation} is {result}, which is no 32-bit integer")
        return result


def constant(number: int) -> Expression:
    return Expression("constant", (number,))


def argument(position: int) -> Expression:
    return Expression("argument", (position,))


def extent(position: int, dimension: int) -> Expression:
    return Expression("extent", (position, dimension))


def combined(operation: str, operands: Sequence[Expression | None]) -> Expression | None:
    """The result of a builtin; None if it is unknown."""
    known = tuple(operand for operand in operands if operand is not None)
    if operation not in _OPERATIONS or len(known) != len(operands) or not known:
        return None
    return Expression(operation, (), known)


# ---- products


@dataclass(frozen=True)
class WholeOperand:
    """An operand of the product: the position of its array among the arguments, which may be its transpose."""

    position: int
    transposed: bool = False

    def shape(self, arguments: Sequence[Argument | None]) -> tuple[int, ...]:
        """Rows and columns of the operand; empty if the argument is not a matrix."""
        argument = arguments[self.position]
        if not isinstance(argument, tuple) or len(argument) != 2:
            return ()
        return argument[::-1] if self.transposed else argument


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

    @rejectable
    def reason_unsupported(self, blocks: Sequence[int], arguments: Sequence[Argument | None]) -> None:
        """The reason why a launch does not compute the whole product; None if it does.

        Args:
            blocks: The launch dimensions of a tiled launch, without the threads of a block.
            arguments: The arguments: integers, shapes of arrays, or None for others.
        """
        a, b, c = (operand.shape(arguments) for operand in (self.a, self.b, self.c))
        refuse(not (a and b and c) or (a[0], b[1]) != c or a[1] != b[0], "shapes", a, b, c)
        (m, n), k = c, a[1]
        tile_m, tile_n, tile_k = self.tile
        wanted = {self.row_axis: -(-m // tile_m), self.column_axis: -(-n // tile_n)}
        are_covered = list(blocks) == [wanted[axis] for axis in sorted(wanted)]
        refuse(not are_covered, "blocks_do_not_cover", tuple(blocks), c)
        try:
            start, end, step = (number.value(arguments) for number in self.steps)
            turns = range(start, end, step)
        except (ArithmeticError, TypeError, IndexError, ValueError) as error:
            raise Refused(Rejected("unknown_range", (str(error),))) from error
        first, stride = self.k_factor * start + self.k_constant, self.k_factor * step
        is_whole = (first, stride, len(turns)) == (0, tile_k, -(-k // tile_k))
        refuse(not is_whole, "steps_do_not_cover", len(turns), stride, first, k)
