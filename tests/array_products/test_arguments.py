"""Errors of :func:`warp_tiles.matmul`, which come before any launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import CPU, integers, on, square, zeros
from warp_tiles import MatmulError
from warp_tiles.array_products import prepared

A, B = zeros(3, 4), zeros(4, 5)


@wp.func
def plus(x: float, y: float):
    return x + y


@wp.func
def of_half(x: wp.float16):
    return x


@wp.func
def to_integer(x: float):
    return int(x)


@wp.func
def to_nothing(x: float):
    y = x + 1.0  # noqa: F841


def refused(*arguments: Any, error: type[Exception] = MatmulError, **options: Any) -> str:
    """The message of the error that a call raises."""
    with pytest.raises(error) as caught:
        warp_tiles.matmul(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "value", [None, 3.0, np.zeros((3, 4)), [[1.0]], A.numpy()], ids=lambda value: type(value).__name__
)
def test_operands_that_are_no_arrays(value: Any) -> None:
    kind = type(value).__name__
    assert f"a is of type {kind}, and must be a wp.array" in refused(value, B, error=TypeError)
    assert f"b is of type {kind}, and must be a wp.array" in refused(A, value, error=TypeError)
    if value is not None:
        assert f"out is of type {kind}" in refused(A, B, value, error=TypeError)
        assert f"bias is of type {kind}" in refused(A, B, bias=value, error=TypeError)


def test_an_indexed_array() -> None:
    indexed = wp.indexedarray(A, [wp.array([0, 2], dtype=int, device=CPU)])
    assert "copy an indexed array first" in refused(indexed, B, error=TypeError)


INT, HALF, DOUBLE = wp.int32, wp.float16, wp.float64


def sharing(shape: tuple[int, ...], *strides: int) -> Any:
    """A result whose elements share memory."""
    return wp.array(ptr=A.ptr, dtype=wp.float32, shape=shape, strides=strides, device=CPU)


@pytest.mark.parametrize(
    ("arguments", "options", "parts"),
    [
        ((zeros(4), B), {}, ["a has shape (4,) and dtype float32 on cpu, which has 1 dimensions", "2 or 3 dimensions"]),
        ((A, zeros(2, 2, 3, 4)), {}, ["b has shape (2, 2, 3, 4)", "4 dimensions"]),
        ((A, zeros(3, 5)), {}, ["a has 4 columns, and b has 3 rows: a has shape (3, 4) and", "b has shape (3, 5)"]),
        ((zeros(2, 3, 4), zeros(3, 4, 5)), {}, ["different batches: a has shape (2, 3, 4)", "share one matrix"]),
        ((A, zeros(4, 5, dtype=HALF)), {}, ["different dtypes: a has shape (3, 4) and dtype float32", "float16"]),
        ((zeros(3, 4, dtype=INT), B), {}, ["dtype int32", "float16, bfloat16, float32, float64"]),
        ((zeros(3, 4, dtype=wp.vec3), B), {}, ["dtype vec3f"]),
        *(((A, B, zeros(*shape)), {}, [f"out has shape {shape} and dtype float32 on cpu, and a @ b has shape (3, 5)"])
          for shape in ((3, 6), (5, 3), (1, 3, 5))),
        ((A, B, zeros(3, 5, dtype=HALF)), {}, ["dtype float16 on cpu, and a is float32", "give out of dtype float32"]),
        ((zeros(3, 4, dtype=HALF), zeros(4, 5, dtype=HALF), zeros(3, 5, dtype=DOUBLE)), {},
         ["give out of dtype float16 or float32"]),
        ((zeros(3, 4, dtype=DOUBLE), zeros(4, 5, dtype=DOUBLE), zeros(3, 5)), {}, ["give out of dtype float64"]),
        *(((A, B, sharing((3, 5), *strides)), {}, [f"its strides are {strides}: elements share memory"])
          for strides in ((0, 4), (4, 4), (8, 4), (4, 8))),
        ((zeros(2, 3, 4), B, sharing((2, 3, 5), 4, 20, 4)), {}, ["its strides are (4, 20, 4): elements share memory"]),
        ((A, B), {"beta": 0.5}, ["beta is 0.5, and out is None"]),
        *(((A, B), {"bias": zeros(*shape)},
           [f"bias has shape {shape} and dtype float32 on cpu, and out has shape (3, 5)", "a bias of shape (5,)"])
          for shape in ((3,), (6,), (1,))),
        ((A, B), {"bias": zeros(1, 5)}, ["bias has shape (1, 5) and dtype float32 on cpu, which has 2 dimensions"]),
        ((A, B), {"bias": zeros(5, dtype=HALF)}, ["bias has shape (5,) and dtype float16"]),
        *(((A, B), {"epilogue": function}, [f"epilogue {function.key} takes no single argument of type float32"])
          for function in (plus, of_half, wp.max)),
        ((zeros(3, 4, dtype=DOUBLE), zeros(4, 5, dtype=DOUBLE)), {"epilogue": square}, ["argument of type float64"]),
        ((A, B), {"precision": "fp8"}, ["precision is 'fp8'"]),
        ((A, B), {"precision": ["tf32"]}, ["precision is ['tf32']"]),
        ((A, B), {"precision": np.array(["tf32", "default"])}, ["precision is array(['tf32', 'default']"]),
        ((zeros(3, 4, dtype=HALF), zeros(4, 5, dtype=HALF)), {"precision": "tf32"}, ["'tf32', and a is float16"]),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(arguments: tuple[Any, ...], options: dict[str, Any], parts: list[str]) -> None:
    message = refused(*arguments, **options)
    assert [part for part in parts if part not in message] == []


def test_overlapping_memory() -> None:
    larger = zeros(8, 8)
    a, b, bias = larger[:3, :4], larger[4:, :5], larger[7, :5]
    assert "a has shape (3, 4) and dtype float32 on cpu, and overlaps out in memory" in refused(a, B, larger[2:5, 3:])
    assert "b has shape (4, 5)" in refused(A, b, larger[2:5, 3:])
    assert "bias has shape (5,)" in refused(A, B, larger[5:, 3:], bias=bias)
    assert "overlaps" in refused(zeros(3, 4), B, larger[:3, :5], bias=larger[2, :5])


def test_interleaved_arrays_do_not_overlap() -> None:
    larger = on(integers(1, 4, 9))
    a, b, out = larger[:, :4], on(integers(2, 4, 5)), larger[:, 4:]
    warp_tiles.matmul(a, b, out)
    assert np.array_equal(out.numpy(), integers(1, 4, 9)[:, :4] @ integers(2, 4, 5))


def test_overlap_is_found_in_a_repeated_call() -> None:
    larger = zeros(8, 8)
    warp_tiles.matmul(larger[:3, :4], B, zeros(8, 8)[5:, :5])
    assert "overlaps" in refused(larger[:3, :4], B, larger[1:4, :5])


# ---- the other arguments


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", ["2", None, 1j, [1.0], True, np.True_], ids=repr)
def test_factors_that_are_no_numbers(name: str, value: Any) -> None:
    message = refused(A, B, zeros(3, 5), error=TypeError, **{name: value})
    assert message == f"{name} is {value!r}, and must be a number"


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_factor_that_no_float_holds(name: str) -> None:
    assert refused(A, B, zeros(3, 5), **{name: 10**400}).startswith(f"{name} is too large for a float")


@pytest.mark.parametrize("value", [np.tanh, "tanh", 3, [square]], ids=lambda value: type(value).__name__)
def test_epilogues_that_are_no_functions_of_warp(value: Any) -> None:
    message = refused(A, B, epilogue=value, error=TypeError)
    assert message.startswith(f"epilogue is {value!r}")
    assert "must be a @wp.func" in message


@pytest.mark.parametrize("function", [to_integer, to_nothing], ids=lambda function: function.key)
def test_epilogues_with_other_results(function: Any) -> None:
    out = zeros(3, 5)
    out.fill_(7.0)
    message = refused(A, B, out, epilogue=function)
    assert message.startswith(f"the kernel with epilogue {function.key} cannot be built")
    assert "write it as a function of one float32 that returns one float32\nLog:\nError while parsing" in message
    assert (out.numpy() == 7.0).all()


def test_an_error_of_the_build_is_no_error_of_the_epilogue(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise OSError("the disk is full")

    monkeypatch.setattr(prepared, "tile_kernel", failing)
    with pytest.raises(OSError, match="the disk is full"):
        warp_tiles.matmul(zeros(3, 9), zeros(9, 5), epilogue=square)


def test_more_tiles_than_blocks_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "MOST_BLOCKS", 2)
    out = zeros(3, 7, 5)
    out.fill_(1.0)
    message = refused(zeros(3, 7, 6), zeros(3, 6, 5), out)
    assert "needs 3 blocks, for 1 slices of tiles of" in message
    assert "at most 2" in message
    assert (out.numpy() == 1.0).all()


def test_nothing_is_written_before_an_error() -> None:
    out = on(np.full((3, 5), 7.0))
    refused(A, B, out, bias=zeros(4))
    assert np.all(out.numpy() == 7.0)
