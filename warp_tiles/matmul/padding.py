"""Copies of operands whose lines begin at multiples of 16 bytes, so that async copies of 16 bytes can load them."""

# mypy: ignore-errors
# Warp reads annotations as values, so they are not types, and the file does not import them from __future__

import functools
from typing import Any

from warp_tiles.gemm.dtypes import DType
from warp_tiles.heuristics.operand_copies import ALIGNED
from warp_tiles.matmul.device_functions import types
from warp_tiles.matmul.kernels import forward_only
from warp_tiles.matmul.launches import THREADS, layout
from warp_tiles.matmul.views import View

_COPY = """
    constexpr int WIDTH = 16 / sizeof(*Source.data);
    struct alignas(sizeof(*Source.data)) Bits { char bytes[sizeof(*Source.data)]; };
    struct alignas(16) Vector { Bits elements[WIDTH]; };
    const char* const from = reinterpret_cast<const char*>(Source.data) + Source.strides[0] * (long long)(z)
        + Source.strides[1] * (long long)(line);
    char* const to = reinterpret_cast<char*>(Result.data) + Result.strides[0] * (long long)(z)
        + Result.strides[1] * (long long)(line);
    Vector copied = {};
    for (int i = 0; i < WIDTH; ++i) {
        const int at = vector * WIDTH + i;
        if (at < Source.shape[2])
            copied.elements[i] = *reinterpret_cast<const Bits*>(from + Source.strides[2] * (long long)(at));
    }
    reinterpret_cast<Vector*>(to)[vector] = copied;
"""


@functools.cache
def padding_kernel(dtype: DType) -> Any:
    """A kernel of ``Source, Result``, of shape (batch, lines, length).

    Lines of ``Result`` are aligned, and followed by zeros up to a multiple of 16 bytes. The launch has a thread for
    each 16 bytes.
    """
    import warp as wp

    (value,) = types(dtype)

    @wp.func_native(_COPY)
    def copy_vector(
        Source: wp.array(dtype=value, ndim=3), Result: wp.array(dtype=value, ndim=3), z: int, line: int, vector: int
    ): ...

    @wp.kernel(enable_backward=False, module="unique")
    def padded_copy(Source: wp.array(dtype=value, ndim=3), Result: wp.array(dtype=value, ndim=3)):
        z, line, vector = wp.tid()
        copy_vector(Source, Result, z, line, vector)

    return forward_only(padded_copy)


class PaddedCopy:
    """A copy of an operand on a device.

    Args:
        view: The operand.
        parts: 2 for an operand that is a sum of two arrays, else 1.
        device: Warp's device.

    Attributes:
        view: The copy.
        size_bytes: Its size.
    """

    def __init__(self, view: View, parts: int, device: Any) -> None:
        from warp_tiles._warp.prepared import PreparedLaunch

        self.view = view.padded()
        source, result = view.stored, self.view.stored
        batch, lines, _ = source.shape
        count = parts * batch if source.strides[0] else 1
        self.size_bytes = count * lines * result.strides[1]
        layouts = []
        for one in (source, result):
            dtype, (_, *matrix), strides = layout(one)
            layouts.append((dtype, (count, *matrix), strides))
        dim = (count, lines, result.strides[1] // ALIGNED)
        self._launch = PreparedLaunch(padding_kernel(view.dtype), [], layouts, dim, THREADS, tiled=False, device=device)

    def is_current(self) -> bool:
        """True if the module of its kernel is unmodified."""
        return bool(self._launch.is_current())

    def run(self, source: int, result: int) -> int:
        """Launches it on the device's current stream. The arguments are addresses. Returns that of the result."""
        self._launch.run((source, result))
        return result
