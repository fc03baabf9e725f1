"""Checks of the arguments of :func:`warp_tiles.record`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from warp_tiles.errors import RecordingError
from warp_tiles.gemm.hardware import BLOCK_THREADS

MOST_DIMENSIONS = 4  # of a launch by Warp, the threads of a tiled one's blocks among them
MOST_BLOCKS = 2**31 - 1  # Warp passes an int


def listed(name: str, given: Any) -> list[Any]:
    """Arguments or gradients as a list.

    Raises:
        RecordingError: It is no list of values, but one value.
    """
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)) or hasattr(given, "shape"):
        raise RecordingError(f"{name} is {given!r:.300}", remedy=f"give a list, {name}=[...]")
    return list(given)


def gradients(kernel: Any, name: str, given: Any, names: Sequence[str]) -> list[Any]:
    """A gradient for each argument, None for its own.

    Raises:
        RecordingError: Gradients are missing or surplus.
    """
    if given is None:
        return [None] * len(names)
    found = listed(name, given)
    if len(found) != len(names):
        raise RecordingError(
            f"{name} of kernel {kernel.key} has {len(found)} gradients for {len(names)} arguments",
            remedy=f"give one for each of {', '.join(names) or 'none'}, None where the array's own is meant",
        )
    return found


def dimensions(dim: Any, *, tiled: bool) -> tuple[int, ...]:
    """Launch dimensions.

    Raises:
        RecordingError: They are no whole numbers, negative, none or too many.
    """
    most = MOST_DIMENSIONS - tiled
    try:
        sizes = tuple(operator.index(size) for size in (dim if isinstance(dim, Iterable) else (dim,)))
    except TypeError:
        sizes = ()
    if min(sizes, default=-1) < 0 or len(sizes) > most:
        raise RecordingError(
            f"dim is {dim!r}", remedy=f"give 1 to {most} whole numbers of threads that are not negative"
        )
    return sizes


def threads(block_dim: Any) -> int | None:
    """Threads per block, None for Warp's default.

    Raises:
        RecordingError: No block has so many.
    """
    return None if block_dim is None else _whole("block_dim", block_dim, 1, BLOCK_THREADS)


def blocks(max_blocks: Any) -> int:
    """The largest number of blocks, 0 for no limit.

    Raises:
        RecordingError: It is no such number.
    """
    return _whole("max_blocks", max_blocks, 0, MOST_BLOCKS)


def whole_number(value: Any) -> int | None:
    """A whole number of any type, NumPy's too; None for any other value, booleans included."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _whole(name: str, value: Any, least: int, most: int) -> int:
    found = whole_number(value)
    if found is None or not least <= found <= most:
        raise RecordingError(f"{name} is {value!r}", remedy=f"give a whole number from {least} to {most}")
    return found
