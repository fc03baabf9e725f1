"""Values on their way to a GPU and back, bfloat16 included, which NumPy does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import warp as wp

Matrix = npt.NDArray[np.float64]


def to_bfloat16(values: Matrix) -> npt.NDArray[np.uint16]:
    """The bits of bfloat16, rounded to nearest even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_device(values: Matrix, dtype: str, device: str) -> Any:
    """A Warp array; NumPy does not know bfloat16, so its bits are copied."""
    if dtype != "bfloat16":
        return wp.array(values, dtype=getattr(wp, dtype), device=device)
    return wp.array(to_bfloat16(values), dtype=wp.uint16, device=device).view(wp.bfloat16)


def to_host(array: Any) -> Matrix:
    """Values of a Warp array in float64."""
    if array.dtype is wp.bfloat16:
        bits = array.view(wp.uint16).numpy().astype(np.uint32) << 16
        return np.asarray(bits.view(np.float32), dtype=np.float64)
    return np.asarray(array.numpy(), dtype=np.float64)


def draw(shape: tuple[int, ...], seed: int, exact: bool) -> Matrix:
    """Random values in (-1, 1); with ``exact`` such that float16 and bfloat16 both hold them as they are."""
    values = np.random.default_rng(seed).uniform(-1, 1, shape)
    if not exact:
        return values
    values = np.where(abs(values) < 2.0**-14, 2.0**-14, values)
    return np.asarray((to_bfloat16(values).astype(np.uint32) << 16).view(np.float32), dtype=np.float64)
