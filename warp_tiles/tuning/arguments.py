"""Arguments of a kernel by name, and their properties that are part of a key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from warp_tiles.errors import TuningError
from warp_tiles.tuning.tuning_key import Scalar

Key = tuple[str, ...] | Callable[[SimpleNamespace], Mapping[str, Scalar]]


def checked_key(key: Any) -> Key:
    """The key as names of arguments, each once, or as a function of them. Raises TuningError for others."""
    if callable(key):
        function: Key = key
        return function
    names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Iterable) else ()
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names) or not names:
        raise TuningError(f"key is {key!r}", remedy="name the kernel arguments that decide, each once")
    return names


def refuse_unknown(names: Iterable[str], arguments: Sequence[str], what: str) -> None:
    """Raise TuningError, with the valid names, if a name is not an argument."""
    if unknown := [name for name in names if name not in arguments]:
        message = f"{what} names {', '.join(unknown)}, which the kernel does not take"
        raise TuningError(message, remedy=f"its arguments are {', '.join(arguments)}")


def in_order(
    arguments: Sequence[str], inputs: Sequence[Any], outputs: Sequence[Any], named: Mapping[str, Any]
) -> list[Any]:
    """The values in the order of the arguments. Raises TuningError if one is missing, unknown or given twice."""
    positional = [*inputs, *outputs]
    refuse_unknown(named, arguments, "the launch")
    rest = arguments[len(positional) :]
    twice = [name for name in arguments[: len(positional)] if name in named]
    missing = [name for name in rest if name not in named]
    if twice or missing or len(positional) > len(arguments):
        problems = [f"{', '.join(twice)} twice"] if twice else []
        problems += [f"no {', '.join(missing)}"] if missing else []
        problems += [f"{len(positional)} values in lists"] if len(positional) > len(arguments) else []
        message = f"the launch gives {' and '.join(problems)}"
        raise TuningError(message, remedy=f"the kernel's arguments are {', '.join(arguments)}")
    return positional + [named[name] for name in rest]


def namespace(arguments: Sequence[str], values: Sequence[Any]) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(arguments, values)))


def key_values(key: Key, arguments: Sequence[str], values: Sequence[Any]) -> dict[str, Scalar]:
    """The key entries of arguments: shape, dtype and layout of an array, the value of a scalar, vector or matrix.

    Raises TuningError for any other value.
    """
    if callable(key):
        given = key(namespace(arguments, values))
        valid = isinstance(given, Mapping) and all(isinstance(name, str) for name in given)
        if not valid or not all(isinstance(value, Scalar) for value in given.values()):
            raise TuningError(
                f"the key function gives {given!r}", remedy="return strings, numbers, booleans or None by name"
            )
        return {name: _finite(value) for name, value in given.items()}
    by_name = dict(zip(arguments, values))
    return {entry: value for name in key for entry, value in _described(name, by_name[name]).items()}


def hashable(value: Any) -> Any:
    """Returns a hashable form of a key value. Two forms are equal only if a key holds the same text for both."""
    kind = type(value)
    if kind is int or kind is bool or kind is str:
        return kind, value
    if kind is float:
        return kind, repr(value)
    if hasattr(value, "_length_"):  # a Warp vector, matrix or quaternion
        return kind, bytes(value)
    return kind, tuple(_described("", value).values())


def is_array(value: Any) -> bool:
    """True also for what looks like a Warp array."""
    return all(hasattr(value, name) for name in ("shape", "strides", "dtype")) and bool(value.shape)


def is_struct(value: Any) -> bool:
    return hasattr(value, "_cls") and hasattr(value._cls, "vars")


def _described(name: str, value: Any) -> dict[str, Scalar]:
    if value is None or isinstance(value, (bool, int, float, str)):
        return {name: _finite(value)}
    if is_array(value):
        return {
            f"{name}.shape": "x".join(map(str, value.shape)),
            f"{name}.dtype": getattr(value.dtype, "__name__", None) or str(value.dtype),
            f"{name}.layout": _layout(value),
        }
    if hasattr(value, "item"):  # a NumPy scalar
        return {name: _finite(value.item())}
    if hasattr(value, "value") and isinstance(value.value, (bool, int, float)):  # a Warp scalar
        return {name: _finite(value.value)}
    if hasattr(value, "__len__") and hasattr(value, "_length_"):  # a Warp vector, matrix or quaternion
        return {name: f"{type(value).__name__}{[float(item) for item in _flat(value)]}"}
    found = "a struct" if is_struct(value) else repr(value)
    remedy = "name scalars and arrays, or give key=lambda args: {...}"
    raise TuningError(f"the key names {name}, which is {found}", remedy=remedy)


def _finite(value: Scalar) -> Scalar:
    """Returns the value, or its text if JSON cannot represent the number."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _flat(value: Any) -> Iterable[Any]:
    for item in value:
        if hasattr(item, "__len__"):
            yield from _flat(item)
        else:
            yield item


def _layout(array: Any) -> str:
    """Returns ``contiguous``, or the strides in elements."""
    size, expected = getattr(array, "itemsize", 0) or 0, 1
    if not size:
        import warp as wp

        size = wp.types.type_size_in_bytes(array.dtype)
    contiguous = True
    for extent, stride in zip(reversed(array.shape), reversed(array.strides)):
        contiguous = contiguous and (extent == 1 or stride == expected * size)
        expected *= extent
    return "contiguous" if contiguous else "x".join(f"{stride / size:g}" for stride in array.strides)
