"""Copies values to a GPU and back, also in bfloat16, which NumPy does not support."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import warp as wp

Matrix = npt.NDArray[np.float64]


def to_bfloat16(values: Matrix) -> npt.NDArray[np.uint16]:
    """Returns the bits of bfloat16, rounded to nearest even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_device(values: Matrix, dtype: str, device: str) -> Any:
    """Returns a Warp array. NumPy does not support bfloat16, so its bits are copied."""
    if dtype != "bfloat16":
        return wp.array(values, dtype=getattr(wp, dtype), device=device)
    return wp.array(to_bfloat16(values), dtype=wp.uint16, device=device).view(wp.bfloat16)


def to_host(array: Any) -> Matrix:
    """Returns the values of a Warp array in float64."""
    if array.dtype is wp.bfloat16:
        bits = array.view(wp.uint16).numpy().astype(np.uint32) << 16
        return np.asarray(bits.view(np.float32), dtype=np.float64)
    return np.asarray(array.numpy(), dtype=np.float64)


def draw(shape: tuple[int, ...], seed: int, exact: bool) -> Matrix:
    """Returns random values in (-1, 1). With ``exact``, float16 and bfloat16 both represent them exactly."""
    values = np.random.default_rng(seed).uniform(-1, 1, shape)
    if not exact:
        return values
    values = np.where(abs(values) < 2.0**-14, 2.0**-14, values)
    return np.asarray((to_bfloat16(values).astype(np.uint32) << 16).view(np.float32), dtype=np.float64)
