"""Canonical calls: joined batches, and a C with contiguous rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.array_products.call import Bias, MatmulCall, View, canonicalize
from warp_tiles.array_products.matmul_problem import Candidate, MatmulConfig, MatmulPlan, MatmulProblem
from warp_tiles.array_products.prepared import epilogue_of, kernel_of

CONFIG = MatmulConfig(64, 64, 32, 128)
PLAN = MatmulPlan(MatmulProblem(6, 8, 7), Candidate(CONFIG), CONFIG)


def view(values: np.ndarray[Any, Any]) -> View:
    shape, strides = values.shape, values.strides
    return View("float32", (shape[0], shape[1], shape[2]), (strides[0], strides[1], strides[2]))


def matrices(batch: int, rows: int, columns: int, *, is_transposed: bool = False, is_shared: bool = False) -> Any:
    """Numbers in memory, as a batch of matrices."""
    shape = (1 if is_shared else batch, *((columns, rows) if is_transposed else (rows, columns)))
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    values = values.transpose(0, 2, 1) if is_transposed else values
    return np.broadcast_to(values, (batch, rows, columns))


def read(values: Any, found: View) -> Any:
    """The elements of a view of the memory of an array."""
    base = values if values.base is None else values.base
    while base.base is not None:
        base = base.base
    return np.lib.stride_tricks.as_strided(base, found.shape, found.strides)


@given(
    *(st.integers(1, size) for size in (4, 5, 6, 7)), *(st.booleans() for _ in range(6)),
)  # fmt: skip
def test_a_canonical_call_computes_the_same(
    batch: int, m: int, n: int, k: int, at: bool, bt: bool, ct: bool, a_shared: bool, b_shared: bool, summed: bool
) -> None:
    a = matrices(batch, m, k, is_transposed=at, is_shared=a_shared)
    b = matrices(batch, k, n, is_transposed=bt, is_shared=b_shared)
    c = matrices(1 if summed else batch, m, n, is_transposed=ct)
    call, is_swapped = canonicalize(MatmulCall(view(a), view(b), view(c), summed=summed))
    left, right = (b, a) if is_swapped else (a, b)
    result = read(left, call.a) @ read(right, call.b)
    if call.summed:
        result = result.sum(0, keepdims=True)
    expected = (a @ b).sum(0, keepdims=True) if summed else a @ b
    out = np.zeros_like(c.base if c.base is not None else c)
    while out.base is not None:
        out = out.base
    np.lib.stride_tricks.as_strided(out, call.out.shape, call.out.strides)[...] = result
    stored = np.lib.stride_tricks.as_strided(out, c.shape, c.strides)
    np.testing.assert_allclose(stored, expected, rtol=1e-6)


def call(a: Any, b: Any, c: Any, **options: Any) -> MatmulCall:
    return MatmulCall(view(a), view(b), view(c), **options)


def test_a_batch_with_a_shared_matrix_is_one_product() -> None:
    found, is_swapped = canonicalize(call(matrices(5, 6, 7), matrices(5, 7, 8, is_shared=True), matrices(5, 6, 8)))
    assert (found.problem.m, found.problem.batch) == (30, 1)
    assert not is_swapped


def test_the_gradient_of_a_shared_matrix_is_one_product() -> None:
    a, g = matrices(5, 6, 7).transpose(0, 2, 1), matrices(5, 6, 8)
    found, _ = canonicalize(call(a, g, matrices(1, 7, 8), summed=True))
    assert (found.problem.k, found.summed) == (30, False)
    assert found.a.is_transposed


def test_a_transposed_result_exchanges_the_operands() -> None:
    plain = call(matrices(1, 6, 7), matrices(1, 7, 8), matrices(1, 6, 8, is_transposed=True))
    found, is_swapped = canonicalize(plain)
    assert is_swapped
    assert found.out.strides[2] == 4
    assert found.a.is_transposed
    with_bias = call(
        matrices(1, 6, 7), matrices(1, 7, 8), matrices(1, 6, 8, is_transposed=True), bias=Bias("float32", 4)
    )
    assert not canonicalize(with_bias)[1]


@pytest.mark.parametrize("is_transposed", [False, True])
def test_contiguous_columns_are_loaded_transposed(is_transposed: bool) -> None:
    found = call(matrices(1, 6, 7, is_transposed=is_transposed), matrices(1, 7, 8), matrices(1, 6, 8))
    assert found.problem.a_transposed is is_transposed
    assert kernel_of(found, PLAN).a_transposed is is_transposed


def test_vectors_are_loaded_along_their_elements() -> None:
    assert View("float32", (1, 7, 1), (28, 4, 4)).is_transposed
    assert not View("float32", (1, 1, 7), (28, 28, 4)).is_transposed
    assert not View("float32", (1, 1, 1), (4, 4, 4)).is_transposed


def test_sums_over_a_batch_have_no_epilogue() -> None:
    one = call(matrices(2, 6, 7), matrices(2, 7, 8), matrices(2, 6, 8), scaled=True, has_beta=True)
    assert kernel_of(one, PLAN).epilogue == epilogue_of(one)
    split = kernel_of(one, replace(PLAN, config=replace(CONFIG, split_k=2)))
    assert (split.epilogue, split.scaled, split.slices) == (epilogue_of(one), True, 2)
    assert kernel_of(call(matrices(2, 6, 7), matrices(2, 7, 8), matrices(1, 6, 8), summed=True), PLAN).epilogue is None
