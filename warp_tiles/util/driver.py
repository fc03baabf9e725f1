"""Calls of the CUDA driver through ctypes.

Source of the functions: https://docs.nvidia.com/cuda/cuda-driver-api/
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


def call(function: str, *arguments: Any) -> str:
    """Call a function of the driver by the name of its symbol, e.g. ``cuCtxPushCurrent_v2``.

    Returns the name of the error, e.g. ``CUDA_ERROR_OUT_OF_MEMORY``; empty if it succeeded. An OSError is raised
    without a driver.
    """
    driver = _driver()
    if not (status := getattr(driver, function)(*arguments)):
        return ""
    name = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    return name.value.decode() if name.value else f"error {status}"


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
