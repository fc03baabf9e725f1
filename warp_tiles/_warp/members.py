"""The arrays of an argument: the argument itself, or the array members of a struct and of nested structs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from warp_tiles._warp.internals import find

_internal = functools.cache(find)  # a cache suits only members that nothing patches


def arrays_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields each array with its name, e.g. ``weights.inner.values``, and None for an array member that is not set."""
    if _internal("types.is_struct")(value):
        for label, variable in value._cls.vars.items():
            member = getattr(value, label)
            if member is None and _internal("types.is_array")(variable.type):
                yield f"{name}.{label}", None
            else:
                yield from arrays_in(f"{name}.{label}", member)
    elif _internal("types.is_array")(value):
        yield name, value


def shapes(kernel: Any, index: int, value: Any, structure: Any) -> dict[str, tuple[int, ...] | None]:
    """The shapes of the arrays in a kernel's argument, by name; None for an array that is not set.

    Args:
        kernel: The kernel.
        index: Position of the argument.
        value: The argument's value, as the user passed it.
        structure: The packed value. It has a shape for everything that Warp accepts as an array.
    """
    argument = kernel.adj.args[index]
    if not _internal("types.is_array")(argument.type):
        found = arrays_in(argument.label, value)
        return {name: None if array is None else tuple(array.shape) for name, array in found}
    dense = structure.data if hasattr(structure, "indices") else structure
    if value is None or not hasattr(dense, "ndim"):
        return {argument.label: None}
    return {argument.label: tuple(structure.shape[: dense.ndim])}
