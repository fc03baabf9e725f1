"""A replay calls the native launch directly, with the same numbers as Warp."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import warp as wp

from warp_tiles import UnsupportedWarpError, record
from warp_tiles._warp import launch as warp_launch
from warp_tiles._warp.internals import find

CPU = "cpu"
HAS_CPU_BLOCKS = hasattr(wp.config, "enable_cpu_blocks")


@wp.kernel
def scaled(x: wp.array(dtype=wp.float32), s: wp.float32, out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = s * x[i]


def arrays(count: int = 2) -> list[Any]:
    return [wp.full(3, 2.0, dtype=wp.float32, device=CPU, requires_grad=True) for _ in range(count)]


class FakeGpu:
    """A fake GPU that records native launches, and the launches that Warp would make on it."""

    is_cpu = False
    context = 0x5EED

    def __init__(self) -> None:
        self.stream = types.SimpleNamespace(cuda_stream=0xC0DE)
        self.calls: list[tuple[Any, ...]] = []
        self.failures = 0

    def native(self, *arguments: Any) -> int:
        self.calls.append(arguments)
        self.failures -= 1
        return int(self.failures >= 0)

    def launch(self, *, adjoint: bool) -> Any:
        x, out = arrays()
        gradients = [x.grad, None, out.grad] if adjoint else []
        launch = wp.launch(
            scaled, 3, inputs=[x, 4.0, out], adj_inputs=gradients, adjoint=adjoint, device=CPU, record_cmd=True
        )
        launch.device = self
        launch.params_addr = find("context._build_cuda_kernel_params")(launch.params)
        launch.hooks = copy.copy(launch.hooks)
        launch.hooks.forward, launch.hooks.backward = 0xF0, 0xB0
        launch.hooks.forward_smem_bytes, launch.hooks.backward_smem_bytes = 1024, 2048
        launch.max_blocks, launch.block_dim, launch.cluster_dim = 7, 64, 2
        return launch


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    fake = FakeGpu()
    monkeypatch.setattr(warp_launch.runtime().core, "wp_cuda_launch_kernel", fake.native)
    return fake


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("given", [False, True], ids=["current stream", "given stream"])
def test_a_replay_passes_the_same_arguments_as_warp(gpu: FakeGpu, adjoint: bool, given: bool) -> None:
    launch = gpu.launch(adjoint=adjoint)
    stream = types.SimpleNamespace(cuda_stream=0xABBA) if given else None
    warp_launch._CudaLaunch(launch, stream).run()
    launch.launch(stream)
    ours, theirs = gpu.calls
    assert ours == theirs
    assert ours[1] == (0xB0 if adjoint else 0xF0)
    assert ours[9] == (0xABBA if given else 0xC0DE)


def test_each_replay_takes_the_current_stream(gpu: FakeGpu) -> None:
    replay = warp_launch._CudaLaunch(gpu.launch(adjoint=False), None)
    replay.run()
    gpu.stream = types.SimpleNamespace(cuda_stream=0xBEEF)
    replay.run()
    assert [call[9] for call in gpu.calls] == [0xC0DE, 0xBEEF]


def test_a_failed_launch_raises_the_error_of_warp(gpu: FakeGpu) -> None:
    replay = warp_launch._CudaLaunch(gpu.launch(adjoint=False), None)
    gpu.failures = 2
    with pytest.raises(RuntimeError, match="Error launching kernel: scaled"):
        replay.run()


def test_a_captured_launch_goes_through_warp(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = gpu.launch(adjoint=False)
    replay = warp_launch._CudaLaunch(launch, None)
    seen: list[Any] = []
    monkeypatch.setattr(launch, "launch", seen.append)
    monkeypatch.setattr(warp_launch.runtime(), "captures", {1: object()})
    replay.run()
    assert seen == [gpu.stream]
    assert gpu.calls == []


def test_a_copy_has_arguments_of_its_own(gpu: FakeGpu) -> None:
    first = warp_launch._CudaLaunch(gpu.launch(adjoint=True), None)
    second = first.copy()
    (other,) = arrays(1)
    second.launch.device = wp.get_device(CPU)  # packs for real
    second.set(0, other, adjoint=False)
    second.set(0, other.grad, adjoint=True)
    first.run()
    second.run()
    first_call, second_call = (list(call[8]) for call in gpu.calls)
    assert [index for index, (one, two) in enumerate(zip(first_call, second_call)) if one != two] == [1, 4]


def test_other_kinds_of_launches_are_left_to_warp() -> None:
    class Deterministic(wp.Launch):
        pass

    x, out = arrays()
    pair = record(scaled, 3, [x, 4.0], [out], device=CPU)
    assert type(pair._packed._forward) is warp_launch._CpuLaunch
    launch = pair._packed._forward.launch
    launch.__class__ = Deterministic
    assert type(warp_launch._class_of(launch)(launch, None)) is warp_launch.PackedLaunch


@pytest.mark.skipif(not HAS_CPU_BLOCKS, reason="this Warp has no blocks of threads on the CPU")
def test_blocks_of_threads_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp.config, "enable_cpu_blocks", True)
    x, out = arrays()
    pair = record(scaled, 3, [x, 4.0], [out], device=CPU, block_dim=2)
    assert type(pair._packed._forward) is warp_launch.PackedLaunch
    pair.forward()
    np.testing.assert_array_equal(out.numpy(), np.full(3, 8.0))
    out.grad.fill_(1.0)
    pair.adjoint()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 4.0))


def test_a_graph_that_is_captured_on_the_cpu() -> None:
    x, out = arrays()
    pair = record(scaled, 3, [x, 4.0], [out], device=CPU)
    with wp.ScopedCapture(device=CPU) as capture:
        pair.forward()
    x.fill_(10.0)
    out.zero_()
    wp.capture_launch(capture.graph)
    np.testing.assert_array_equal(out.numpy(), np.full(3, 40.0))


@pytest.fixture
def unchecked() -> Iterator[None]:
    warp_launch.runtime.cache_clear()
    yield
    warp_launch.runtime.cache_clear()


@pytest.mark.parametrize("path", ["context.Launch", "context.pack_arg", "context.can_access", "context.runtime.tape"])
def test_a_warp_without_a_required_name(unchecked: None, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    owner, name = path.rsplit(".", 1)
    monkeypatch.delattr(find(owner), name)
    with pytest.raises(UnsupportedWarpError, match=f"has no warp._src.{path}"):
        record(scaled, 3, [*arrays(1), 4.0, *arrays(1)], device=CPU)


def test_a_warp_with_another_native_launch(unchecked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find("context.runtime").core.wp_cuda_launch_kernel, "argtypes", [])
    with pytest.raises(UnsupportedWarpError, match="wp_cuda_launch_kernel with 11 parameters"):
        record(scaled, 3, [*arrays(1), 4.0, *arrays(1)], device=CPU)
