"""Errors of :func:`warp_tiles.matmul`, which come before any launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import CPU, integers, on, square
from warp_tiles import MatmulError, WarpTilesError
from warp_tiles.array_products import prepared


def zeros(*shape: int, dtype: Any = wp.float32) -> Any:
    return wp.zeros(shape, dtype=dtype, device=CPU)


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


@pytest.mark.parametrize("shape", [(4,), (2, 2, 3, 4)], ids=str)
def test_dimensions(shape: tuple[int, ...]) -> None:
    message = refused(zeros(*shape), B)
    assert f"a has shape {shape} and dtype float32 on cpu, which has {len(shape)} dimensions" in message
    assert "2 or 3 dimensions" in message
    assert f"b has shape {shape}" in refused(A, zeros(*shape))


def test_k() -> None:
    message = refused(A, zeros(3, 5))
    assert "a has 4 columns, and b has 3 rows" in message
    assert "a has shape (3, 4) and dtype float32 on cpu, and b has shape (3, 5)" in message


def test_batches() -> None:
    message = refused(zeros(2, 3, 4), zeros(3, 4, 5))
    assert "different batches: a has shape (2, 3, 4)" in message
    assert "share one matrix" in message


def test_different_dtypes() -> None:
    message = refused(A, zeros(4, 5, dtype=wp.float16))
    assert "different dtypes: a has shape (3, 4) and dtype float32" in message
    assert "float16" in message


@pytest.mark.parametrize("dtype", [wp.int32, wp.uint8, wp.vec3])
def test_unsupported_dtypes(dtype: Any) -> None:
    message = refused(zeros(3, 4, dtype=dtype), zeros(4, 5, dtype=dtype))
    assert f"dtype {dtype.__name__}" in message
    assert "float16, bfloat16, float32, float64" in message


# ---- the result


@pytest.mark.parametrize("shape", [(3, 6), (5, 3), (1, 3, 5)], ids=str)
def test_the_shape_of_the_result(shape: tuple[int, ...]) -> None:
    assert f"out has shape {shape} and dtype float32 on cpu, and a @ b has shape (3, 5)" in refused(A, B, zeros(*shape))


@pytest.mark.parametrize(
    ("operands", "result", "allowed"),
    [
        (wp.float32, wp.float16, "float32"),
        (wp.float16, wp.bfloat16, "float16 or float32"),
        (wp.float16, wp.float64, "float16 or float32"),
        (wp.float64, wp.float32, "float64"),
    ],
)
def test_the_dtype_of_the_result(operands: Any, result: Any, allowed: str) -> None:
    message = refused(zeros(3, 4, dtype=operands), zeros(4, 5, dtype=operands), zeros(3, 5, dtype=result))
    assert f"out has shape (3, 5) and dtype {result.__name__} on cpu, and a is {operands.__name__}" in message
    assert message.endswith(f"give out of dtype {allowed}")


@pytest.mark.parametrize("strides", [(0, 4), (4, 4), (8, 4), (4, 8)])
def test_a_result_whose_elements_share_memory(strides: tuple[int, int]) -> None:
    row = zeros(20)
    out = wp.array(ptr=row.ptr, dtype=wp.float32, shape=(3, 5), strides=strides, device=CPU)
    assert f"its strides are {strides}: elements share memory" in refused(A, B, out)


def test_a_batch_of_results_that_share_memory() -> None:
    memory = zeros(40)
    out = wp.array(ptr=memory.ptr, dtype=wp.float32, shape=(2, 3, 5), strides=(4, 20, 4), device=CPU)
    assert "its strides are (4, 20, 4): elements share memory" in refused(zeros(2, 3, 4), B, out)


def test_beta_without_a_result() -> None:
    assert "beta is 0.5, and out is None" in refused(A, B, beta=0.5)


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


@pytest.mark.parametrize("shape", [(3,), (6,), (1,)], ids=str)
def test_the_shape_of_the_bias(shape: tuple[int, ...]) -> None:
    message = refused(A, B, bias=zeros(*shape))
    assert f"bias has shape {shape} and dtype float32 on cpu, and out has shape (3, 5)" in message
    assert "give a bias of shape (5,)" in message


def test_the_dimensions_and_the_dtype_of_the_bias() -> None:
    assert "bias has shape (1, 5) and dtype float32 on cpu, which has 2 dimensions" in refused(A, B, bias=zeros(1, 5))
    assert "bias has shape (5,) and dtype float16" in refused(A, B, bias=zeros(5, dtype=wp.float16))


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", ["2", None, 1j, [1.0]], ids=repr)
def test_factors_that_are_no_numbers(name: str, value: Any) -> None:
    message = refused(A, B, zeros(3, 5), error=TypeError, **{name: value})
    assert message == f"{name} is {value!r}, and must be a number"


@pytest.mark.parametrize("value", [np.tanh, "tanh", 3, [square]], ids=lambda value: type(value).__name__)
def test_epilogues_that_are_no_functions_of_warp(value: Any) -> None:
    message = refused(A, B, epilogue=value, error=TypeError)
    assert message.startswith(f"epilogue is {value!r}")
    assert "must be a @wp.func" in message


@pytest.mark.parametrize("function", [plus, of_half, wp.max], ids=lambda function: function.key)
def test_epilogues_with_other_arguments(function: Any) -> None:
    assert f"epilogue {function.key} takes no single argument of type float32" in refused(A, B, epilogue=function)


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


def test_an_epilogue_of_float64() -> None:
    a, b = zeros(3, 4, dtype=wp.float64), zeros(4, 5, dtype=wp.float64)
    assert "takes no single argument of type float64" in refused(a, b, epilogue=square)


def test_precision() -> None:
    assert "precision is 'fp8'" in refused(A, B, precision="fp8")
    assert "precision is ['tf32']" in refused(A, B, precision=["tf32"])
    half = zeros(3, 4, dtype=wp.float16), zeros(4, 5, dtype=wp.float16)
    assert "precision is 'tf32', and a is float16" in refused(*half, precision="tf32")


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


def test_errors_belong_to_the_projects_tree() -> None:
    assert issubclass(MatmulError, WarpTilesError)
    assert issubclass(MatmulError, ValueError)
