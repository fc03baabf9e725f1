"""Integers as affine expressions: a constant plus multiples of variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Affine:
    """``constant + sum(factor * variable)``.

    Attributes:
        terms: The C++ names of the variables with their factors, sorted by name. No factor is zero.
    """

    constant: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    @classmethod
    def variable(cls, name: str) -> Affine:
        """Returns the expression that consists of one variable."""
        return cls(0, ((name, 1),))

    @classmethod
    def of(cls, constant: int, terms: Mapping[str, int]) -> Affine:
        """Returns an expression of these terms, without those whose factor is zero."""
        return cls(constant, tuple(sorted((name, factor) for name, factor in terms.items() if factor)))

    @property
    def variables(self) -> frozenset[str]:
        """The variables in the expression."""
        return frozenset(name for name, _ in self.terms)

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for name, factor in other.terms:
            terms[name] = terms.get(name, 0) + factor
        return Affine.of(self.constant + other.constant, terms)

    def __neg__(self) -> Affine:
        return self.times(-1)

    def __sub__(self, other: Affine) -> Affine:
        return self + -other

    def times(self, factor: int) -> Affine:
        """Returns the expression multiplied by a number."""
        return Affine.of(self.constant * factor, {name: value * factor for name, value in self.terms})

    def __str__(self) -> str:
        parts = [f"{factor} * {name}" if factor != 1 else name for name, factor in self.terms]
        return " + ".join([*parts, str(self.constant)] if self.constant or not parts else parts)


def affine_result(operation: str, operands: tuple[Affine | None, ...]) -> Affine | None:
    """Returns the result of an arithmetic builtin; None if it is not affine.

    Args:
        operation: Key of the builtin: ``add``, ``sub``, ``mul``, ``neg``, ``copy``, ``int`` or ``int32``.
        operands: Its operands; None for one that is not affine.
    """
    known = [operand for operand in operands if operand is not None]
    if len(known) != len(operands) or not known:
        return None
    if operation == "add" and len(known) == 2:
        return known[0] + known[1]
    if operation == "sub" and len(known) == 2:
        return known[0] - known[1]
    if operation == "mul" and len(known) == 2:
        for factor, other in (known, reversed(known)):
            if not factor.terms:
                return other.times(factor.constant)
        return None
    if operation == "neg" and len(known) == 1:
        return -known[0]
    if operation in ("copy", "int", "int32") and len(known) == 1:
        return known[0]
    return None
