"""``warp_tiles.cholesky`` and ``warp_tiles.solve`` on a GPU, compared with float64: in graphs, on streams, on tapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import LAYOUTS, on, values_of
from tests.array_products.solve_cases import (
    cholesky_gradient,
    factor_of,
    folded,
    info_of,
    matrices,
    read_triangle,
    spoiled,
)
from warp_tiles.array_products import solve_choice

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu", "enabled")]
TYPES = {"float32": wp.float32, "float64": wp.float64}
TOLERANCES = {"float32": 3e-5, "float64": 1e-12}


# sizes, dtypes and triangles; each combination compiles modules of its own
CASES = [
    (1, "float32", False),
    (13, "float64", True),
    (32, "float32", True),
    (128, "float64", False),
    (300, "float32", True),
    (1024, "float64", False),
]


@pytest.mark.parametrize(("n", "dtype", "upper"), CASES)
def test_values(n: int, dtype: str, upper: bool, gpu: str) -> None:
    batch = 2 if n == 1024 else 5
    a, b = matrices(n, n, batch), np.random.default_rng(n).normal(size=(batch, n, 3))
    given = on(read_triangle(a, upper), TYPES[dtype], gpu)
    right, info = on(b, TYPES[dtype], gpu), wp.full(batch, 7, dtype=int, device=gpu)
    for _ in range(2):  # a race need not show in one launch
        found = warp_tiles.cholesky(given, upper=upper, info=info)
        np.testing.assert_allclose(values_of(found), factor_of(a, upper), rtol=0, atol=TOLERANCES[dtype])
        assert not info.numpy().any()
        x = warp_tiles.solve(given, right, upper=upper, info=info)
        np.testing.assert_allclose(values_of(x), np.linalg.solve(a, b), rtol=0, atol=TOLERANCES[dtype])
        x = warp_tiles.solve(found, right, upper=upper, factored=True)
        np.testing.assert_allclose(values_of(x), np.linalg.solve(a, b), rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 4, 13, 16])
def test_many_small_matrices(n: int, dtype: str, upper: bool, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = 1041  # the last block has fewer
    monkeypatch.setattr(solve_choice, "LEAST_BATCHES", {16: batch})
    a, b = matrices(n, n, batch), np.random.default_rng(n).normal(size=(batch, n, 3))
    info = wp.full(batch, 7, dtype=int, device=gpu)
    for first, second in zip(LAYOUTS.values(), reversed(LAYOUTS.values())):
        given, right = first(read_triangle(a, upper), TYPES[dtype], gpu), second(b, TYPES[dtype], gpu)
        found = warp_tiles.cholesky(given, second(np.full(a.shape, np.nan), TYPES[dtype], gpu), upper=upper, info=info)
        np.testing.assert_allclose(values_of(found), factor_of(a, upper), rtol=0, atol=TOLERANCES[dtype])
        assert not info.numpy().any()
        x = warp_tiles.solve(given, right, upper=upper)
        np.testing.assert_allclose(values_of(x), np.linalg.solve(a, b), rtol=0, atol=TOLERANCES[dtype])
        x = warp_tiles.solve(found, right, right, upper=upper, factored=True)
        np.testing.assert_allclose(values_of(x), np.linalg.solve(a, b), rtol=0, atol=TOLERANCES[dtype])
        assert warp_tiles.cholesky(given, given, upper=upper, info=info) is given
        np.testing.assert_allclose(values_of(given), factor_of(a, upper), rtol=0, atol=TOLERANCES[dtype])
    orders = [(7 * matrix) % (n + 1) for matrix in range(batch)]
    for upper_of_bad in (False, True):
        bad = on(read_triangle(spoiled(a, orders), upper_of_bad), TYPES[dtype], gpu)
        warp_tiles.cholesky(bad, upper=upper_of_bad, info=info)
        assert info.numpy().tolist() == orders


@pytest.mark.parametrize(("n", "dtype", "upper"), CASES[1:-1])
def test_info_is_that_of_lapack(n: int, dtype: str, upper: bool, gpu: str) -> None:
    orders = [0, 1, n // 2, n, 2, 0]
    a = spoiled(matrices(1, n, len(orders)), orders)
    a[5, :2, :2] = 1.0  # the second minor is exactly zero
    expected = [*orders[:-1], 2]
    assert info_of(a) == expected
    given, info = on(a, TYPES[dtype], gpu), wp.full(len(orders), 7, dtype=int, device=gpu)
    warp_tiles.cholesky(given, upper=upper, info=info)
    assert info.numpy().tolist() == expected
    info.fill_(7)
    warp_tiles.solve(given, on(np.ones((*a.shape[:2], 3)), TYPES[dtype], gpu), upper=upper, info=info)
    assert info.numpy().tolist() == expected


@pytest.mark.parametrize("n", [24, 704])
def test_graphs_and_streams(n: int, gpu: str) -> None:
    a, b = matrices(1, n, 2), np.random.default_rng(1).normal(size=(2, n, 3))
    x, y = on(a, wp.float64, gpu), on(b, wp.float64, gpu)
    out, factor, info = wp.zeros_like(y), wp.zeros_like(x), wp.full(2, 7, dtype=int, device=gpu)

    def both() -> None:
        warp_tiles.solve(x, y, out, info=info)
        warp_tiles.cholesky(x, factor)

    both()  # loads the modules
    with wp.ScopedCapture(device=gpu) as capture:
        both()
    for scale in (1.0, 2.0):
        x.assign(scale * a)
        for one in (out, factor):
            one.zero_()
        wp.capture_launch(capture.graph)
        np.testing.assert_allclose(out.numpy(), np.linalg.solve(scale * a, b), rtol=0, atol=1e-12)
        np.testing.assert_allclose(factor.numpy(), factor_of(scale * a, False), rtol=0, atol=1e-12)
    streams = [wp.Stream(gpu) for _ in range(3)]
    found = []
    for stream in streams:
        stream.wait_stream(wp.get_stream(gpu))
        with wp.ScopedStream(stream, sync_enter=False):
            found.append(warp_tiles.solve(x, y))
    wp.synchronize_device(gpu)
    for one in found:
        np.testing.assert_allclose(one.numpy(), out.numpy(), rtol=0, atol=0)


@pytest.mark.parametrize("n", [12, 320])
def test_gradients(n: int, gpu: str) -> None:
    a, b = matrices(1, n, 2), np.random.default_rng(2).normal(size=(2, n, 3))
    seed = np.random.default_rng(3).normal(size=a.shape)
    x, y = (on(values, wp.float64, gpu, requires_grad=True) for values in (a, b))

    def backward(out: Any, tape: Any, gradient: Any) -> None:
        tape.zero()
        out.grad = on(gradient, wp.float64, gpu)
        tape.backward()

    with wp.Tape() as tape:
        out = warp_tiles.cholesky(x)
    backward(out, tape, seed)
    expected = cholesky_gradient(factor_of(a, False), seed)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=0, atol=1e-10)
    with wp.Tape() as tape:
        out = warp_tiles.solve(x, y)
    backward(out, tape, seed[..., :3])
    of_b = np.linalg.solve(a, seed[..., :3])
    np.testing.assert_allclose(y.grad.numpy(), of_b, rtol=0, atol=1e-11)
    expected = folded(-of_b @ np.linalg.solve(a, b).swapaxes(1, 2), False)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=0, atol=1e-10)


def test_without_the_hooks(gpu: str) -> None:
    a, b = matrices(1, 24, 3), np.random.default_rng(1).normal(size=(3, 24))
    a = spoiled(a, [0, 7, 24])
    warp_tiles.disable()
    try:
        info = wp.full(3, 7, dtype=int, device=gpu)
        out = warp_tiles.solve(on(a, wp.float64, gpu), on(b, wp.float64, gpu), info=info)
        np.testing.assert_allclose(out.numpy()[0], np.linalg.solve(a[0], b[0]), rtol=0, atol=1e-12)
        assert info.numpy().tolist() == [0, 7, 24]
    finally:
        warp_tiles.enable()
