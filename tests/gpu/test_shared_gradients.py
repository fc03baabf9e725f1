"""Products of a tile with itself on a GPU: both adjoints add to one gradient, and neither may lose a part of it."""

# kernels use arguments of their function as types, so annotations are not postponed here

from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles

pytestmark = pytest.mark.gpu

BLOCKS = 512
# absolute; a gradient is a sum of up to 96 products of numbers below 2
TOLERANCE = {wp.float16: 0.3, wp.float32: 2e-4, wp.float64: 1e-12}


def make_kernel(dtype: Any, rows: int, columns: int, transposed: bool) -> wp.Kernel:
    """``A Aᵀ``, or ``A A`` of a square tile, in each block."""
    M, N = wp.constant(rows), wp.constant(columns)

    @wp.kernel(module="unique")
    def gram(A: wp.array3d(dtype=dtype), C: wp.array3d(dtype=dtype)):
        i = wp.tid()
        a = wp.tile_load(A[i], shape=(M, N), storage="shared")
        wp.tile_store(C[i], wp.tile_matmul(a, wp.tile_transpose(a)))

    @wp.kernel(module="unique")
    def square(A: wp.array3d(dtype=dtype), C: wp.array3d(dtype=dtype)):
        i = wp.tid()
        a = wp.tile_load(A[i], shape=(M, M), storage="shared")
        wp.tile_store(C[i], wp.tile_matmul(a, a))

    return gram if transposed else square


@pytest.mark.parametrize("dtype", [wp.float16, wp.float32, wp.float64])
@pytest.mark.parametrize("threads", [128, 256])
@pytest.mark.parametrize(
    ("rows", "columns", "transposed"), [(48, 48, False), (16, 64, True), (64, 64, True), (8, 128, True)]
)
def test_no_part_of_the_gradient_is_lost(
    gpu: str, dtype: Any, threads: int, rows: int, columns: int, transposed: bool
) -> None:
    random = np.random.default_rng(4)
    values, grad = random.uniform(-1, 1, (rows, columns)), random.uniform(-1, 1, (rows, rows))
    a = wp.array(np.tile(values, (BLOCKS, 1, 1)), dtype=dtype, device=gpu, requires_grad=True)
    c = wp.zeros((BLOCKS, rows, rows), dtype=dtype, device=gpu, requires_grad=True)
    c.grad = wp.array(np.tile(grad, (BLOCKS, 1, 1)), dtype=dtype, device=gpu)
    kernel = make_kernel(dtype, rows, columns, transposed)
    with warp_tiles.enabled():
        tiled = {"dim": BLOCKS, "inputs": [a], "outputs": [c], "block_dim": threads, "device": gpu}
        wp.launch_tiled(kernel, **tiled)
        wp.launch_tiled(kernel, **tiled, adj_inputs=[a.grad], adj_outputs=[c.grad], adjoint=True)
    x = a.numpy()[0].astype(np.float64)
    g = grad.astype(wp.dtype_to_numpy(dtype)).astype(np.float64)
    expected = (g + g.T) @ x if transposed else g @ x.T + x.T @ g
    found = a.grad.numpy().astype(np.float64)
    assert np.max(np.abs(found - expected)) <= TOLERANCE[dtype]
    assert (found == found[0]).all()  # all blocks compute the same
