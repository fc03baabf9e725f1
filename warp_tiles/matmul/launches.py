"""Launches over strided views, packed once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from warp_tiles.gemm.dtypes import DTYPE_BYTES, DType
from warp_tiles.matmul.device_functions import types
from warp_tiles.matmul.views import View

THREADS = 256  # of kernels without tiles


def layout(view: View) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """Dtype, shape and strides of a view."""
    (dtype,) = types(view.dtype)
    return dtype, view.shape, view.strides


def single(dtype: DType) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """Dtype, shape and strides of an array with one element."""
    (found,) = types(dtype)
    return found, (1,), (DTYPE_BYTES[dtype],)


@functools.lru_cache(maxsize=512)
def _holder(kernel: Any, views: tuple[View, ...], dim: tuple[int, ...], scalars: tuple[int, ...], alias: str) -> Any:
    import warp as wp

    return [_packed(kernel, views, dim, scalars, wp.get_device(alias))]


def _packed(kernel: Any, views: tuple[View, ...], dim: tuple[int, ...], scalars: tuple[int, ...], device: Any) -> Any:
    from warp_tiles._warp.prepared import PreparedLaunch

    layouts = [layout(view) for view in views]
    return PreparedLaunch(kernel, [*scalars, 1.0], layouts, dim, THREADS, tiled=False, device=device)


def prepare(kernel: Any, views: Sequence[View], dim: Sequence[int], device: Any, *scalars: int) -> None:
    """Builds and loads the kernel of a launch, and packs it (see :func:`launch`)."""
    _holder(kernel, tuple(views), tuple(dim), scalars, device.alias)


def launch(
    kernel: Any,
    views: Sequence[View],
    pointers: Sequence[int | None],
    dim: Sequence[int],
    device: Any,
    *scalars: int,
    factor: float = 1.0,
) -> None:
    """Launches a kernel over views on the device's current stream. It is packed once, and again if it was modified.

    Args:
        kernel: The kernel. Its last scalar is a factor.
        views: Its arrays.
        pointers: Their addresses.
        dim: The launch dimensions.
        device: Warp's device.
        scalars: Its other scalars.
        factor: The factor.
    """
    arguments = (kernel, tuple(views), tuple(dim), scalars)
    holder = _holder(*arguments, device.alias)
    if not holder[0].is_current():
        holder[0] = _packed(*arguments, device)
    holder[0].run(pointers, factor)
