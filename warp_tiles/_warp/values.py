"""Warp's values while it generates a function: their kinds, and the scalars whose values are known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warp_tiles._warp.frames import Call
from warp_tiles._warp.internals import find
from warp_tiles.codegen.affine import Affine, affine_result

_CONSTRUCTORS = frozenset({"float", "int", "float16", "float32", "float64", "int32", "int64"})


def flatten(values: Any) -> Iterator[Any]:
    """Yields the values of a call. It replaces tuples and lists by their elements, and leaves out None."""
    for value in values:
        elements = getattr(getattr(value, "type", None), "values", None)  # of a tuple in a kernel
        if isinstance(elements, (list, tuple)) and all(hasattr(element, "emit") for element in elements):
            yield from elements
        elif isinstance(value, (list, tuple)):
            yield from flatten(value)
        elif value is not None:
            yield value


def is_tile(value: Any) -> bool:
    """True for a tile."""
    return bool(find("types.is_tile")(getattr(value, "type", None)))


def is_array(value: Any) -> bool:
    """True for an array."""
    return bool(find("types.is_array")(getattr(value, "type", None)))


def is_reference(value: Any) -> bool:
    """True for a reference to memory."""
    return bool(find("types.is_reference")(getattr(value, "type", None)))


def is_int32(value: Any) -> bool:
    """True for a 32-bit integer."""
    return getattr(getattr(value, "type", None), "__name__", "") in ("int", "int32")


class Scalars:
    """The scalars of one function whose values are constants or affine expressions.

    Attributes:
        assigned: C++ names of the variables that the function assigns to. Their values are not constant.
    """

    def __init__(self) -> None:
        self.assigned: set[str] = set()
        self._affine: dict[int, Affine | None] = {}
        self._constants: dict[int, Any] = {}  # results of constructors

    def follow(self, call: Call, results: tuple[Any, ...]) -> None:
        """Stores the value of a call's result, if it is a constant or an affine expression.

        Args:
            call: The call.
            results: Its results, as Warp's values.
        """
        name = str(call.function.key)
        if name == "assign" and call.operands:
            self.assigned.add(call.operands[0].emit())
        if len(results) != 1 or not call.function.is_builtin():
            return
        if name in _CONSTRUCTORS and len(call.operands) == 1:
            (operand,) = call.operands
            constant = call.constants.get(id(operand))
            self._constants[id(results[0])] = constant if constant is not None else self._constants.get(id(operand))
        if not is_int32(results[0]):
            return
        offsets = tuple(self.affine(value, call.constants.get(id(value))) for value in call.operands)
        self._affine[id(results[0])] = affine_result(name, offsets)

    def constant(self, value: Any) -> float | None:
        """The value of a scalar of the finished function as a number; None if it is not constant."""
        if hasattr(value, "emit") and value.emit() in self.assigned:
            return None
        constant = value if isinstance(value, (int, float)) else getattr(value, "constant", None)
        if constant is None:
            constant = self._constants.get(id(value))
        constant = getattr(constant, "value", constant)  # of one of Warp's scalar types
        return float(constant) if isinstance(constant, (int, float)) else None

    def affine(self, value: Any, constant: Any) -> Affine | None:
        """The value of a scalar as an affine expression; None if it is not an integer.

        Args:
            value: Warp's value.
            constant: Its value if it is a constant, else None.
        """
        if isinstance(constant, int) and not isinstance(constant, bool):
            return Affine(constant)
        if not is_int32(value):
            return None
        known = self._affine.get(id(value))
        return known if known is not None else Affine.variable(value.emit())


def frame_of(adjoint: Any) -> Iterator[tuple[str, int]]:
    """Yields each variable of a function that has shared memory of its own, in the order of memory, with its bytes."""
    for var in adjoint.variables:
        kind = var.type
        if is_tile(var):
            is_owner = getattr(kind, "storage", "") == "shared" and kind.owner
        else:
            is_owner = hasattr(kind, "capacity") and not is_array(var)  # a stack of tiles; arrays have a capacity too
        if is_owner:
            yield var.emit(), int(kind.size_in_bytes())
