"""The key entries of arguments."""

from typing import Any

import numpy as np
import pytest
import warp as wp

from warp_tiles.errors import TuningError
from warp_tiles.tuning.factory import checked_key, in_order, key_values

NAMES = ("a", "b", "n")


def described(value: Any) -> dict[str, Any]:
    return key_values(("a",), ("a",), [value])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (2.5, 2.5),
        (True, True),
        ("row", "row"),
        (None, None),
        (np.float32(1.5), 1.5),
        (float("inf"), "inf"),
        (np.float32("nan"), "nan"),
        (wp.float64(float("-inf")), "-inf"),
        (wp.vec3(1.0, 2.0, 3.0), "vec3f[1.0, 2.0, 3.0]"),
    ],
)
def test_scalars_by_value(value: Any, expected: Any) -> None:
    assert described(value) == {"a": expected}


def test_arrays_by_shape_dtype_and_layout() -> None:
    array = wp.zeros((4, 6), dtype=wp.float16, device="cpu")
    assert described(array) == {"a.shape": "4x6", "a.dtype": "float16", "a.layout": "contiguous"}
    assert described(array.transpose())["a.layout"] == "1x6"
    assert described(array[:, 2:4]) == {"a.shape": "4x2", "a.dtype": "float16", "a.layout": "6x1"}
    vectors = wp.zeros(5, dtype=wp.vec3, device="cpu")
    assert described(vectors) == {"a.shape": "5", "a.dtype": "vec3f", "a.layout": "contiguous"}
    row = wp.zeros((1, 6), dtype=float, device="cpu")
    assert described(row.transpose())["a.layout"] == "contiguous", "the stride of an extent of one does not count"


@pytest.mark.parametrize("key", [3, None, [1], ("a", "a"), ()])
def test_invalid_keys(key: Any) -> None:
    with pytest.raises(TuningError, match="key is"):
        checked_key(key)


@pytest.mark.parametrize("given", [5, None, {1: 2}, {"a": object()}, {"a": [1]}])
def test_a_key_function_with_an_invalid_result(given: Any) -> None:
    with pytest.raises(TuningError, match="the key function gives"):
        key_values(lambda args: given, NAMES, [1, 2, 3])
    with pytest.raises(TuningError, match="key names a, which is"):
        described(object())
    assert key_values(lambda args: {"a": float("inf")}, NAMES, [1, 2, 3]) == {"a": "inf"}


def test_arguments_by_position_and_by_name() -> None:
    assert in_order(NAMES, [1], [2], {"n": 3}) == [1, 2, 3]
    assert in_order(NAMES, [], [], {"n": 3, "a": 1, "b": 2}) == [1, 2, 3]
    with pytest.raises(TuningError, match="4 values in lists"):
        in_order(NAMES, [1, 2, 3, 4], [], {})
