"""Tuned kernels on a GPU: the clock, too much shared memory, captures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.tuning.fake_stores import MemoryStore
from warp_tiles import TuningError
from warp_tiles.tuning.factory import TunedLaunch
from warp_tiles.tuning.launches import KernelLaunches, LaunchOptions, Workspace
from warp_tiles.tuning.measure import EventClock, statistics

pytestmark = pytest.mark.gpu


def spinning(iterations: int) -> Any:
    """A kernel whose time is proportional to its iterations."""

    @wp.kernel(module="unique", enable_backward=False)
    def kernel(x: wp.array(dtype=float)):
        i = wp.tid()
        value = x[i]
        for _ in range(iterations):
            value = wp.sin(value)
        x[i] = value

    return kernel


def measured_us(gpu: str, iterations: int, **options: Any) -> float:
    device = wp.get_device(gpu)
    x = wp.array(np.ones(1024, np.float32), device=device)
    launch = TunedLaunch({"iterations": iterations}, spinning(iterations), 128)
    launches = KernelLaunches(
        spinning, ("x",), lambda config: launch, [x], frozenset({"x"}), device, LaunchOptions(lambda *_: 1024), ()
    )
    candidate = Workspace(launches, device).built(None, launch.config)
    samples = EventClock(device, **options).sample_us(candidate, 5)
    np.testing.assert_array_equal(x.numpy(), np.ones(1024, np.float32))
    return statistics(samples).median_us


@pytest.mark.parametrize("flush_l2", [False, True])
def test_the_clock_sees_the_kernel_and_not_the_host(gpu: str, flush_l2: bool) -> None:
    short, long, longer = (measured_us(gpu, count, flush_l2=flush_l2) for count in (1, 2_000, 20_000))
    assert 0 < 10 * short < longer
    assert 5 < longer / long < 12


def copies(tile: int) -> Any:
    @wp.kernel(module="unique", enable_backward=False)
    def kernel(a: wp.array2d(dtype=float), c: wp.array2d(dtype=float)):
        i, j = wp.tid()
        x = wp.tile_load(a, shape=(tile, tile), offset=(i * tile, j * tile), storage="shared")
        wp.tile_store(c, x, offset=(i * tile, j * tile))

    return kernel


def tuned(store: MemoryStore, *tiles: int, **options: Any) -> Any:
    """The copy of an array by tiles of these sizes."""
    return warp_tiles.autotune(
        [{"tile": tile} for tile in tiles],
        key=("a",),
        dim=lambda config, args: [-(-extent // config["tile"]) for extent in args.a.shape],
        tiled=True,
        block_dim=128,
        reference="first",
        store=lambda now: store,
        **options,
    )(copies)


def test_too_much_shared_memory_is_a_recorded_failure(gpu: str) -> None:
    copy = tuned(MemoryStore(), 16, 64, 256)
    a = wp.array(np.random.default_rng(0).uniform(-1, 1, (512, 512)), dtype=float, device=gpu)
    c = wp.zeros_like(a)
    copy.launch(inputs=[a], outputs=[c], device=gpu)
    np.testing.assert_array_equal(c.numpy(), a.numpy())
    by_tile = {timing.config["tile"]: timing for timing in copy.record({"a": a, "c": c}, gpu).timings}
    assert by_tile[256].status == "failed"  # 256 KiB
    assert "shared memory" in by_tile[256].reason
    assert by_tile[64].shared_bytes >= 64 * 64 * 4
    assert {by_tile[16].status, by_tile[64].status} <= {"ok", "dropped"}


def test_a_stream_of_the_user(gpu: str) -> None:
    copy = tuned(MemoryStore(), 16, 64, 256)
    a, c = wp.full((128, 128), 2.0, dtype=float, device=gpu), wp.zeros((128, 128), dtype=float, device=gpu)
    stream = wp.Stream(gpu)
    wp.synchronize_device(gpu)
    copy.launch(inputs=[a], outputs=[c], stream=stream)
    wp.synchronize_stream(stream)
    np.testing.assert_array_equal(c.numpy(), a.numpy())


def test_a_capture_needs_a_record(gpu: str) -> None:
    copy = tuned(MemoryStore(), 16, 64, 256)
    a, c = wp.full((128, 128), 2.0, dtype=float, device=gpu), wp.zeros((128, 128), dtype=float, device=gpu)
    with wp.ScopedDevice(gpu), pytest.raises(TuningError, match="while a graph is captured"), wp.ScopedCapture():
        copy.launch(inputs=[a], outputs=[c], device=gpu)
    copy.launch(inputs=[a], outputs=[c], device=gpu)
    c.zero_()
    with wp.ScopedDevice(gpu), wp.ScopedCapture() as capture:
        copy.launch(inputs=[a], outputs=[c], device=gpu)
    wp.capture_launch(capture.graph)
    np.testing.assert_array_equal(c.numpy(), a.numpy())
