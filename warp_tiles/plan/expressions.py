"""Integers of a kernel that the arguments of a launch decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
            found = arguments[self.numbers[0]]
            if self.operation == "extent" and isinstance(found, tuple):
                return found[self.numbers[1]]
            if self.operation == "argument" and isinstance(found, int):
                return found
            raise TypeError(f"argument {self.numbers[0]} is {found!r}")
        result = _OPERATIONS[self.operation](*(operand.value(arguments) for operand in self.operands))
        if not -(2**31) <= result < 2**31:
            raise OverflowError(f"{self.operation} is {result}, which is no 32-bit integer")
        return result


def constant(number: int) -> Expression:
    """A number."""
    return Expression("constant", (number,))


def argument(position: int) -> Expression:
    """An integer argument."""
    return Expression("argument", (position,))


def extent(position: int, dimension: int) -> Expression:
    """The extent of an array argument in a dimension."""
    return Expression("extent", (position, dimension))


def combined(operation: str, operands: Sequence[Expression | None]) -> Expression | None:
    """The result of a builtin; None if it is unknown."""
    known = tuple(operand for operand in operands if operand is not None)
    if operation not in _OPERATIONS or len(known) != len(operands) or not known:
        return None
    return Expression(operation, (), known)
