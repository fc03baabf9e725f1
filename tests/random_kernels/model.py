"""A NumPy model of the tile operations that random kernels use, with their gradients.

A kernel's own source runs in Python, with :class:`Model` in place of the module ``warp``. Tiles are NumPy arrays in
float64, and each operation records how it propagates gradients. With ``bounds=True`` the same source runs on
magnitudes: differences become sums, and tiles hold upper bounds of every partial sum, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LIMITS = {"float16": 2048.0, "float32": 2.0**24, "float64": 2.0**40}  # integers up to these are exact
TF32_LIMIT = 2048.0


class NotExactError(Exception):
    """A value could need rounding."""


@dataclass
class _Run:
    """The state that all tiles and arrays of one run share."""

    bounds: bool
    tape: list[Callable[[], None]] = field(default_factory=list)


def _check(values: np.ndarray, limit: float, subject: str) -> None:
    if values.size and np.abs(values).max() > limit:
        raise NotExactError(f"{subject} reaches {np.abs(values).max():g}, the limit is {limit:g}")


class ModelArray:
    """An array of a kernel, with its gradient."""

    def __init__(self, values: np.ndarray, dtype: str, run: _Run):
        self.values = values.astype(np.float64)
        self.grad = np.zeros_like(self.values)
        self.dtype, self.run = dtype, run

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def window(self, offset: Any, shape: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The part of the array under a tile, and the part of the tile over the array."""
        offset = offset if isinstance(offset, tuple) else (offset,) * len(shape)
        inner, outer = [], []
        for start, count, size in zip(offset, shape, self.shape):
            low, high = max(start, 0), min(start + count, size)
            outer.append(slice(low, max(low, high)))
            inner.append(slice(low - start, max(low, high) - start))
        return tuple(outer), tuple(inner)


class Tile:
    """A tile, or an element in ``wp.tile_map``: values, gradient and dtype."""

    def __init__(self, value: np.ndarray, dtype: str, run: _Run, grad: np.ndarray | None = None):
        self.value, self.dtype, self.run = value, dtype, run
        self.grad = np.zeros_like(value) if grad is None else grad
        self.check()

    def check(self) -> None:
        _check(self.value, LIMITS[self.dtype], f"a tile of {self.dtype}")

    def check_grad(self) -> None:
        _check(self.grad, LIMITS[self.dtype], f"a gradient of {self.dtype}")

    def derived(self, value: np.ndarray, *gradients: tuple[Tile, Callable[[np.ndarray], Any]], dtype: str = "") -> Tile:
        """A new tile, with what its gradient adds to those of the tiles that it was computed from."""
        result = Tile(value, dtype or self.dtype, self.run)

        def reverse() -> None:
            result.check_grad()
            for tile, gradient in gradients:
                tile.grad += gradient(result.grad)

        self.run.tape.append(reverse)
        return result

    def __neg__(self) -> Tile:
        return self._linear(None, -1.0)

    def __add__(self, other: Any) -> Tile:
        return self._linear(other, 1.0)

    def __sub__(self, other: Any) -> Tile:
        return self._linear(other, 1.0, -1.0)

    def __mul__(self, other: Any) -> Tile:
        if not isinstance(other, Tile):
            return self._linear(None, float(other))
        x, y = self.value.copy(), other.value.copy()
        return self.derived(x * y, (self, lambda g: g * y), (other, lambda g: g * x))

    __rmul__ = __mul__

    def __iadd__(self, other: Any) -> Tile:
        return self._add_in_place(other, 1.0)

    def __isub__(self, other: Any) -> Tile:
        return self._add_in_place(other, -1.0)

    def _linear(self, other: Any, mine: float, theirs: float = 1.0) -> Tile:
        if self.run.bounds:
            mine, theirs = abs(mine), abs(theirs)
        if isinstance(other, Tile):
            value = mine * self.value + theirs * other.value
            return self.derived(value, (self, lambda g: mine * g), (other, lambda g: theirs * g))
        extra = 0.0 if other is None else float(other)
        return self.derived(
            mine * self.value + theirs * (abs(extra) if self.run.bounds else extra), (self, lambda g: mine * g)
        )

    def _add_in_place(self, other: Tile, sign: float) -> Tile:
        sign = abs(sign) if self.run.bounds else sign
        self.value += sign * other.value
        self.check()

        def reverse() -> None:
            self.check_grad()
            other.grad += sign * self.grad

        self.run.tape.append(reverse)
        return self


