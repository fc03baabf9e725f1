"""Loops of products on a GPU that the forms of test_staged_loops.py and test_loop_forms.py lack, against float64."""

# kernels use arguments of their function as types, so annotations are not postponed here

from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import on, values_of
from tests.bench import deep_variant
from warp_tiles.gemm.choose import choose

pytestmark = pytest.mark.gpu

TM, TN, TK = wp.constant(32), wp.constant(64), wp.constant(32)
# relative to the sum of the magnitudes of what is added
TOLERANCE = {"float32": 2e-6, "float64": 1e-14}


def draw(shape: tuple[int, int], dtype: Any, gpu: str, seed: int) -> wp.array:
    return on(np.random.default_rng(seed).uniform(-1, 1, shape), dtype, gpu)


def assert_sum(got: np.ndarray, a: np.ndarray, b: np.ndarray, dtype: str, start: Any = 0.0) -> None:
    bound = TOLERANCE[dtype] * (np.abs(a) @ np.abs(b) + np.abs(start) + 1)
    assert np.all(np.abs(got - (a @ b + start)) <= bound)


@wp.kernel(module="unique", enable_backward=False)
def clears(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    c = wp.tile_zeros(shape=(TM, TN), dtype=wp.float32, storage="shared")
    zeros = wp.tile_zeros(shape=(TM, TK), dtype=wp.float32, storage="register")
    for step in range(A.shape[1] // TK):
        a = wp.tile_load(A, shape=(TM, TK), offset=(0, step * TK), storage="shared")
        b = wp.tile_load(B, shape=(TK, TN), offset=(step * TK, 0), storage="shared")
        wp.tile_matmul(a, b, c)
        wp.tile_store(A, zeros, offset=(0, step * TK))
    wp.tile_store(C, c)


def test_a_tile_is_read_before_it_is_overwritten_after_the_product(gpu: str) -> None:
    with warp_tiles.enabled():
        a, b, c = (draw(shape, wp.float32, gpu, 1) for shape in ((32, 4096), (4096, 64), (32, 64)))
        x, y = values_of(a), values_of(b)
        wp.launch_tiled(clears, dim=1, inputs=[a, b], outputs=[c], block_dim=128, device=gpu)
    assert_sum(values_of(c), x, y, "float32")
    assert not a.numpy().any()


@wp.kernel(module="unique", enable_backward=False)
def own_array(B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    A = wp.zeros(shape=(TM, TK), dtype=wp.float32)
    for i in range(TM):
        A[i, i] = float(i)
    c = wp.tile_zeros(shape=(TM, TN), dtype=wp.float32, storage="shared")
    a = wp.tile_load(A, shape=(TM, TK), storage="shared")
    b = wp.tile_load(B, shape=(TK, TN), storage="shared")
    wp.tile_matmul(a, b, c)
    wp.tile_store(C, c)


def test_a_tile_of_an_array_in_local_memory(gpu: str) -> None:
    with warp_tiles.enabled():
        b, c = (draw((32, 64), wp.float32, gpu, seed) for seed in (1, 2))
        wp.launch_tiled(own_array, dim=1, inputs=[b], outputs=[c], block_dim=128, device=gpu)
    np.testing.assert_allclose(c.numpy(), np.arange(32)[:, None] * b.numpy(), rtol=1e-6)


@wp.struct
class Point:
    x: wp.float32
    y: wp.float32
    z: wp.float32


@wp.kernel(module="unique", enable_backward=False)
def points_beside(
    A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32),
    P: wp.array2d(dtype=Point), Q: wp.array2d(dtype=Point),
):  # fmt: skip
    p = wp.tile_load(P, shape=(4, 5), storage="shared")
    a = wp.tile_load(A, shape=(TM, TK), storage="shared", aligned=True)
    b = wp.tile_load(B, shape=(TK, TN), storage="shared", bounds_check=False)
    c = wp.tile_matmul(a, b)
    wp.tile_store(C, c)
    wp.tile_store(Q, p)


def test_tiles_of_structs_and_promises_of_the_kernel(gpu: str) -> None:
    values = np.random.default_rng(1).uniform(-1, 1, (3, 7, 3)).astype(np.float32)
    with warp_tiles.enabled():
        a, b, c = (draw(shape, wp.float32, gpu, 1) for shape in ((32, 32), (32, 64), (32, 64)))
        points = wp.array(values, dtype=wp.vec3, device=gpu).view(Point)
        copied = wp.zeros((4, 5), dtype=Point, device=gpu)
        wp.launch_tiled(points_beside, dim=1, inputs=[a, b], outputs=[c, points, copied], block_dim=128, device=gpu)
    assert_sum(values_of(c), values_of(a), values_of(b), "float32")
    want = np.zeros((4, 5, 3), np.float32)
    want[:3] = values[:, :5]
    np.testing.assert_array_equal(copied.view(wp.vec3).numpy(), want)


@pytest.mark.parametrize("threads", [64, 128, 256])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_warps_share_the_sums_of_a_loop(gpu: str, dtype: str, threads: int) -> None:
    out: Any = "float64" if dtype == "float64" else "float32"
    typed: Any = dtype
    assert choose(deep_variant(16, 256, typed, threads, out)).warps_k > 1
    element, result = getattr(wp, dtype), getattr(wp, out)

    @wp.kernel(module="unique", enable_backward=False)
    def deep(A: wp.array2d(dtype=element), B: wp.array2d(dtype=element), C: wp.array2d(dtype=result)):
        c = wp.tile_load(C, shape=(16, 16), storage="shared")
        for step in range(A.shape[1] // 256):
            a = wp.tile_load(A, shape=(16, 256), offset=(0, step * 256), storage="shared")
            b = wp.tile_load(B, shape=(256, 16), offset=(step * 256, 0), storage="shared")
            wp.tile_matmul(a, b, c)
        wp.tile_store(C, c)

    with warp_tiles.enabled():
        a, b, c = draw((16, 768), element, gpu, 1), draw((768, 16), element, gpu, 2), draw((16, 16), result, gpu, 3)
        x, y, start = values_of(a), values_of(b), values_of(c)
        wp.launch_tiled(deep, dim=1, inputs=[a, b], outputs=[c], block_dim=threads, device=gpu)
    assert_sum(values_of(c), x, y, out, start)
