"""Configurations other than the CPU's own: slices of K, groups of rows, tiles that matrices do not fill."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warp as wp

from tests.array_products.cases import CPU, integers, on, square, transposed
from warp_tiles.array_products.arguments import checked
from warp_tiles.array_products.prepared import prepare
from warp_tiles.gemm.matmul_question import MatmulConfig

SPLIT = MatmulConfig(16, 32, 16, 1, split_k=3, group=2)


def run(config: MatmulConfig, a: Any, b: Any, out: Any, **options: Any) -> Any:
    """A product with a given configuration."""
    product = prepare(checked(a, b, out, **options).call, wp.get_device(CPU), config)
    bias = options.get("bias")
    factors = options.get("alpha", 1.0), options.get("beta", 0.0)
    product.run(a.ptr, b.ptr, out.ptr, None if bias is None else bias.ptr, *factors)
    return out.numpy()


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
@pytest.mark.parametrize("k", [16, 33, 100, 0])
def test_slices_of_k(batch: tuple[int, ...], k: int) -> None:
    a, b = integers(1, *batch, 50, k), integers(2, *batch, k, 70)
    assert np.array_equal(run(SPLIT, on(a), on(b), on(np.full((*batch, 50, 70), np.nan))), a @ b)


def test_slices_with_every_option() -> None:
    a, b, c, bias = integers(1, 2, 50, 100), integers(2, 100, 70), integers(3, 2, 50, 70), integers(4, 70)
    found = run(SPLIT, on(a), on(b), on(c), alpha=0.25, beta=2.0, bias=on(bias), epilogue=square)
    assert np.array_equal(found, (0.25 * (a @ b) + 2 * c + bias) ** 2)


def test_slices_of_a_result_whose_columns_are_contiguous() -> None:
    a, b = integers(1, 50, 100), integers(2, 100, 70)
    assert np.array_equal(run(SPLIT, on(a), on(b), transposed(np.zeros((50, 70)))), a @ b)


@pytest.mark.parametrize("group", [1, 2, 3, 7, 100])
def test_every_tile_is_computed_once(group: int) -> None:
    a, b = integers(1, 100, 40), integers(2, 40, 90)
    config = MatmulConfig(16, 32, 16, 1, group=group)
    c = integers(3, 100, 90)
    assert np.array_equal(run(config, on(a), on(b), on(c), beta=1.0), a @ b + c)


def test_slices_are_added_in_order() -> None:
    a, b = np.random.default_rng(1).normal(size=(2, 50, 50))
    first, second = (run(SPLIT, on(a), on(b), on(np.zeros((50, 50)))) for _ in range(2))
    assert np.array_equal(first, second)
    np.testing.assert_allclose(first, a @ b, rtol=1e-4, atol=1e-5)