class Model:
    """A fake of the module ``warp``, with which a kernel's source runs in Python.

    Args:
        bounds: Compute upper bounds of magnitudes, and refuse numbers that could need rounding.
    """

    Any = Any

    def __init__(self, *, bounds: bool = False):
        self.run = _Run(bounds)
        self.block: tuple[int, ...] = ()
        for name in ("float16", "float32", "float64"):
            setattr(self, name, _Dtype(name))
        self.int32 = int

    # declarations

    def kernel(self, function: Any = None, **_: Any) -> Any:
        return function if function is not None else lambda f: f

    def constant(self, value: Any) -> Any:
        return value

    func = struct = static = constant

    def array(self, **_: Any) -> Any:
        return None

    array2d = array

    class tile:  # noqa: N801 (named as in Warp)
        def __class_getitem__(cls, _: Any) -> None:
            return None

    def set_module_options(self, _: Any) -> None:
        return None

    def tid(self) -> Any:
        return self.block if len(self.block) > 1 else self.block[0]

    # tiles

    def _filled(self, shape: Any, dtype: Any, value: float) -> Tile:
        value = abs(value) if self.run.bounds else value
        return Tile(np.full(shape, value, np.float64), str(dtype), self.run)

    def tile_zeros(self, shape: Any, dtype: Any, storage: str = "register") -> Tile:
        return self._filled(shape, dtype, 0.0)

    def tile_ones(self, shape: Any, dtype: Any, storage: str = "register") -> Tile:
        return self._filled(shape, dtype, 1.0)

    def tile_full(self, shape: Any, value: Any, dtype: Any, storage: str = "register") -> Tile:
        return self._filled(shape, dtype, float(value))

    def tile_load(self, array: ModelArray, shape: Any, offset: Any = 0, storage: str = "register", **_: Any) -> Tile:
        shape = shape if isinstance(shape, tuple) else (shape,)
        outer, inner = array.window(offset, shape)
        result = self._filled(shape, array.dtype, 0.0)
        result.value[inner] = array.values[outer]
        result.check()

        def reverse() -> None:
            result.check_grad()
            array.grad[outer] += result.grad[inner]
            _check(array.grad[outer], LIMITS[array.dtype], f"a gradient of {array.dtype}")

        self.run.tape.append(reverse)
        return result

    def tile_store(self, array: ModelArray, tile: Tile, offset: Any = 0, **_: Any) -> None:
        outer, inner = array.window(offset, tile.value.shape)
        array.values[outer] = tile.value[inner]

        def reverse() -> None:
            tile.grad[inner] += array.grad[outer]
            array.grad[outer] = 0.0
            tile.check_grad()

        self.run.tape.append(reverse)

    def tile_atomic_add(self, array: ModelArray, tile: Tile, offset: Any = 0, **_: Any) -> None:
        outer, inner = array.window(offset, tile.value.shape)
        array.values[outer] += tile.value[inner]
        _check(array.values[outer], LIMITS[array.dtype], f"an array of {array.dtype}")

        def reverse() -> None:
            tile.grad[inner] += array.grad[outer]
            tile.check_grad()

        self.run.tape.append(reverse)

    def tile_transpose(self, tile: Tile) -> Tile:
        return Tile(tile.value.T, tile.dtype, self.run, tile.grad.T)

    def tile_view(self, tile: Tile, offset: Any, shape: Any) -> Tile:
        part = tuple(slice(start, start + count) for start, count in zip(offset, shape))
        return Tile(tile.value[part], tile.dtype, self.run, tile.grad[part])

    def tile_map(self, function: Callable[..., Tile], *tiles: Tile) -> Tile:
        return function(*tiles)

    def tile_sum(self, tile: Tile) -> Tile:
        return tile.derived(tile.value.sum().reshape(1), (tile, lambda g: g[0]))

    def tile_astype(self, tile: Tile, dtype: Any) -> Tile:
        return tile.derived(tile.value.copy(), (tile, lambda g: g), dtype=str(dtype))

    def tile_matmul(self, a: Tile, b: Tile, out: Tile | None = None, **options: Any) -> Tile | None:
        alpha, beta = float(options.get("alpha", 1.0)), float(options.get("beta", 1.0))
        if self.run.bounds:
            alpha, beta = abs(alpha), abs(beta)
        c = out if out is not None else Tile(np.zeros((a.value.shape[0], b.value.shape[1])), a.dtype, self.run)
        x, y = a.value.copy(), b.value.copy()
        limit = TF32_LIMIT if options.get("precision") == "tf32" else min(LIMITS[a.dtype], LIMITS[b.dtype])
        for operand in (x, y):
            _check(operand, limit, "an operand")
        # alpha scales the sum of products
        _check(x @ y * max(alpha, 1.0), LIMITS[c.dtype], "a product")
        c.value *= beta
        c.value += alpha * (x @ y)
        c.check()

        def reverse() -> None:
            c.check_grad()
            upper = c.grad.copy()
            _check(upper, limit, "a gradient that is an operand")  # it is converted to the dtype of A and B
            for other, target in ((upper @ y.T, a), (x.T @ upper, b)):
                _check(other * max(alpha, 1.0), LIMITS[target.dtype], "a product")
            a.grad += alpha * (upper @ y.T)
            b.grad += alpha * (x.T @ upper)
            a.check_grad()
            b.check_grad()
            c.grad *= beta

        self.run.tape.append(reverse)
        return c if out is None else None


class _Dtype:
    """A fake of ``wp.float32`` and other dtypes: a name, and a conversion of numbers."""

    def __init__(self, name: str):
        self.name = name

    def __str__(self) -> str:
        return self.name

    def __call__(self, value: Any) -> Any:
        return float(value)


@dataclass(frozen=True)
class ModelResult:
    """Values of all arrays after the kernel, and their gradients, by name."""

    values: Mapping[str, np.ndarray]
    grads: Mapping[str, np.ndarray]
