"""Products by the kernel for float32 and float64, on a GPU that has it: exact for small whole numbers."""

import itertools
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import LAYOUTS, integers, on
from tests.gpu.test_tensor_matmul import by_kernel, check_slices, product_of
from warp_tiles.array_products.call import checked
from warp_tiles.array_products.lane_kernel import TILES, LaneKernel
from warp_tiles.array_products.prepared import prepared
from warp_tiles.array_products.tensor_matmul import TensorMatmul
from warp_tiles.gemm.hardware import has_wgmma

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu", "enabled")]
EACH_TILE = pytest.mark.parametrize(
    ("dtype", "tile"), [(dtype, tile) for dtype, tiles in TILES.items() for tile in tiles], ids=str
)


@pytest.fixture(autouse=True)
def _has_the_kernel(gpu: str) -> None:
    if not has_wgmma(wp.get_device(gpu).arch):
        pytest.skip("the kernel is built for sm_90 alone")


@EACH_TILE
@pytest.mark.parametrize("shape", [(128, 256, 64), (1000, 776, 520), (8, 16, 8), (2056, 1032, 4104)], ids=str)
def test_shapes_and_layouts(dtype: str, tile: tuple[int, int], shape: tuple[int, int, int], gpu: str) -> None:
    (m, n, k), scalar = shape, getattr(wp, dtype)
    a, b = integers(1, m, k), integers(2, k, n)
    for first, second in itertools.product(("rows", "columns"), repeat=2):
        x, y = LAYOUTS[first](a, scalar, gpu), LAYOUTS[second](b, scalar, gpu)
        out = on(np.full((m, n), np.nan), scalar, gpu)
        product = product_of(x, y, out, tile)
        assert isinstance(product.plan.chosen.kernel, LaneKernel)
        for _ in range(3):  # a race need not show in one launch
            out.fill_(np.nan)
            product.run(x.ptr, y.ptr, out.ptr, None, 1.0, 0.0)
            assert np.array_equal(out.numpy(), a @ b), (first, second)


@EACH_TILE
def test_slices(dtype: str, tile: tuple[int, int], gpu: str) -> None:
    check_slices(dtype, tile, (3, 16), gpu)


@EACH_TILE
def test_uneven_slices(dtype: Any, tile: tuple[int, int], gpu: str) -> None:
    scalar, resident = getattr(wp, dtype), LaneKernel(dtype, dtype, *tile).resident_blocks
    rows = wp.get_device(gpu).sm_count * resident * 7 // 8 * tile[0]
    a, b = integers(1, rows, 1280), integers(2, 1280, tile[1])
    x, y, expected = on(a, scalar, gpu), on(b, scalar, gpu), a @ b
    out = on(np.full((rows, tile[1]), np.nan), scalar, gpu)
    product = product_of(x, y, out, tile, 2)
    slices, steps = product.plan.chosen.slices, 1280 // product.plan.chosen.config.tile_k
    assert (slices.split, slices.count) == (rows // tile[0], 2)
    assert steps // 2 < slices.stages < steps
    for _ in range(3):
        out.fill_(np.nan)
        product.run(x.ptr, y.ptr, out.ptr, None, 1.0, 0.0)
        assert np.array_equal(out.numpy(), expected)


@EACH_TILE
def test_rows_that_begin_anywhere_and_batches(dtype: str, tile: tuple[int, int], gpu: str) -> None:
    scalar = getattr(wp, dtype)
    a, b, c = integers(1, 5, 131, 77), integers(2, 5, 77, 201), integers(3, 5, 131, 201)
    x, y = on(a, scalar, gpu), on(b, scalar, gpu)
    for beta in (0.0, 3.0):
        out = on(c if beta else np.full(c.shape, np.nan), scalar, gpu)
        assert np.array_equal(by_kernel(x, y, out, tile, alpha=0.5, beta=beta).numpy(), 0.5 * (a @ b) + beta * c)


@wp.func
def shifted(x: Any):
    return type(x)(2.0) * x + type(x)(1.0)


EACH_TYPE = pytest.mark.parametrize("dtype", TILES)


@EACH_TYPE
def test_bias_and_function(dtype: str, gpu: str) -> None:
    scalar = getattr(wp, dtype)
    a, b, bias = integers(1, 200, 136), integers(2, 136, 328), integers(3, 328)
    x, y, z = on(a, scalar, gpu), on(b, scalar, gpu), on(bias, wp.float32, gpu)
    out = on(np.full((200, 328), np.nan), scalar, gpu)
    result = by_kernel(x, y, out, (128, 128), bias=z, epilogue=shifted)
    assert np.array_equal(result.numpy(), 2 * (a @ b + bias) + 1)


@EACH_TYPE
def test_the_chooser_and_gradients(dtype: str, gpu: str) -> None:
    scalar = getattr(wp, dtype)
    a, b = integers(1, 1024, 1024), integers(2, 1024, 1024)
    x, y = (wp.array(values, dtype=scalar, device=gpu, requires_grad=True) for values in (a, b))
    with wp.Tape() as tape:
        out = warp_tiles.matmul(x, y)
    product = prepared(checked(x, y, out).call, out.device)
    assert isinstance(product, TensorMatmul)
    assert isinstance(product.plan.chosen.kernel, LaneKernel)
    assert np.array_equal(out.numpy(), a @ b)
    g = integers(3, 1024, 1024)
    out.grad.assign(on(g, scalar, gpu))
    tape.backward()
    assert np.array_equal(x.grad.numpy(), g @ b.T)
    assert np.array_equal(y.grad.numpy(), a.T @ g)
