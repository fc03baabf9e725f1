"""Arrays and arguments of an emulated launch, as they lie in the memory of the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from warp._src.types import array_t, launch_bounds_t

Values = npt.NDArray[Any]

ARRAYS_ADDRESS = 0x200000000000  # of grid/main.cpp
_MARGIN = 4096  # bytes of no array before, between and after the arrays
_ALIGNMENT = 256  # of an array that owns its memory, as cudaMalloc gives it


class Memory:
    """Arrays of a launch, as they lie in the memory of the emulated device.

    Attributes:
        content: The bytes of it all.
        places: Offset and size of each array, by name.
    """

    def __init__(self) -> None:
        self.content = bytearray(_MARGIN)
        self.places: dict[str, tuple[int, int]] = {}
        self._layouts: dict[str, tuple[Any, Any, int, Any]] = {}

    def add(self, name: str, values: Values) -> int:
        """Place an array, and return its address.

        A view keeps its strides and its distance from the start of its base, which lies at an aligned address, so that
        it may be unaligned. Only its own span may be accessed, from its first byte to its last.
        """
        base = values
        while isinstance(base.base, np.ndarray):
            base = base.base
        first: int = values.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        size = sum((n - 1) * s for n, s in zip(values.shape, values.strides)) + values.itemsize if values.size else 0
        if min(values.strides, default=0) < 0:
            raise ValueError(f"strides {values.strides} of {name} are not placed")
        offset: int = -(-len(self.content) // _ALIGNMENT) * _ALIGNMENT + first
        self.content += bytes(offset + size + _MARGIN - len(self.content))
        self.places[name] = (offset, size)
        self._layouts[name] = (values.shape, values.dtype, offset, values.strides)
        self._view(name, self.content)[...] = values
        return ARRAYS_ADDRESS + offset

    def arrays(self, content: bytes) -> dict[str, Values]:
        """The arrays in the bytes of a memory that is laid out like this one."""
        return {name: self._view(name, content).copy() for name in self._layouts}

    def _view(self, name: str, content: bytes | bytearray) -> Values:
        shape, dtype, offset, strides = self._layouts[name]
        view: Values = np.ndarray(shape, dtype, content, offset, strides)
        return view


def array_argument(values: Values, data: int, grad: int = 0) -> bytes:
    """``wp::array_t`` of native/array.h; ``data`` and ``grad`` are addresses."""
    return bytes(array_t(data, grad, values.ndim, values.shape, values.strides))


def bounds_argument(dim: Sequence[int], threads: int) -> tuple[bytes, int]:
    """``wp::launch_bounds_t`` of a tiled launch, and how many blocks it has."""
    bounds = launch_bounds_t(tuple(dim))
    blocks = int(np.prod(dim))
    bounds.size = blocks * threads
    bounds.coord_mult = threads
    return bytes(bounds), blocks


def no_array() -> bytes:
    """An array that is not there."""
    return bytes(array_t())
