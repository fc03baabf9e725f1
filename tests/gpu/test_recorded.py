"""Recorded launches on a GPU: streams, graphs, tiles, and gradients bit for bit."""

from __future__ import annotations

import re
import subprocess
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.launch.recorded_kernels import blend
from warp_tiles import RecordedLaunch, RecordingError, record

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SIZE, TILE, THREADS = 1000, 32, 64


@wp.struct
class Scale:
    factor: wp.float32
    weights: wp.array(dtype=wp.float32)


@wp.kernel
def weighted(x: wp.array(dtype=wp.float32), scale: Scale, out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = x[i] * scale.weights[i] * scale.factor


@wp.kernel
def product(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    a = wp.tile_load(A, shape=(TILE, TILE))
    b = wp.tile_load(B, shape=(TILE, TILE))
    wp.tile_store(C, wp.tile_matmul(a, b))


def random(gpu: str, seed: int, shape: Any = SIZE) -> Any:
    values = np.random.default_rng(seed).normal(size=shape)
    return wp.array(values, dtype=wp.float32, device=gpu, requires_grad=True)


def arguments(gpu: str) -> list[Any]:
    return [*(random(gpu, seed) for seed in (1, 2, 3)), 2.0, 0.5, random(gpu, 4)]


def own(values: list[Any]) -> list[Any]:
    return [value.grad if isinstance(value, wp.array) else None for value in values]


def arrays(values: list[Any]) -> list[np.ndarray]:
    found = [value for value in values if isinstance(value, wp.array)]
    return [part.numpy() for value in found for part in (value, value.grad)]


def reference(gpu: str) -> list[np.ndarray]:
    """Arrays and gradients after a forward and an adjoint launch of Warp."""
    values = arguments(gpu)
    values[5].grad.fill_(1.0)
    wp.launch(blend, SIZE, inputs=values, device=gpu)
    wp.launch(blend, SIZE, inputs=values, adj_inputs=own(values), adjoint=True, device=gpu)
    return arrays(values)


def assert_equal(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def both(pair: RecordedLaunch) -> None:
    pair.forward()
    pair.adjoint()


def test_both_directions_equal_those_of_warp_bit_for_bit(gpu: str) -> None:
    values = arguments(gpu)
    values[5].grad.fill_(1.0)
    both(record(blend, SIZE, values, device=gpu))
    assert_equal(arrays(values), reference(gpu))


@pytest.mark.parametrize("block_dim", [32, 64, 512])
def test_a_block_dim_is_kept(gpu: str, block_dim: int) -> None:
    values = arguments(gpu)
    values[5].grad.fill_(1.0)
    pair = record(blend, SIZE, values, device=gpu, block_dim=block_dim)
    assert pair._packed._forward.launch.block_dim == block_dim
    both(pair)
    assert_equal(arrays(values), reference(gpu))


def test_a_given_stream_is_kept(gpu: str) -> None:
    values = arguments(gpu)
    values[5].grad.fill_(1.0)
    wp.synchronize()
    stream = wp.Stream(gpu)
    pair = record(blend, SIZE, values, stream=stream)
    both(pair)
    wp.synchronize_stream(stream)
    assert_equal(arrays(values), reference(gpu))
    with pytest.raises(RecordingError, match="but the stream belongs to"):
        record(blend, SIZE, values, stream=stream, device="cpu")


def test_without_a_stream_the_current_one_is_taken(gpu: str) -> None:
    values = arguments(gpu)
    values[5].grad.fill_(1.0)
    pair = record(blend, SIZE, values, device=gpu)
    with wp.ScopedStream(wp.Stream(gpu)) as stream:
        both(pair)
    wp.synchronize_stream(stream)
    assert_equal(arrays(values), reference(gpu))


def test_a_graph_of_replays(gpu: str) -> None:
    values = arguments(gpu)
    pair = record(blend, SIZE, values, device=gpu)
    both(pair)
    with wp.ScopedCapture(device=gpu) as capture:
        both(pair)
    for value in values:
        if isinstance(value, wp.array):
            value.grad.zero_()
    values[5].grad.fill_(1.0)
    values[5].zero_()
    wp.capture_launch(capture.graph)
    assert_equal(arrays(values), reference(gpu))


def test_a_recording_made_inside_a_capture(gpu: str) -> None:
    values = arguments(gpu)
    wp.load_module(device=gpu)
    with wp.ScopedCapture(device=gpu) as capture:
        pair = record(blend, SIZE, values, device=gpu)
        both(pair)
    values[5].grad.fill_(1.0)
    wp.capture_launch(capture.graph)
    assert_equal(arrays(values), reference(gpu))


def test_a_struct(gpu: str) -> None:
    scale = Scale()
    scale.factor = 3.0
    scale.weights = random(gpu, 5)
    x, out = random(gpu, 6), random(gpu, 7)
    pair = record(weighted, SIZE, [x, scale], [out], device=gpu)
    scale.factor = 100.0
    out.grad.fill_(1.0)
    both(pair)
    np.testing.assert_allclose(out.numpy(), 3 * x.numpy() * scale.weights.numpy(), rtol=1e-6)
    np.testing.assert_allclose(scale.weights.grad.numpy(), 3 * x.numpy(), rtol=1e-6)
    pair.set("scale", scale)
    pair.forward()
    np.testing.assert_allclose(out.numpy(), 100 * x.numpy() * scale.weights.numpy(), rtol=1e-6)


def test_arguments_are_changed(gpu: str) -> None:
    values = arguments(gpu)
    others = [random(gpu, 50), *values[1:3], 7.0, *values[4:]]
    pair = record(blend, SIZE, values, device=gpu)
    both(pair)
    pair.set("a", others[0])
    pair.set("s", 7.0)
    pair.forward()
    want = random(gpu, 60)
    wp.launch(blend, SIZE, inputs=[*others[:5], want], device=gpu)
    np.testing.assert_array_equal(others[5].numpy(), want.numpy())
    for gradient in own(others):
        if gradient is not None:
            gradient.fill_(0.0)
    others[5].grad.fill_(1.0)
    pair.adjoint()
    np.testing.assert_array_equal(others[0].grad.numpy(), np.float32(7.0) * others[1].numpy())
    with pytest.raises(RecordingError, match=r"shape \(3,\)"):
        pair.set("a", random(gpu, 1, 3))
    with pytest.raises(RecordingError, match="dtype"):
        pair.set("a", wp.zeros(SIZE, dtype=wp.float64, device=gpu))


@pytest.mark.parametrize("change", ["mark_modified", "unload"])
def test_a_module_that_is_loaded_again(gpu: str, change: str) -> None:
    values = arguments(gpu)
    values[5].grad.fill_(1.0)
    pair = record(blend, SIZE, values, device=gpu)
    wp.synchronize()
    getattr(blend.module, change)()
    both(pair)
    assert_equal(arrays(values), reference(gpu))


@pytest.mark.parametrize("provider", ["mma", "scalar"])
def test_tiles_have_the_gradients_of_the_tape_bit_for_bit(gpu: str, provider: str) -> None:
    found = []
    with warp_tiles.enabled(), warp_tiles.override(provider=provider):
        for recorded in (False, True):
            values = [random(gpu, seed, (TILE, TILE)) for seed in (1, 2, 3)]
            seed = wp.clone(random(gpu, 4, (TILE, TILE)))
            pair = record(product, 1, values, block_dim=THREADS, tiled=True, device=gpu)
            with wp.Tape() as tape:
                if recorded:
                    pair.forward()
                else:
                    wp.launch_tiled(product, dim=[1], inputs=values, block_dim=THREADS, device=gpu)
            tape.backward(grads={values[2]: seed})
            found.append([values[2].numpy(), *(value.grad.numpy() for value in values[:2])])
    assert_equal(found[1], found[0])
    np.testing.assert_allclose(
        found[1][0], random(gpu, 1, (TILE, TILE)).numpy() @ random(gpu, 2, (TILE, TILE)).numpy(), rtol=1e-2, atol=1e-2
    )
    assert np.any(found[1][1])


def fastest_us(*calls: Callable[[], Any]) -> list[float]:
    """The least time of each call on the host. The calls alternate, so that a slow phase affects all of them."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(60):
        for call, found in zip(calls, times):
            wp.synchronize()
            found.append(timeit.timeit(call, number=100) / 100 * 1e6)
    wp.synchronize()
    return [min(found) for found in times]


def test_a_replay_is_fast(gpu: str) -> None:
    values = arguments(gpu)
    keywords: dict[str, Any] = {"dim": 1, "inputs": values, "device": gpu}
    pair = record(blend, **keywords)
    forward = wp.launch(blend, **keywords, record_cmd=True)
    adjoint = wp.launch(blend, **keywords, adj_inputs=own(values), adjoint=True, record_cmd=True)
    for replay, theirs in ((pair.forward, forward.launch), (pair.adjoint, adjoint.launch)):
        replay_us, theirs_us, launch_us = fastest_us(replay, theirs, lambda: wp.launch(blend, **keywords))
        assert replay_us <= theirs_us + 0.5
        assert replay_us <= 0.35 * launch_us


def test_the_example(gpu: str) -> None:
    done = subprocess.run(
        [sys.executable, "examples/recorded_training.py", "--device", gpu],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bit for bit" in done.stdout
    times = dict(re.findall(r"^  (.+?) +([\d.]+) us$", done.stdout, re.MULTILINE))
    assert float(times["CUDA graph"]) < float(times["recorded pairs"]) < float(times["wp.launch + Tape"])
