"""Checks of the arguments of :func:`warp_tiles.record`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from warp_tiles.errors import RecordingError
from warp_tiles.gemm.hardware import BLOCK_THREADS

MAX_DIMENSIONS = 4  # of a Warp launch; a tiled launch needs one of them for the threads of a block
MAX_BLOCKS = 2**31 - 1  # Warp passes an int


def listed(name: str, given: Any) -> list[Any]:
    """Returns arguments or gradients as a list.

    Raises:
        RecordingError: A single value was given.
    """
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)) or hasattr(given, "shape"):
        raise RecordingError(f"{name} is {given!r:.300}", remedy=f"give a list, {name}=[...]")
    return list(given)


def gradients(kernel: Any, name: str, given: Any, names: Sequence[str]) -> list[Any]:
    """Returns a gradient for each argument; None stands for the argument's own.

    Raises:
        RecordingError: Gradients are missing or surplus.
    """
    if given is None:
        return [None] * len(names)
    found = listed(name, given)
    if len(found) != len(names):
        raise RecordingError(
            f"{name} of kernel {kernel.key} has {len(found)} gradients for {len(names)} arguments",
            remedy=f"give one for each of {', '.join(names) or 'none'}, None for the array's own",
        )
    return found


def dimensions(dim: Any, *, tiled: bool) -> tuple[int, ...]:
    """Returns the launch dimensions as a tuple.

    Raises:
        RecordingError: There are none or too many, or one is not a whole number or is negative.
    """
    largest = MAX_DIMENSIONS - tiled
    try:
        sizes = tuple(operator.index(size) for size in (dim if isinstance(dim, Iterable) else (dim,)))
    except TypeError:
        sizes = ()
    if min(sizes, default=-1) < 0 or len(sizes) > largest:
        raise RecordingError(
            f"dim is {dim!r}", remedy=f"give 1 to {largest} whole numbers of threads that are not negative"
        )
    return sizes


def threads(block_dim: Any) -> int | None:
    """Returns the threads per block; None for Warp's default.

    Raises:
        RecordingError: A block cannot have this number of threads.
    """
    return None if block_dim is None else _whole("block_dim", block_dim, 1, BLOCK_THREADS)


def blocks(max_blocks: Any) -> int:
    """Returns the largest number of blocks; 0 for no limit.

    Raises:
        RecordingError: The number is not valid.
    """
    return _whole("max_blocks", max_blocks, 0, MAX_BLOCKS)


def whole_number(value: Any) -> int | None:
    """Returns a whole number of any type, also of NumPy; None for other values, booleans included."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _whole(name: str, value: Any, least: int, most: int) -> int:
    found = whole_number(value)
    if found is None or not least <= found <= most:
        raise RecordingError(f"{name} is {value!r}", remedy=f"give a whole number from {least} to {most}")
    return found
