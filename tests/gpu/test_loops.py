"""Loops of products on a GPU that the forms of test_staged_loops.py and test_forms.py lack, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.bench import deep_problem
from tests.emulator.staged import bits, wide
from tests.gpu.device import DeviceKernels
from tests.integration.helpers import ARRAYS, load
from warp_tiles.gemm.choose import choose

pytestmark = pytest.mark.gpu

# relative to the sum of the magnitudes of what is added
TOLERANCE = {"float32": 2e-6, "float64": 1e-14}
PRODUCT = """    a = wp.tile_load(A, shape=(32, 32), storage="shared"{of_a})
    b = wp.tile_load(B, shape=(32, 64), storage="shared"{of_b})
    c = wp.tile_matmul(a, b)
    wp.tile_store(C, c)
"""
TEXT = f"""
@wp.kernel(enable_backward=False)
def clears({ARRAYS}):
    c = wp.tile_zeros(shape=(32, 64), dtype=wp.float32, storage="shared")
    zeros = wp.tile_zeros(shape=(32, 32), dtype=wp.float32, storage="register")
    for step in range(A.shape[1] // 32):
        a = wp.tile_load(A, shape=(32, 32), offset=(0, step * 32), storage="shared")
        b = wp.tile_load(B, shape=(32, 64), offset=(step * 32, 0), storage="shared")
        wp.tile_matmul(a, b, c)
        wp.tile_store(A, zeros, offset=(0, step * 32))
    wp.tile_store(C, c)

@wp.kernel(enable_backward=False)
def own_array(B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    A = wp.zeros(shape=(32, 32), dtype=wp.float32)
    for i in range(32):
        A[i, i] = float(i)
{PRODUCT.format(of_a="", of_b="")}
"""
POINTS = f"""
@wp.struct
class Point:
    x: wp.float32
    y: wp.float32
    z: wp.float32

@wp.kernel(enable_backward=False)
def points_beside({ARRAYS}, P: wp.array2d(dtype=Point), Q: wp.array2d(dtype=Point)):
    p = wp.tile_load(P, shape=(4, 5), storage="shared")
{PRODUCT.format(of_a=", aligned=True", of_b=", bounds_check=False")}
    wp.tile_store(Q, p)
"""
DEEP = """
@wp.kernel(enable_backward=False)
def deep(A: wp.array2d(dtype=wp.{dtype}), B: wp.array2d(dtype=wp.{dtype}), C: wp.array2d(dtype=wp.{out})):
    c = wp.tile_load(C, shape=(16, 16), storage="shared")
    for step in range(A.shape[1] // 256):
        a = wp.tile_load(A, shape=(16, 256), offset=(0, step * 256), storage="shared")
        b = wp.tile_load(B, shape=(256, 16), offset=(step * 256, 0), storage="shared")
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c)
"""


def draw(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    """Numbers of a dtype; bfloat16 as bits."""
    values = np.random.default_rng(seed).uniform(-1, 1, shape)
    return bits(values.astype(np.float32), dtype) if dtype == "bfloat16" else values.astype(dtype)


def assert_sum(got: np.ndarray, a: np.ndarray, b: np.ndarray, start: Any = 0.0) -> None:
    a, b = wide(a), wide(b)
    bound = TOLERANCE[str(got.dtype)] * (np.abs(a) @ np.abs(b) + np.abs(start) + 1)
    assert np.all(np.abs(got - (a @ b + start)) <= bound)


def test_a_tile_is_read_before_it_is_overwritten_after_the_product(gpu: str) -> None:
    a, b, c = draw(1, 32, 4096), draw(2, 4096, 64), draw(3, 32, 64)
    arrays = DeviceKernels(TEXT, gpu, 128).run("clears", (1,), [a, b, c])
    assert_sum(arrays["C"], a, b)
    assert not arrays["A"].any()


def test_a_tile_of_an_array_in_local_memory(gpu: str) -> None:
    b = draw(1, 32, 64)
    found = DeviceKernels(TEXT, gpu, 128).run("own_array", (1,), [b, np.zeros_like(b)])["C"]
    np.testing.assert_allclose(found, np.arange(32)[:, None] * b, rtol=1e-6)


def test_tiles_of_structs_and_promises_of_the_kernel(gpu: str) -> None:
    values, module = draw(1, 3, 7, 3), load(POINTS, block_dim=128)
    a, b = draw(1, 32, 32), draw(2, 32, 64)
    with warp_tiles.enabled():
        x, y, c = (wp.array(array, device=gpu) for array in (a, b, np.zeros((32, 64), np.float32)))
        points = wp.array(values, dtype=wp.vec3, device=gpu).view(module.Point)
        copied = wp.zeros((4, 5), dtype=module.Point, device=gpu)
        inputs = [x, y, c, points, copied]
        wp.launch_tiled(module.points_beside, dim=1, inputs=inputs, block_dim=128, device=gpu)
    assert_sum(c.numpy(), a, b)
    want = np.zeros((4, 5, 3), np.float32)
    want[:3] = values[:, :5]
    np.testing.assert_array_equal(copied.view(wp.vec3).numpy(), want)


@pytest.mark.parametrize("threads", [64, 128, 256])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_warps_share_the_sums_of_a_loop(gpu: str, dtype: Any, threads: int) -> None:
    out: Any = "float64" if dtype == "float64" else "float32"
    assert choose(deep_problem(16, 256, dtype, threads, out)).warps_k > 1
    a, b, start = draw(1, 16, 768, dtype=dtype), draw(2, 768, 16, dtype=dtype), draw(3, 16, 16, dtype=out)
    kernels = DeviceKernels(DEEP.format(dtype=dtype, out=out), gpu, threads)
    assert_sum(kernels.run("deep", (1,), [a, b, start])["C"], a, b, start)
