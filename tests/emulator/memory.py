"""Arrays and arguments of an emulated launch, in the device's memory layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from warp._src.types import array_t, launch_bounds_t

Values = npt.NDArray[Any]

ARRAYS_ADDRESS = 0x200000000000  # the same as in grid/main.cpp
_MARGIN = 4096  # unused bytes before, between and after the arrays
_ALIGNMENT = 256  # of an array that owns its memory, as cudaMalloc guarantees it


class Memory:
    """The global memory of an emulated launch.

    Attributes:
        content: Its bytes.
        places: Offset and size of each array in bytes, by name.
    """

    def __init__(self) -> None:
        self.content = bytearray(_MARGIN)
        self.places: dict[str, tuple[int, int]] = {}
        self._layouts: dict[str, tuple[Any, Any, int, Any]] = {}

    def add(self, name: str, values: Values) -> int:
        """Add an array and return its address.

        A view keeps its strides and its offset in its base array. The base has an aligned address; the view may be
        unaligned. Kernels may access only the bytes from the view's first element to its last.
        """
        base = values
        while isinstance(base.base, np.ndarray):
            base = base.base
        first: int = values.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        size = sum((n - 1) * s for n, s in zip(values.shape, values.strides)) + values.itemsize if values.size else 0
        if min(values.strides, default=0) < 0:
            raise ValueError(f"negative strides are not supported: {name} has strides {values.strides}")
        offset: int = -(-len(self.content) // _ALIGNMENT) * _ALIGNMENT + first
        self.content += bytes(offset + size + _MARGIN - len(self.content))
        self.places[name] = (offset, size)
        self._layouts[name] = (values.shape, values.dtype, offset, values.strides)
        self._view(name, self.content)[...] = values
        return ARRAYS_ADDRESS + offset

    def arrays(self, content: bytes) -> dict[str, Values]:
        """The arrays in ``content``, which has the layout of this memory."""
        return {name: self._view(name, content).copy() for name in self._layouts}

    def _view(self, name: str, content: bytes | bytearray) -> Values:
        shape, dtype, offset, strides = self._layouts[name]
        view: Values = np.ndarray(shape, dtype, content, offset, strides)
        return view


def array_argument(values: Values, data: int, grad: int = 0) -> bytes:
    """A ``wp::array_t`` (native/array.h). ``data`` and ``grad`` are addresses."""
    return bytes(array_t(data, grad, values.ndim, values.shape, values.strides))


def bounds_argument(dim: Sequence[int], threads: int, tiled: bool = True) -> tuple[bytes, int]:
    """The ``wp::launch_bounds_t`` of a launch, and its number of blocks.

    Args:
        dim: The grid of blocks if ``tiled``, else that of threads.
        threads: Threads per block.
        tiled: True if all threads of a block have the same coordinates.
    """
    bounds = launch_bounds_t(tuple(dim))
    bounds.coord_mult = threads if tiled else 1
    bounds.size = int(np.prod(dim)) * bounds.coord_mult
    return bytes(bounds), -(-bounds.size // threads)


def null_array() -> bytes:
    """A null array."""
    return bytes(array_t())
