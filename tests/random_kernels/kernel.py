"""What a random kernel is: source text, launch, arguments and their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.random_kernels.model import ModelResult, evaluate


@dataclass(frozen=True)
class ArrayArgument:
    """An array that a kernel takes.

    Attributes:
        name: Of the parameter.
        shape: What the kernel sees.
        dtype: ``"float16"``, ``"float32"`` or ``"float64"``.
        view: ``"whole"``; ``"inner"``, the middle of a larger array; ``"rows"``, each second row of one; ``"columns"``,
            each second column; ``"turned"``, a transposed array.
        read: The kernel loads from it, and its gradient is compared.
        written: The kernel writes to it, and its values are compared.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    view: str = "whole"
    read: bool = True
    written: bool = False


@dataclass(frozen=True)
class ScalarArgument:
    """An int32 that a kernel takes."""

    name: str
    value: int


@dataclass(frozen=True)
class StructArgument:
    """A struct of int32 members; ``type_name`` is its class in the module."""

    name: str
    type_name: str
    members: tuple[tuple[str, int], ...]


Argument = ArrayArgument | ScalarArgument | StructArgument


@dataclass(frozen=True)
class RandomKernel:
    """A kernel with integer-valued arguments, whose result is exact in any order of summation.

    Attributes:
        seed: It was drawn from.
        name: Of the module, an identifier.
        source: Text of the module; the kernel is its ``kernel``.
        grid: Blocks of the launch.
        block_dim: Threads of a block.
        arguments: In the order of the parameters.
        features: What it contains.
        gradients: It has a backward pass, whose gradients are compared.
        magnitude: Inputs lie between its negative and itself.
    """

    seed: int
    name: str
    source: str
    grid: tuple[int, ...]
    block_dim: int
    arguments: tuple[Argument, ...]
    features: frozenset[str]
    gradients: bool
    magnitude: int = 1

    @property
    def arrays(self) -> tuple[ArrayArgument, ...]:
        return tuple(argument for argument in self.arguments if isinstance(argument, ArrayArgument))

    def values(self) -> dict[str, np.ndarray]:
        """Integers that each array holds before the launch, by name."""
        return {a.name: self._draw(a, 0) for a in self.arrays}

    def upper_gradients(self) -> dict[str, np.ndarray]:
        """Integers that each written array has as its gradient before the backward pass, by name."""
        return {a.name: self._draw(a, 1) for a in self.arrays if a.written} if self.gradients else {}

    def _draw(self, argument: ArrayArgument, kind: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, kind, *argument.name.encode()])
        size = self.magnitude if kind == 0 else min(self.magnitude, 2)
        return rng.integers(-size, size + 1, argument.shape).astype(np.float64)

    def expected(self, *, bounds: bool = False) -> ModelResult:
        """What the model computes.

        Raises:
            NotExactError: With ``bounds``, if a number could need rounding.
        """

        def other(names: Mapping[str, Any]) -> dict[str, Any]:
            made: dict[str, Any] = {}
            for argument in self.arguments:
                if isinstance(argument, ScalarArgument):
                    made[argument.name] = argument.value
                elif isinstance(argument, StructArgument):
                    made[argument.name] = names[argument.type_name]()
                    for member, value in argument.members:
                        setattr(made[argument.name], member, value)
            return made

        values = self.values()
        return evaluate(
            self.source,
            self.grid,
            {a.name: (values[a.name], a.dtype) for a in self.arrays},
            other,
            tuple(argument.name for argument in self.arguments),
            self.upper_gradients(),
            bounds=bounds,
        )
