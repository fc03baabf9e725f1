"""Products of whole matrices on a GPU: exact for small whole numbers, in graphs, on streams and on tapes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import LAYOUTS, TYPES, Values, integers, on, square, values_of
from warp_tiles.array_products.call import canonicalize, checked
from warp_tiles.array_products.matmul_choice import candidates
from warp_tiles.array_products.matmul_problem import Gpu, MatmulConfig
from warp_tiles.array_products.prepared import planned, prepare
from warp_tiles.gemm.problem import DTYPE_BYTES

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu", "enabled")]
SHAPES = [
    (128, 256, 64),
    (1024, 1024, 520),
    (333, 517, 1000),
    (16, 4096, 1030),
    (2048, 24, 4100),
    (1, 1000, 777),
    (7, 5, 3),
]


def most_of(dtype: str) -> int:
    """The largest drawn number whose sums are exact in a result of this type."""
    return 1 if dtype in ("float16", "bfloat16") else 3


def in_type(values: Values, dtype: str) -> Values:
    """Numbers rounded to a type."""
    return values_of(on(values, TYPES[dtype]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_shapes_and_layouts(dtype: str, shape: tuple[int, int, int], gpu: str) -> None:
    m, n, k = shape
    a, b = integers(1, m, k, most=most_of(dtype)), integers(2, k, n, most=most_of(dtype))
    expected = in_type(a @ b, dtype)
    for a_layout, b_layout in itertools.product(LAYOUTS, LAYOUTS):
        x, y = LAYOUTS[a_layout](a, TYPES[dtype], gpu), LAYOUTS[b_layout](b, TYPES[dtype], gpu)
        for _ in range(2):  # a race need not show in one launch
            assert np.array_equal(values_of(warp_tiles.matmul(x, y)), expected), (a_layout, b_layout)


@pytest.mark.parametrize("copies", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("gap", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [*TYPES, "tf32"])
def test_lines_of_every_alignment(dtype: str, gap: int, copies: tuple[bool, bool], gpu: str) -> None:
    """Tiles at each edge, with NaN beyond the operands. Lines begin at multiples of ``gap`` elements."""
    m, n, k = 300, 403, 650
    a, b = integers(1, m, k, most=most_of(dtype)), integers(2, k, n, most=most_of(dtype))
    stored = TYPES["float32" if dtype == "tf32" else dtype]
    device, precision = wp.get_device(gpu), "tf32" if dtype == "tf32" else "default"
    for a_columns, b_columns in itertools.product((False, True), repeat=2):
        x, y = inside_nan(a, stored, gap, a_columns, gpu), inside_nan(b, stored, gap, b_columns, gpu)
        out = wp.empty((m, n), dtype=stored, device=gpu)
        call = checked(x, y, out, precision=precision).call
        assert call.a.line_alignment == call.b.line_alignment == min(16, gap * DTYPE_BYTES[call.a.dtype])
        chosen = planned(call, device)[2].config
        config = replace(chosen, copies_a=copies[0], copies_b=copies[1])
        prepare(call, device, config).run(x.ptr, y.ptr, out.ptr, None, 1.0, 0.0)
        assert np.array_equal(values_of(out), a @ b), (a_columns, b_columns)


def inside_nan(values: Values, dtype: Any, gap: int, is_transposed: bool, gpu: str) -> Any:
    """The values in a larger array of NaN, whose lines begin at multiples of ``gap`` elements, and rarely of more."""
    lines = values.T if is_transposed else values
    count, length = lines.shape
    wide = -(-length // gap) * gap
    wide += gap * (1 + wide // gap % 2)  # an odd multiple
    wider = np.full((count + 2, wide), np.nan)
    wider[:count, :length] = lines
    found = on(wider, dtype, gpu)[:count, :length]
    return found.transpose() if is_transposed else found


def test_more_blocks_than_one_dimension_of_a_grid_has(gpu: str) -> None:
    """Warp spreads them over several dimensions from 2^24 threads on."""
    m, config = 64 * (2**24 // 128 + 3), MatmulConfig(64, 16, 16, 128)
    a, b = np.arange(m)[:, None] % 7 - np.arange(8), integers(1, 8, 16, most=1)
    x, y, out = on(a, wp.float16, gpu), on(b, wp.float16, gpu), wp.empty((m, 16), dtype=wp.float16, device=gpu)
    call = checked(x, y, out).call
    prepare(call, out.device, config).run(x.ptr, y.ptr, out.ptr, None, 1.0, 0.0)
    assert np.array_equal(out.numpy(), a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("dtype", TYPES)
def test_every_tile_and_slice(dtype: str, gpu: str) -> None:
    a, b, c = (
        integers(1, 300, 600, most=most_of(dtype)),
        integers(2, 600, 400, most=most_of(dtype)),
        integers(3, 300, 400),
    )
    x, y, device = on(a, TYPES[dtype], gpu), on(b, TYPES[dtype], gpu), wp.get_device(gpu)
    out = on(c, TYPES[dtype], gpu)
    call = checked(x, y, out, 2.0, 1.0).call
    expected = in_type(2 * (a @ b) + in_type(c, dtype), dtype)
    tiles = {}
    for candidate in candidates(canonicalize(call)[0].problem, Gpu(device.arch, device.sm_count)):
        config = candidate.config
        if not config.tensor_copies:
            tiles[config.tile_m, config.tile_n, config.split_k > 1] = config
    for config in tiles.values():
        out.assign(on(c, TYPES[dtype], gpu))
        prepare(call, device, config).run(x.ptr, y.ptr, out.ptr, None, 2.0, 1.0)
        assert np.array_equal(values_of(out), expected), config


@pytest.mark.parametrize(("a_shape", "b_shape"), [
    ((5, 100, 72), (5, 72, 130)), ((5, 100, 72), (72, 130)), ((100, 72), (5, 72, 130)), ((300, 64, 64), (300, 64, 64)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_batches(dtype: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], gpu: str) -> None:
    a, b = integers(1, *a_shape), integers(2, *b_shape)
    for a_layout, b_layout in itertools.product(("rows", "columns", "inside"), repeat=2):
        x, y = LAYOUTS[a_layout](a, TYPES[dtype], gpu), LAYOUTS[b_layout](b, TYPES[dtype], gpu)
        assert np.array_equal(values_of(warp_tiles.matmul(x, y)), a @ b), (a_layout, b_layout)


@pytest.mark.parametrize("shape", [(512, 640, 256), (16, 2048, 4096), (3, 200, 96, 64)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_options(dtype: str, shape: tuple[int, ...], gpu: str) -> None:
    *batch, m, n, k = shape
    a, b = integers(1, *batch, m, k, most=1), integers(2, k, n, most=1)
    c, bias = integers(3, *batch, m, n), integers(4, n)
    out = on(c, TYPES[dtype], gpu)
    arrays = on(a, TYPES[dtype], gpu), on(b, TYPES[dtype], gpu), out
    epilogue = wp.abs if dtype == "float64" else square
    warp_tiles.matmul(*arrays, alpha=0.125, beta=0.5, bias=on(bias, TYPES[dtype], gpu), epilogue=epilogue)
    before = 0.125 * (a @ b) + 0.5 * c + bias
    assert np.array_equal(values_of(out), in_type(np.abs(before) if dtype == "float64" else before**2, dtype))


@pytest.mark.parametrize(
    "shape", [(512, 512, 256), (32, 1024, 8192), (801, 1023, 801)], ids=["tiles", "slices", "copies"]
)
def test_graphs(shape: tuple[int, int, int], gpu: str) -> None:
    m, n, k = shape
    a, b = integers(1, m, k, most=1), integers(2, k, n, most=1)
    x, y, out = on(a, wp.float16, gpu), on(b, wp.float16, gpu), wp.zeros((m, n), dtype=wp.float32, device=gpu)
    warp_tiles.matmul(x, y, out)  # loads the module
    with wp.ScopedCapture(device=gpu) as capture:
        warp_tiles.matmul(x, y, out)
    for factor in (1, 2):
        x.assign(on(factor * a, wp.float16, gpu))
        out.zero_()
        wp.capture_launch(capture.graph)
        assert np.array_equal(out.numpy(), factor * (a @ b))


def test_two_graphs_of_another_library_at_once(gpu: str) -> None:
    """As PyTorch captures and launches them. Warp knows of neither."""
    runtime = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings captures the graphs")

    def checked(result: tuple[Any, ...]) -> Any:
        assert result[0] == runtime.cudaError_t.cudaSuccess, result
        return result[1] if len(result) > 1 else None

    a, b = integers(1, 64, 8192, most=1), integers(2, 8192, 64, most=1)  # split along k
    x, y, side = on(a, wp.float16, gpu), on(b, wp.float16, gpu), wp.Stream(gpu)
    outs = [wp.zeros((64, 64), dtype=wp.float32, device=gpu) for _ in range(2)]
    graphs = []
    with wp.ScopedStream(side):
        warp_tiles.matmul(x, y, outs[0])
        for out in outs:
            checked(runtime.cudaStreamBeginCapture(side.cuda_stream, runtime.cudaStreamCaptureMode(2)))  # relaxed
            warp_tiles.matmul(x, y, out)
            graph = checked(runtime.cudaStreamEndCapture(side.cuda_stream))
            graphs.append(checked(runtime.cudaGraphInstantiate(graph, 1)))  # frees memory at each launch
    streams = [wp.Stream(gpu) for _ in graphs]
    wp.synchronize_device(gpu)
    for _ in range(200):
        for graph, stream in zip(graphs, streams):
            checked(runtime.cudaGraphLaunch(graph, stream.cuda_stream))
    wp.synchronize_device(gpu)
    for out in outs:
        assert np.array_equal(out.numpy(), a @ b)


def test_streams(gpu: str) -> None:
    a, b = integers(1, 2048, 2048, most=1), integers(2, 2048, 2048, most=1)
    x, y = on(a, wp.float16, gpu), on(b, wp.float16, gpu)
    warp_tiles.matmul(x, y)
    stream = wp.Stream(gpu)
    with wp.ScopedStream(stream):
        first = warp_tiles.matmul(x, y, wp.zeros((2048, 2048), dtype=wp.float32, device=gpu))
        second = warp_tiles.matmul(first, first)
    wp.synchronize_stream(stream)
    assert np.array_equal(first.numpy(), a @ b)
    np.testing.assert_allclose(second.numpy(), (a @ b) @ (a @ b), rtol=1e-4, atol=1.0)


def test_no_host_synchronization_and_same_results_in_each_run(gpu: str) -> None:
    a, b = np.random.default_rng(1).normal(size=(2, 1000, 1000))
    x, y = on(a, wp.float16, gpu), on(b, wp.float16, gpu)
    first = warp_tiles.matmul(x, y)
    for _ in range(5):
        assert np.array_equal(values_of(warp_tiles.matmul(x, y)), values_of(first))


@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
@pytest.mark.parametrize("dtype", TYPES)
def test_gradients(dtype: str, batch: tuple[int, ...], gpu: str) -> None:
    a, b = integers(1, *batch, 200, 96, most=1), integers(2, 96, 136, most=1)
    bias, g = integers(3, 136), integers(4, *batch, 200, 136, most=1)
    x, y, v = (on(values, TYPES[dtype], gpu, requires_grad=True) for values in (a, b, bias))
    with wp.Tape() as tape:
        out = warp_tiles.matmul(x, y, bias=v, alpha=2.0)
    tape.backward(grads={out: on(g, TYPES[dtype], gpu)})
    of_b = (2 * np.swapaxes(a, -1, -2) @ g).reshape(-1, 96, 136).sum(0)
    assert np.array_equal(values_of(x.grad), in_type(2 * g @ b.T, dtype))
    assert np.array_equal(values_of(y.grad), in_type(of_b, dtype))
    assert np.array_equal(values_of(v.grad), in_type(g.reshape(-1, 136).sum(0), dtype))


def test_gradients_through_an_epilogue(gpu: str) -> None:
    a, b, c, g = (integers(seed, *shape, most=1) for seed, shape in enumerate(((64, 32), (32, 48), (64, 48), (64, 48))))
    x, y, out = (on(values, device=gpu, requires_grad=True) for values in (a, b, c))
    with wp.Tape() as tape:
        warp_tiles.matmul(x, y, out, beta=2.0, epilogue=square)
    before = a @ b + 2 * c
    tape.backward(grads={out: on(g, device=gpu)})
    assert np.array_equal(x.grad.numpy(), (2 * before * g) @ b.T)
    assert np.array_equal(y.grad.numpy(), a.T @ (2 * before * g))
    assert np.array_equal(out.grad.numpy(), 2 * 2 * before * g)


def test_a_gradient_in_a_graph(gpu: str) -> None:
    a, b = integers(1, 256, 128, most=1), integers(2, 128, 192, most=1)
    x, y = on(a, wp.float16, gpu, requires_grad=True), on(b, wp.float16, gpu, requires_grad=True)
    out = wp.zeros((256, 192), dtype=wp.float16, device=gpu, requires_grad=True)

    def step() -> None:
        with wp.Tape() as tape:
            warp_tiles.matmul(x, y, out)
        out.grad.fill_(1.0)
        tape.backward()

    step()
    x.grad.zero_()
    y.grad.zero_()
    with wp.ScopedCapture(device=gpu) as capture:
        step()
    wp.capture_launch(capture.graph)
    ones = np.ones((256, 192))
    assert np.array_equal(values_of(x.grad), ones @ b.T)
    assert np.array_equal(values_of(y.grad), a.T @ ones)


def test_without_the_hooks(gpu: str) -> None:
    a, b = integers(1, 100, 90, most=1), integers(2, 90, 80, most=1)
    warp_tiles.disable()
    try:
        out = warp_tiles.matmul(on(a, wp.float16, gpu), on(b, wp.float16, gpu))
        assert np.array_equal(values_of(out), a @ b)
    finally:
        warp_tiles.enable()
