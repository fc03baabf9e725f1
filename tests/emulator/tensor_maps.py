"""Tensor maps of the emulator. They have the size of those that cuTensorMapEncodeTiled makes, and another encoding.

``grid/tensor_map.h`` has the fields.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

_MARK = 0x70616D726F736E74
_FIELDS = struct.Struct("<QQ4Q5Q5HBBB27x")


def tensor_map(
    address: int, element_bytes: int, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int = 0
) -> bytes:
    """A tensor map. Dimensions begin with the innermost, whose elements are contiguous.

    Args:
        address: Address of element 0.
        element_bytes: Size of an element: 1, 2, 4 or 8.
        sizes: Elements along each dimension.
        strides: Bytes between elements along each dimension but the first.
        box: Elements that a copy moves along each dimension.
        swizzle: Bytes of a row whose vectors are permuted: 32, 64 or 128, or 0 for no swizzling.

    Raises:
        ValueError: ``cuTensorMapEncodeTiled`` refuses the arguments.
    """
    rank = len(sizes)
    _require(2 <= rank <= 5, f"the rank is {rank}")  # the functions copy no vectors
    _require(len(strides) == rank - 1 and len(box) == rank, "the arguments have different ranks")
    _require(element_bytes in (1, 2, 4, 8), f"elements of {element_bytes} bytes")
    _require(address % 16 == 0, f"the address {address:#x} is not a multiple of 16")
    for size in sizes:
        _require(1 <= size <= 1 << 32, f"a size of {size}")
    for stride in strides:
        _require(stride % 16 == 0 and 0 <= stride < 1 << 40, f"a stride of {stride} bytes")
    for extent in box:
        _require(1 <= extent <= 256, f"a box of {extent} elements along a dimension")
    row_bytes = box[0] * element_bytes
    _require(row_bytes % 16 == 0, f"rows of the box have {row_bytes} bytes")
    _require(swizzle in (0, 32, 64, 128), f"a swizzle of {swizzle} bytes")
    _require(swizzle == 0 or row_bytes <= swizzle, f"rows of the box have {row_bytes} bytes, and the swizzle {swizzle}")
    rest = 5 - rank
    return _FIELDS.pack(
        _MARK, address, *strides, *[0] * rest, *sizes, *[1] * rest, *box, *[1] * rest, rank, element_bytes, swizzle
    )


def box_bytes(box: Sequence[int], element_bytes: int) -> int:
    """Bytes that a copy adds to its mbarrier, inside the tensor or not."""
    return math.prod(box) * element_bytes


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(f"no tensor map: {problem}")
