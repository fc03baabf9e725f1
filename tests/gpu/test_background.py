"""A module that runs on the fast path on a GPU while cuBLASDx is built, and then on the finished build."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import gemm, load
from tests.integration.test_policy import providers

pytestmark = pytest.mark.gpu

SIZE, SECONDS = 32, 60.0


@pytest.fixture
def background_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path / "kernels"))  # a full one needs no build
    with (
        warp_tiles.override(cache_dir=tmp_path / "lto", progress="off", background=True, provider="cublasdx"),
        warp_tiles.enabled(),
    ):
        yield


def last_providers() -> list[str]:
    return providers([module for module in warp_tiles.report()["modules"] if module["builds"]][-1])


def operands(gpu: str) -> list[Any]:
    random = np.random.default_rng(1)
    values = [random.uniform(-1, 1, (SIZE, SIZE)) for _ in range(3)]
    return [wp.array(value, dtype=wp.float32, device=gpu, requires_grad=True) for value in values]


def assert_product(a: Any, b: Any, c: Any) -> None:
    x, y = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
    assert np.all(np.abs(c.numpy() - x @ y) <= 2e-6 * (np.abs(x) @ np.abs(y)))


def test_launches_continue_during_the_build_and_swap_to_it(gpu: str, background_build: None) -> None:
    module = load(gemm(m=SIZE, n=SIZE, k=SIZE))
    a, b, c = operands(gpu)
    wp.launch_tiled(module.gemm, dim=1, inputs=[a, b, c], block_dim=64, device=gpu)
    assert set(last_providers()) == {"mma"}
    assert_product(a, b, c)
    started, launches = time.monotonic(), 0
    while set(last_providers()) != {"cublasdx"}:
        assert time.monotonic() < started + SECONDS, "the build did not end in time"
        c.fill_(float("nan"))
        wp.launch_tiled(module.gemm, dim=1, inputs=[a, b, c], block_dim=64, device=gpu)
        assert_product(a, b, c)
        launches += 1
    assert launches > 1


def test_recordings_and_graphs_of_the_fast_path_stay_correct(gpu: str, background_build: None) -> None:
    module = load(gemm(m=SIZE, n=SIZE, k=SIZE))
    a, b, c = operands(gpu)
    pair = warp_tiles.record(module.gemm, 1, [a, b], [c], block_dim=64, device=gpu, tiled=True)
    pair.forward()
    with wp.ScopedCapture(device=gpu) as capture:
        pair.forward()
    gradient = np.random.default_rng(2).uniform(-1, 1, (SIZE, SIZE)).astype(np.float32)
    started = time.monotonic()
    while set(last_providers()) != {"cublasdx"}:
        assert time.monotonic() < started + SECONDS, "the build did not end in time"
        wp.launch_tiled(module.gemm, dim=1, inputs=[a, b, c], block_dim=64, device=gpu)
    for run in (pair.forward, lambda: wp.capture_launch(capture.graph)):
        c.fill_(float("nan"))
        run()
        assert_product(a, b, c)
    for array in (a, b):
        array.grad.zero_()
    c.grad.assign(gradient)
    pair.adjoint()
    x, y = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
    np.testing.assert_allclose(a.grad.numpy(), gradient @ y.T, rtol=0, atol=1e-4)
    np.testing.assert_allclose(b.grad.numpy(), x.T @ gradient, rtol=0, atol=1e-4)
