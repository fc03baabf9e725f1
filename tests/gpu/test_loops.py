"""Products on a GPU, mostly in loops, against float64: accumulators in registers, loads of tiles, vector gradients."""

# kernels use arguments of their function as types, so annotations are not postponed here

from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.bench import deep_variant
from warp_tiles.gemm.choose import choose

pytestmark = pytest.mark.gpu

TM, TN, TK = wp.constant(32), wp.constant(64), wp.constant(32)
FORMS = ("zeros", "loaded", "copied", "third", "registers", "once", "narrow")
# relative to the sum of the magnitudes of what is added
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-14}


def make_kernel(dtype: Any, out: Any, form: str) -> wp.Kernel:
    """A kernel that multiplies ``A`` and ``B`` in a loop over K.

    ``zeros`` is pipelined. ``loaded`` adds to C. ``copied`` multiplies copies. ``third`` writes a tile that is loaded
    beside A and B. ``registers`` loads another tile first. ``once`` has no loop. ``narrow`` has tiles whose lines are
    not a multiple of 16 bytes. The forms of float32 in test_loop_forms.py have jumps, conditions and several products.
    """

    @wp.kernel(module="unique")
    def zeros(A: wp.array2d(dtype=dtype), B: wp.array2d(dtype=dtype), C: wp.array2d(dtype=out)):
        i, j = wp.tid()
        c = wp.tile_zeros(shape=(TM, TN), dtype=out, storage="shared")
        for step in range((A.shape[1] + TK - 1) // TK):
            a = wp.tile_load(A, shape=(TM, TK), offset=(i * TM, step * TK), storage="shared")
            b = wp.tile_load(B, shape=(TK, TN), offset=(step * TK, j * TN), storage="shared")
            wp.tile_matmul(a, b, c)
        wp.tile_store(C, c, offset=(i * TM, j * TN))

    @wp.kernel(module="unique")
    def loaded(A: wp.array2d(dtype=dtype), B: wp.array2d(dtype=dtype), C: wp.array2d(dtype=out)):
        i, j = wp.tid()
        c = wp.tile_load(C, shape=(TM, TN), offset=(i * TM, j * TN), storage="shared")
        for step in range((A.shape[1] + TK - 1) // TK):
            a = wp.tile_load(A, shape=(TM, TK), offset=(i * TM, step * TK), storage="shared")
            b = wp.tile_load(B, shape=(TK, TN), offset=(step * TK, j * TN), storage="shared")
            wp.tile_matmul(a, b, c)
        wp.tile_store(C, c, offset=(i * TM, j * TN))

    @wp.kernel(module="unique")
    def copies(A: wp.array2d(dtype=dtype), B: wp.array2d(dtype=dtype), C: wp.array2d(dtype=out)):
        i, j = wp.tid()
        c = wp.tile_zeros(shape=(TM, TN), dtype=out, storage="shared")
        for step in range((A.shape[1] + TK - 1) // TK):
            a = wp.tile_load(A, shape=(TM, TK), offset=(i * TM, step * TK), storage="shared")
            b = wp.tile_load(B, shape=(TK, TN), offset=(step * TK, j * TN), storage="shared")
            d = a
            e = b
            wp.tile_matmul(d, e, c)
        wp.tile_store(C, c, offset=(i * TM, j * TN))

    @wp.kernel(module="unique", enable_backward=False)
    def thirds(A: wp.array2d(dtype=dtype), B: wp.array2d(dtype=dtype), C: wp.array2d(dtype=out)):
        i, j = wp.tid()
        c = wp.tile_zeros(shape=(TM, TN), dtype=out, storage="shared")
        for step in range((A.shape[1] + TK - 1) // TK):
            a = wp.tile_load(A, shape=(TM, TK), offset=(i * TM, step * TK), storage="shared")
            b = wp.tile_load(B, shape=(TK, TN), offset=(step * TK, j * TN), storage="shared")
            d = wp.tile_load(A, shape=(TM, TK), offset=(i * TM, step * TK), storage="shared")
            wp.tile_matmul(a, b, c)
            # each block writes back what it read
            wp.tile_store(A, d, offset=(i * TM, step * TK))
        wp.tile_store(C, c, offset=(i * TM, j * TN))

    @wp.kernel(module="unique", enable_backward=False)
    def registers(A: wp.array2d(dtype=dtype), B: wp.array2d(dtype=dtype), C: wp.array2d(dtype=out)):
        i, j = wp.tid()
        c = wp.tile_zeros(shape=(TM, TN), dtype=out, storage="shared")
        for step in range((A.shape[1] + TK - 1) // TK):
            d = wp.tile_load(A, shape=(TM, TK), offset=(i * TM, step * TK), storage="register")
            a = wp.tile_load(A, shape=(TM, TK), offset=(i * TM, step * TK), storage="shared")
            b = wp.tile_load(B, shape=(TK, TN), offset=(step * TK, j * TN), storage="shared")
            wp.tile_matmul(a, b, c)
            # 2 A - A, read from shared memory after the product
            wp.tile_store(A, a + a - d, offset=(i * TM, step * TK))
        wp.tile_store(C, c, offset=(i * TM, j * TN))

    @wp.kernel(module="unique")
    def one(A: wp.array2d(dtype=dtype), B: wp.array2d(dtype=dtype), C: wp.array2d(dtype=out)):
        i, j = wp.tid()
        c = wp.tile_zeros(shape=(TM, TN), dtype=out, storage="shared")
        a = wp.tile_load(A, shape=(TM, TK), offset=(i * TM, 0), storage="shared")
        b = wp.tile_load(B, shape=(TK, TN), offset=(0, j * TN), storage="shared")
        wp.tile_matmul(a, b, c)
        wp.tile_store(C, c, offset=(i * TM, j * TN))

    @wp.kernel(module="unique", enable_backward=False)
    def narrows(A: wp.array2d(dtype=dtype), B: wp.array2d(dtype=dtype), C: wp.array2d(dtype=out)):
        i, j = wp.tid()
        c = wp.tile_zeros(shape=(TM, TN), dtype=out, storage="shared")
        for step in range((A.shape[1] + 2) // 3):
            a = wp.tile_load(A, shape=(TM, 3), offset=(i * TM, step * 3), storage="shared")
            b = wp.tile_load(B, shape=(3, TN), offset=(step * 3, j * TN), storage="shared")
            wp.tile_matmul(a, b, c)
        wp.tile_store(C, c, offset=(i * TM, j * TN))

    kernels = (zeros, loaded, copies, thirds, registers, one, narrows)
    return dict(zip(FORMS, kernels))[form]


def draw(shape: tuple[int, int], dtype: Any, gpu: str, seed: int, pad: int = 0) -> wp.array:
    """A random array. With ``pad``, it is the middle of one that has ``pad`` more columns on each side."""
    values = np.random.default_rng(seed).uniform(-1, 1, (shape[0], shape[1] + 2 * pad)).astype(np.float32)
    whole = wp.array(values, dtype=wp.float32, device=gpu)
    typed = wp.empty(whole.shape, dtype=dtype, device=gpu, requires_grad=True)
    wp.utils.array_cast(whole, typed)
    return typed[:, pad : pad + shape[1]] if pad else typed


def as_double(array: wp.array) -> np.ndarray:
    wide = wp.empty(array.shape, dtype=wp.float32 if array.dtype is not wp.float64 else wp.float64, device=array.device)
    wp.utils.array_cast(array.contiguous(), wide)
    return wide.numpy().astype(np.float64)


def assert_sum(got: np.ndarray, a: np.ndarray, b: np.ndarray, dtype: str, start: Any = 0.0) -> None:
    bound = TOLERANCE[dtype] * (np.abs(a) @ np.abs(b) + np.abs(start) + 1)
    assert np.all(np.abs(got - (a @ b + start)) <= bound)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 128, 160), (40, 136, 72), (33, 129, 65), (32, 128, 0), (32, 128, 32)])
def test_forward(gpu: str, form: str, dtype: str, m: int, n: int, k: int) -> None:
    out = wp.float64 if dtype == "float64" else wp.float32
    with warp_tiles.enabled():
        a, b = draw((m, k), getattr(wp, dtype), gpu, 1), draw((k, n), getattr(wp, dtype), gpu, 2)
        c = draw((m, n), out, gpu, 3)
        x, y = as_double(a), as_double(b)
        start = as_double(c) if form == "loaded" else 0.0
        kernel = make_kernel(getattr(wp, dtype), out, form)
        grid = [-(-m // 32), -(-n // 64)]
        wp.launch_tiled(kernel, dim=grid, inputs=[a, b], outputs=[c], block_dim=128, device=gpu)
    counted = 32 if form == "once" else k
    exact = "float64" if dtype == "float64" else "float32"
    assert_sum(as_double(c), x[:, :counted], y[:counted], exact, start)
    assert np.array_equal(as_double(a), x)


@pytest.mark.parametrize("pad", [0, 1, 8])
@pytest.mark.parametrize("form", ["zeros", "loaded", "copied", "once"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_backward(gpu: str, form: str, dtype: str, pad: int) -> None:
    m, n, k = 72, 192, 96
    out = wp.float64 if dtype == "float64" else wp.float32
    with warp_tiles.enabled():
        a, b = (draw(s, getattr(wp, dtype), gpu, i, pad) for i, s in enumerate([(m, k), (k, n)]))
        c, g = draw((m, n), out, gpu, 3), draw((m, n), out, gpu, 4)
        kernel = make_kernel(getattr(wp, dtype), out, form)
        grid = [-(-m // 32), -(-n // 64)]
        tape = wp.Tape()
        with tape:
            wp.launch_tiled(kernel, dim=grid, inputs=[a, b], outputs=[c], block_dim=128, device=gpu)
        tape.backward(grads={c: g})
    x, y, upper = as_double(a), as_double(b), as_double(g)
    counted = (np.arange(k) < (32 if form == "once" else k))[:, None]
    assert_sum(as_double(a.grad), upper, y.T * counted.T, dtype)
    assert_sum(as_double(b.grad), x.T * counted, upper, dtype)


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
        x, y = as_double(a), as_double(b)
        wp.launch_tiled(clears, dim=1, inputs=[a, b], outputs=[c], block_dim=128, device=gpu)
    assert_sum(as_double(c), x, y, "float32")
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
    assert_sum(as_double(c), as_double(a), as_double(b), "float32")
    want = np.zeros((4, 5, 3), np.float32)
    want[:3] = values[:, :5]
    np.testing.assert_array_equal(copied.view(wp.vec3).numpy(), want)


def test_a_pipelined_loop_gives_the_same_bits_in_every_run(gpu: str) -> None:
    with warp_tiles.enabled():
        a, b = draw((256, 512), wp.float16, gpu, 1), draw((512, 256), wp.float16, gpu, 2)
        kernel = make_kernel(wp.float16, wp.float32, "zeros")
        results = []
        for _ in range(5):
            c = wp.empty((256, 256), dtype=wp.float32, device=gpu)
            wp.launch_tiled(kernel, dim=[8, 4], inputs=[a, b], outputs=[c], block_dim=128, device=gpu)
            results.append(c.numpy())
    assert all(np.array_equal(results[0], other) for other in results[1:])


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
        x, y, start = as_double(a), as_double(b), as_double(c)
        wp.launch_tiled(deep, dim=1, inputs=[a, b], outputs=[c], block_dim=threads, device=gpu)
    assert_sum(as_double(c), x, y, out, start)
