"""Products by the kernel with tensor copies, on a GPU that has it: exact for small whole numbers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import LAYOUTS, integers, on, values_of
from warp_tiles.array_products.call import checked
from warp_tiles.array_products.matmul_choice import launch_candidate
from warp_tiles.array_products.matmul_problem import Gpu, MatmulConfig
from warp_tiles.array_products.prepared import kernel_copies, planned, prepare, prepared
from warp_tiles.array_products.tensor_kernel import REGISTER_TILES, TILES, TensorKernel
from warp_tiles.array_products.tensor_matmul import TensorMatmul
from warp_tiles.errors import MatmulError
from warp_tiles.gemm.hardware import has_wgmma

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu", "enabled")]
LARGE = MatmulConfig(128, 256, 64, 256)
TYPES = {"float16": wp.float16, "bfloat16": wp.bfloat16, "float32": wp.float32}


@pytest.fixture(autouse=True)
def _has_the_kernel(gpu: str) -> None:
    if not has_wgmma(wp.get_device(gpu).arch):
        pytest.skip("the GPU has no wgmma")


def product_of(
    x: Any, y: Any, out: Any, tile: tuple[int, int] = TILES[0], slices: int = 1,
    cluster: tuple[int, int] = (1, 1), **options: Any,
) -> TensorMatmul:  # fmt: skip
    """A product by the kernel with a tile, whatever the chooser prefers, and with slices of the last tiles."""
    call, is_swapped, plan = planned(checked(x, y, out, **options).call, out.device, LARGE)
    launch = launch_candidate(plan.problem, tile, slices, Gpu(out.device.arch, out.device.sm_count), cluster)

    def loop() -> Any:
        config = replace(LARGE, tile_m=64)
        return prepare(checked(x, y, out, **options).call, out.device, config)

    plan = replace(plan, chosen=launch)
    return TensorMatmul(call, plan, out.device, is_swapped, loop, kernel_copies(call, plan, out.device))


def by_kernel(x: Any, y: Any, out: Any, tile: tuple[int, int] = TILES[0], slices: int = 1, **options: Any) -> Any:
    """The result of :func:`product_of`."""
    bias = getattr(options.get("bias"), "ptr", None)
    alpha, beta = options.get("alpha", 1.0), options.get("beta", 0.0)
    product_of(x, y, out, tile, slices, **options).run(x.ptr, y.ptr, out.ptr, bias, alpha, beta)
    return out


def check_slices(
    dtype: str, tile: tuple[int, int], counts: tuple[int, ...], gpu: str, cluster: tuple[int, int] = (1, 1)
) -> None:
    """Multiplies with so many slices, also many times on the same counters."""
    a, b = integers(1, 200, 4104, most=1), integers(2, 4104, 520, most=1)
    x, y = on(a, getattr(wp, dtype), gpu), on(b, getattr(wp, dtype), gpu)
    out = on(np.full((200, 520), np.nan), wp.float64 if dtype == "float64" else wp.float32, gpu)
    for slices in counts:
        product = product_of(x, y, out, tile, slices, cluster)
        assert product.plan.chosen.slices.split
        for factor in (1, 2, 3, 4):
            out.fill_(np.nan)
            product.run(x.ptr, y.ptr, out.ptr, None, factor, 0.0)
            assert np.array_equal(out.numpy(), factor * (a @ b))


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(
    "shape", [(128, 256, 64), (1000, 776, 520), (8, 16, 8), (2056, 1032, 4104), (256, 512, 1024)], ids=str
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_shapes_and_layouts(dtype: str, shape: tuple[int, int, int], tile: tuple[int, int], gpu: str) -> None:
    m, n, k = shape
    a, b = integers(1, m, k, most=1), integers(2, k, n, most=1)
    for first, second in itertools.product(("rows", "columns"), repeat=2):
        x, y = LAYOUTS[first](a, TYPES[dtype], gpu), LAYOUTS[second](b, TYPES[dtype], gpu)
        for out_type in (TYPES[dtype], wp.float32):
            expected = values_of(on(a @ b, out_type))
            for _ in range(2):  # a race need not show in one launch
                out = on(np.full((m, n), np.nan), out_type, gpu)
                assert np.array_equal(values_of(by_kernel(x, y, out, tile)), expected), (first, second, out_type)


@pytest.mark.parametrize(
    "tile", [tile for tile in TILES if TensorKernel("float16", "float16", *tile).may_have_slices], ids=str
)
def test_slices(tile: tuple[int, int], gpu: str) -> None:
    check_slices("float16", tile, (3, 8), gpu)


@pytest.mark.parametrize("tile", [(128, 256), (128, 128), (64, 64)], ids=str)
@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2), (4, 1), (1, 4)], ids=str)
def test_clusters(cluster: tuple[int, int], tile: tuple[int, int], gpu: str) -> None:
    """Blocks outside of C among them, and many launches."""
    a, b, c = integers(1, 1000, 776, most=1), integers(2, 776, 520, most=1), integers(3, 1000, 520)
    for first, second, beta in (("rows", "columns", 0.0), ("columns", "rows", 2.0)):
        x, y, out = LAYOUTS[first](a, wp.float16, gpu), LAYOUTS[second](b, wp.float16, gpu), on(c, wp.float32, gpu)
        product = product_of(x, y, out, tile, cluster=cluster, beta=beta)
        for _ in range(50):
            out.assign(on(c, wp.float32, gpu))
            product.run(x.ptr, y.ptr, out.ptr, None, 1.0, beta)
            assert np.array_equal(out.numpy(), a @ b + beta * c)


@pytest.mark.parametrize("cluster", [(2, 1), (1, 4)], ids=str)
def test_slices_of_clusters(cluster: tuple[int, int], gpu: str) -> None:
    check_slices("float16", (64, 64), (3,), gpu, cluster)


@pytest.mark.parametrize(("first", "second", "tile"), [
    *(("rows", "columns", tile) for tile in TILES),
    *(("rows", "rows", tile[::-1]) for tile in REGISTER_TILES),  # B passes through registers
    *(("columns", "columns", tile) for tile in REGISTER_TILES),  # A does
], ids=str)  # fmt: skip
def test_tf32(first: str, second: str, tile: tuple[int, int], gpu: str) -> None:
    a, b, c = integers(1, 1000, 776), integers(2, 776, 520), integers(3, 1000, 520)
    x, y = LAYOUTS[first](a, wp.float32, gpu), LAYOUTS[second](b, wp.float32, gpu)
    for beta in (0.0, 2.0):
        out = on(c if beta else np.full((1000, 520), np.nan), wp.float32, gpu)
        expected = a @ b + beta * c
        assert np.array_equal(values_of(by_kernel(x, y, out, tile, beta=beta, precision="tf32")), expected)


@pytest.mark.parametrize("shape", [(1000, 776, 520), (3, 516, 776, 1000), (5, 104, 1, 72)], ids=str)
@pytest.mark.parametrize("tile", [(128, 128), (64, 64)], ids=str)
def test_tf32_with_a_copy_along_k(tile: tuple[int, int], shape: tuple[int, ...], gpu: str) -> None:
    *batch, m, k, n = shape
    a, b = integers(1, *batch, m, k), integers(2, *batch, k, n)
    x, y = LAYOUTS["columns"](a, wp.float32, gpu), on(b, wp.float32, gpu)
    out = on(np.full((*batch, m, n), np.nan), wp.float32, gpu)
    for _ in range(3):
        out.fill_(np.nan)
        assert np.array_equal(values_of(by_kernel(x, y, out, tile, precision="tf32")), a @ b)


@pytest.mark.parametrize("shape", [(333, 777, 521), (1000, 130, 204), (3, 95, 263, 134), (5, 65, 1, 33)], ids=str)
@pytest.mark.parametrize(("dtype", "tile"), [
    ("float16", (128, 128)), ("float16", (256, 160)), ("bfloat16", (64, 96)), ("tf32", (128, 128)), ("tf32", (64, 64)),
], ids=str)  # fmt: skip
def test_rows_that_begin_anywhere(dtype: str, tile: tuple[int, int], shape: tuple[int, ...], gpu: str) -> None:
    *batch, m, k, n = shape
    a, b = integers(1, *batch, m, k, most=1), integers(2, *batch, k, n, most=1)
    options = {"precision": "tf32"} if dtype == "tf32" else {}
    stored = TYPES.get(dtype, wp.float32)
    wide = on(np.full((*batch, m + 2, n + 3), 7.0), stored, gpu)
    out = wide[:, 1:-1, 1:-2] if batch else wide[1:-1, 1:-2]
    expected = np.pad(values_of(on(a @ b, stored)), [*[(0, 0)] * len(batch), (1, 1), (1, 2)], constant_values=7.0)
    for first, second in itertools.product(("rows", "columns", "spread"), repeat=2):
        x, y = LAYOUTS[first](a, stored, gpu), LAYOUTS[second](b, stored, gpu)
        for _ in range(3):
            out.fill_(np.nan)
            by_kernel(x, y, out, tile, **options)
            assert np.array_equal(values_of(wide), expected), (first, second)


@pytest.mark.parametrize("cluster", [(2, 1), (1, 4)], ids=str)
@pytest.mark.parametrize(("first", "second", "tile"), [("rows", "rows", (256, 128)), ("columns", "columns", (64, 64))])
def test_tf32_in_clusters(first: str, second: str, tile: tuple[int, int], cluster: tuple[int, int], gpu: str) -> None:
    a, b = integers(1, 1000, 772), integers(2, 772, 524)
    x, y = LAYOUTS[first](a, wp.float32, gpu), LAYOUTS[second](b, wp.float32, gpu)
    out = on(np.full((1000, 524), np.nan), wp.float32, gpu)
    product = product_of(x, y, out, tile, cluster=cluster, precision="tf32")
    for _ in range(50):
        out.fill_(np.nan)
        product.run(x.ptr, y.ptr, out.ptr, None, 1.0, 0.0)
        assert np.array_equal(out.numpy(), a @ b)


@pytest.mark.parametrize("out_type", [wp.float16, wp.float32], ids=["float16", "float32"])
@pytest.mark.parametrize("bias_type", [wp.float16, wp.float32], ids=["float16", "float32"])
def test_alpha_beta_and_bias(out_type: Any, bias_type: Any, gpu: str) -> None:
    if out_type is wp.float32 and bias_type is wp.float16:
        pytest.skip("a bias has C's type or float32")
    a, b, c = integers(1, 300, 200, most=1), integers(2, 200, 520, most=1), integers(3, 300, 520)
    bias = integers(4, 520)
    out, vector = on(c, out_type, gpu), on(np.repeat(bias, 2), bias_type, gpu)[::2]
    by_kernel(on(a, wp.float16, gpu), on(b, wp.float16, gpu), out, bias=vector, alpha=0.5, beta=2.0)
    assert np.array_equal(values_of(out), 0.5 * (a @ b) + 2 * c + bias)


@pytest.mark.parametrize(
    "shapes", [((5, 104, 72), (5, 72, 136)), ((5, 104, 72), (72, 136)), ((104, 72), (5, 72, 136))], ids=str
)
def test_batches(shapes: tuple[tuple[int, ...], ...], gpu: str) -> None:
    a, b = integers(1, *shapes[0], most=1), integers(2, *shapes[1], most=1)
    x, y = LAYOUTS["columns"](a, wp.float16, gpu), on(b, wp.float16, gpu)  # rows of a batch could join
    out = on(np.full((5, 104, 136), np.nan), wp.float32, gpu)
    assert np.array_equal(by_kernel(x, y, out).numpy(), a @ b)


def test_parts_of_arrays(gpu: str) -> None:
    a, b = integers(1, 256, 128, most=1), integers(2, 128, 512, most=1)
    x, y = (on(np.pad(one, 8, constant_values=np.nan), wp.float16, gpu)[8:-8, 8:-8] for one in (a, b))
    wide = on(np.full((272, 528), 7.0), wp.float16, gpu)
    by_kernel(x, y, wide[8:-8, 8:-8])
    assert np.array_equal(wide.numpy(), np.pad(a @ b, 8, constant_values=7.0)), "nothing is stored outside"


def test_a_transposed_result(gpu: str) -> None:
    a, b = integers(1, 264, 136, most=1), integers(2, 136, 520, most=1)
    out = on(np.zeros((520, 264)), wp.float16, gpu).transpose()
    assert np.array_equal(by_kernel(on(a, wp.float16, gpu), on(b, wp.float16, gpu), out).numpy(), a @ b)


def test_the_chooser_takes_it_for_large_products(gpu: str) -> None:
    a, b = integers(1, 4096, 512, most=1), integers(2, 512, 4096, most=1)
    x, y = (on(one, wp.float16, gpu, requires_grad=True) for one in (a, b))
    with wp.Tape() as tape:
        out = warp_tiles.matmul(x, y)
    product = prepared(checked(x, y, out).call, out.device)
    assert isinstance(product, TensorMatmul)
    assert "tensor copies" in product.plan.reason
    assert np.array_equal(values_of(out), values_of(on(a @ b, wp.float16)))
    g = integers(3, 4096, 4096, most=1)
    tape.backward(grads={out: on(g, wp.float16, gpu)})
    assert np.array_equal(values_of(x.grad), values_of(on(g @ b.T, wp.float16)))
    assert np.array_equal(values_of(y.grad), values_of(on(a.T @ g, wp.float16)))


def test_arrays_that_move(gpu: str) -> None:
    """Arrays of one layout at many addresses, also at addresses that tensor copies cannot read."""
    a, b = integers(1, 1024, 512, most=1), integers(2, 512, 2048, most=1)
    y = on(b, wp.float16, gpu)
    memory = wp.zeros(1024 * 512 + 4096, dtype=wp.float16, device=gpu)
    product = None
    for offset in (0, 8, 1, 64, 4, 8, 2056):
        part = memory[offset : offset + 1024 * 512].reshape((1024, 512))
        part.assign(on((1 + offset % 3) * a, wp.float16, gpu))
        out = wp.zeros((1024, 2048), dtype=wp.float32, device=gpu)
        product = product or product_of(part, y, out)
        product.run(part.ptr, y.ptr, out.ptr, None, 1.0, 0.0)
        assert np.array_equal(out.numpy(), (1 + offset % 3) * (a @ b)), offset


def test_graphs_and_streams(gpu: str) -> None:
    a, b = integers(1, 2048, 2048, most=1), integers(2, 2048, 2048, most=1)
    x, y, out = on(a, wp.float16, gpu), on(b, wp.float16, gpu), wp.zeros((2048, 2048), dtype=wp.float32, device=gpu)
    with wp.ScopedCapture(device=gpu) as capture:  # the first call of this product
        warp_tiles.matmul(x, y, out)
    for factor in (1, 2):
        x.assign(on(factor * a, wp.float16, gpu))
        out.zero_()
        wp.capture_launch(capture.graph)
        assert np.array_equal(out.numpy(), factor * (a @ b))
    outs = [wp.zeros_like(out) for _ in range(2)]
    streams = [wp.Stream(gpu) for _ in outs]
    wp.synchronize_device(gpu)
    for _ in range(20):
        for stream, result in zip(streams, outs):
            with wp.ScopedStream(stream, sync_enter=False):
                warp_tiles.matmul(x, y, result)
    wp.synchronize_device(gpu)
    for result in outs:
        assert np.array_equal(result.numpy(), 2 * (a @ b))


@wp.func
def folded(x: float):
    if x > 3.0:
        return 6.0 - x
    return wp.abs(x)


@wp.func
def gelu(x: float):
    return 0.5 * x * (1.0 + wp.erf(x * 0.70710678))


@wp.func
def doubled_type(x: float):
    return wp.float64(x)


@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_functions_of_the_user(beta: float, gpu: str) -> None:
    a, b, c = integers(1, 300, 200, most=1), integers(2, 200, 520, most=1), integers(3, 300, 520)
    bias = integers(4, 520)
    x, y, vector = on(a, wp.float16, gpu), on(b, wp.float16, gpu), on(bias, wp.float32, gpu)
    sums = 0.5 * (a @ b) + beta * c + bias
    for function, expected in ((folded, np.where(sums > 3, 6 - sums, np.abs(sums))), (wp.abs, np.abs(sums))):
        for out_type in (wp.float16, wp.float32):
            out = on(c, out_type, gpu)
            by_kernel(x, y, out, (128, 128), bias=vector, alpha=0.5, beta=beta, epilogue=function)
            assert np.array_equal(values_of(out), expected), (function.key, out_type)


def test_a_function_in_the_kernel_and_in_a_loop(gpu: str) -> None:
    x, y = (on(integers(seed, 4096, 4096, most=1), wp.float16, gpu, requires_grad=True) for seed in (1, 2))
    with wp.Tape() as tape:
        out = warp_tiles.matmul(x, y, alpha=1 / 64, epilogue=gelu)
    found = prepared(checked(x, y, out, alpha=1 / 64, epilogue=gelu).call, out.device)
    assert isinstance(found, TensorMatmul)
    assert found.plan.chosen.kernel.has_function
    tape.backward(grads={out: on(integers(3, 4096, 4096, most=1), wp.float16, gpu)})
    gradients = x.grad.numpy(), y.grad.numpy()
    tape.zero()
    with warp_tiles.override(async_copies=False), wp.Tape() as other:
        expected = warp_tiles.matmul(x, y, alpha=1 / 64, epilogue=gelu)
    other.backward(grads={expected: on(integers(3, 4096, 4096, most=1), wp.float16, gpu)})
    assert np.abs(values_of(out) - values_of(expected)).max() < 2e-3  # of at most 4: one rounding
    for one, array in zip(gradients, (x, y)):
        assert np.abs(one.astype(float) - values_of(array.grad)).max() < 2e-3 * np.abs(one).max()


def test_a_function_of_another_type_is_an_error(gpu: str) -> None:
    x, y = (on(integers(seed, 4096, 4096, most=1), wp.float16, gpu) for seed in (1, 2))
    with pytest.raises(MatmulError, match=r"the kernel with epilogue .*doubled_type cannot be built"):
        warp_tiles.matmul(x, y, epilogue=doubled_type)
