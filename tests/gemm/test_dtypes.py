"""The table of element types agrees with NumPy, and its names are distinct."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from warp_tiles.gemm.problem import DTYPE_BYTES, DTYPES, DType


def test_every_type_has_a_row_with_its_name() -> None:
    assert set(DTYPES) == set(get_args(DType)) == set(DTYPE_BYTES)
    assert all(name == info.name for name, info in DTYPES.items())


@pytest.mark.parametrize("field", ["code", "kernel_type", "warp_type", "cuda_type", "roundoff"])
def test_no_two_types_share_a_name(field: str) -> None:
    assert len({getattr(info, field) for info in DTYPES.values()}) == len(DTYPES)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_sizes_and_roundoff_equal_numpys(name: DType) -> None:
    assert np.dtype(name).itemsize == DTYPES[name].size_bytes
    assert np.finfo(name).eps / 2 == DTYPES[name].roundoff


def test_bfloat16_is_half_a_float32() -> None:
    assert DTYPES["bfloat16"].size_bytes == 2
    assert DTYPES["bfloat16"].roundoff == 2.0**-8  # the significand has 8 bits, one of them implicit
