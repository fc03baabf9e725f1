"""A random kernel: its source text, launch, arguments and their values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.random_kernels.model import Model, ModelArray, ModelResult


@dataclass(frozen=True)
class ArrayArgument:
    """An array argument of a kernel.

    Attributes:
        shape: Shape of the view that the kernel gets.
        dtype: ``"float16"``, ``"float32"`` or ``"float64"``.
        view: ``"whole"``; ``"inner"``, the middle of a larger array; ``"rows"``, every second row of one;
            ``"columns"``, every second column; ``"transposed"``, a transposed array.
        read: True if the kernel loads from it. Its gradient is compared.
        written: True if the kernel writes to it. Its values are compared.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    view: str = "whole"
    read: bool = True
    written: bool = False


@dataclass(frozen=True)
class ScalarArgument:
    """An int32 argument of a kernel."""

    name: str
    value: int

    def passed(self, module: Mapping[str, Any]) -> int:
        """What the kernel gets, from the names of its module."""
        return self.value


@dataclass(frozen=True)
class StructArgument:
    """A struct argument with int32 members. ``type_name`` is its class in the module."""

    name: str
    type_name: str
    members: tuple[tuple[str, int], ...]

    def passed(self, module: Mapping[str, Any]) -> Any:
        """What the kernel gets, from the names of its module."""
        struct = module[self.type_name]()
        for member, value in self.members:
            setattr(struct, member, value)
        return struct


Argument = ArrayArgument | ScalarArgument | StructArgument


@dataclass(frozen=True)
class RandomKernel:
    """A kernel with integer-valued arguments. Its result is exact in any order of summation.

    Attributes:
        name: Name of the module, an identifier.
        source: Text of the module, which defines ``kernel``.
        grid: Blocks of the launch.
        arguments: Arguments in the order of the parameters.
        features: Names of the constructs that it contains.
        gradients: True if it has a backward pass whose gradients are compared.
        magnitude: Largest absolute value of the inputs.
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
        """The integers that each array holds before the launch, by name."""
        return {a.name: self._draw(a, 0) for a in self.arrays}

    def upper_gradients(self) -> dict[str, np.ndarray]:
        """The integer gradients of each written array before the backward pass, by name."""
        return {a.name: self._draw(a, 1) for a in self.arrays if a.written} if self.gradients else {}

    def _draw(self, argument: ArrayArgument, kind: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, kind, *argument.name.encode()])
        size = self.magnitude if kind == 0 else min(self.magnitude, 2)
        return rng.integers(-size, size + 1, argument.shape).astype(np.float64)

    def expected(self, *, bounds: bool = False) -> ModelResult:
        """The results of the model, in which the source runs on NumPy arrays.

        Args:
            bounds: Check that every number is exact.

        Raises:
            NotExactError: With ``bounds``, if a number could need rounding.
        """

        model = Model(bounds=bounds)
        names: dict[str, Any] = {"wp": model, "__name__": "random_kernel_model"}
        exec(compile(self.source.replace("import warp as wp\n", ""), "<random kernel>", "exec"), names)
        sign, values = np.abs if bounds else np.asarray, self.values()
        arrays = {a.name: ModelArray(sign(values[a.name]), a.dtype, model.run) for a in self.arrays}
        arguments = [
            arrays[argument.name] if isinstance(argument, ArrayArgument) else argument.passed(names)
            for argument in self.arguments
        ]
        with np.errstate(all="raise"):
            for block in np.ndindex(*self.grid):
                model.block = tuple(int(index) for index in block)
                names["kernel"](*arguments)
            for name, gradient in self.upper_gradients().items():
                arrays[name].grad[...] = sign(gradient)
            for reverse in reversed(model.run.tape):
                reverse()
        return ModelResult({n: a.values for n, a in arrays.items()}, {n: a.grad for n, a in arrays.items()})
