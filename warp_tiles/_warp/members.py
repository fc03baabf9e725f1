"""The arrays of an argument: the argument itself, or the members of a struct, of structs in it too."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from warp_tiles._warp.seams import find

_internal = functools.cache(find)  # for members that are never patched


def arrays_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every array by name, e.g. ``weights.inner.values``; None is a member that has no array."""
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
    """Shapes of the arrays in a kernel's argument by name; None for an array that is not there.

    Args:
        kernel, index: The argument.
        value: Its value as it was given.
        structure: Its value as it was packed, for whatever Warp takes as an array.
    """
    argument = kernel.adj.args[index]
    if not _internal("types.is_array")(argument.type):
        found = arrays_in(argument.label, value)
        return {name: None if array is None else tuple(array.shape) for name, array in found}
    dense = structure.data if hasattr(structure, "indices") else structure
    if value is None or not hasattr(dense, "ndim"):
        return {argument.label: None}
    return {argument.label: tuple(structure.shape[: dense.ndim])}
