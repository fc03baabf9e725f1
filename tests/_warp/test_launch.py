"""Launches that are packed once and repeated with other memory."""

import copy
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import warp as wp

from warp_tiles import UnsupportedWarpError
from warp_tiles._warp import launch as warp_launch
from warp_tiles._warp.internals import find
from warp_tiles._warp.launch import PackedLaunch, pack_launch

HAS_CPU_BLOCKS = hasattr(wp.config, "enable_cpu_blocks")


@wp.kernel(enable_backward=False, module="unique")
def scaled(
    start: int, factor: wp.float32, x: wp.array(dtype=wp.float32, ndim=2), out: wp.array(dtype=wp.float32, ndim=2)
):
    i, j = wp.tid()
    if x:
        out[i, j] = x[i, j] * factor + wp.float32(start)
    else:
        out[i, j] = wp.float32(start)


def prepared(strides: tuple[int, int] = (16, 4), x: bool = True) -> PackedLaunch:
    def view(strides: tuple[int, int]) -> Any:
        return wp.array(ptr=None, dtype=wp.float32, shape=(3, 4), strides=strides, device="cpu")

    values = [7, 1.0, view(strides) if x else None, view((16, 4))]
    return pack_launch(scaled, values, dim=(3, 4), block_dim=64, device=wp.get_device("cpu"))


def array(values: Any) -> Any:
    return wp.array(values, dtype=wp.float32, device="cpu")


@pytest.mark.slow
def test_each_run_has_its_own_memory_and_factor() -> None:
    launch = prepared()
    for number in range(3):
        x, out = array(np.full((3, 4), number)), array(np.zeros((3, 4)))
        launch.run_at((x.ptr, out.ptr), 2.0)
        assert np.all(out.numpy() == 2 * number + 7)


def test_strides_belong_to_the_launch() -> None:
    values, out = np.arange(12.0).reshape(4, 3), array(np.zeros((3, 4)))
    x = array(values)
    prepared(strides=(4, 12)).run_at((x.ptr, out.ptr), 1.0)
    assert np.array_equal(out.numpy(), values.T + 7)


def test_an_array_without_memory() -> None:
    out = array(np.zeros((3, 4)))
    prepared(x=False).run_at((None, out.ptr), 1.0)
    assert np.all(out.numpy() == 7)


def test_a_modified_module_is_noticed() -> None:
    launch = prepared()
    assert launch.is_current()
    scaled.module.mark_modified()
    assert not launch.is_current()
    assert prepared().is_current()


def test_no_tape_records_it() -> None:
    launch, x, out = prepared(), array(np.ones((3, 4))), array(np.zeros((3, 4)))
    with wp.Tape() as tape:
        launch.run_at((x.ptr, out.ptr), 1.0)
    assert tape.launches == []


def test_threads_share_a_launch() -> None:
    launch, wrong = prepared(), []

    def work(number: int) -> None:
        x, out = array(np.full((3, 4), number)), array(np.zeros((3, 4)))
        for _ in range(200):
            launch.run_at((x.ptr, out.ptr), float(number))
            if not np.all(out.numpy() == number * number + 7):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- native launches: directly, with the same numbers as Warp


@wp.kernel
def tripled(x: wp.array(dtype=wp.float32), s: wp.float32, out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = s * x[i]


def arguments() -> list[Any]:
    x, out = (wp.full(3, 2.0, dtype=wp.float32, device="cpu", requires_grad=True) for _ in range(2))
    return [x, 3.0, out]


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
        x, s, out = arguments()
        gradients = [x.grad, None, out.grad] if adjoint else []
        launch = wp.launch(
            tripled, 3, inputs=[x, s, out], adj_inputs=gradients, adjoint=adjoint, device="cpu", record_cmd=True
        )
        launch.device = self
        launch.params_addr = find("context._build_cuda_kernel_params")(launch.params)
        launch.hooks = copy.copy(launch.hooks)
        launch.hooks.forward, launch.hooks.backward = 0xF0, 0xB0
        launch.hooks.forward_smem_bytes, launch.hooks.backward_smem_bytes = 1024, 2048
        launch.max_blocks, launch.block_dim, launch.cluster_dim = 7, 64, 2
        return launch


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(warp_launch.runtime().core, "wp_cuda_launch_kernel", fake.native)
    return fake


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("given", [False, True], ids=["current stream", "given stream"])
def test_a_run_passes_the_same_arguments_as_warp(fake: FakeGpu, adjoint: bool, given: bool) -> None:
    launch = fake.launch(adjoint=adjoint)
    stream = types.SimpleNamespace(cuda_stream=0xABBA) if given else None
    warp_launch._CudaLaunch(launch, stream).run()
    launch.launch(stream)
    ours, theirs = fake.calls
    assert ours == theirs
    assert ours[1] == (0xB0 if adjoint else 0xF0)
    assert ours[9] == (0xABBA if given else 0xC0DE)


def test_each_run_takes_the_current_stream(fake: FakeGpu) -> None:
    launch = warp_launch._CudaLaunch(fake.launch(adjoint=False), None)
    launch.run()
    fake.stream = types.SimpleNamespace(cuda_stream=0xBEEF)
    launch.run()
    assert [call[9] for call in fake.calls] == [0xC0DE, 0xBEEF]


def test_a_failed_launch_raises_the_error_of_warp(fake: FakeGpu) -> None:
    launch = warp_launch._CudaLaunch(fake.launch(adjoint=False), None)
    fake.failures = 2
    with pytest.raises(RuntimeError, match="Error launching kernel: tripled"):
        launch.run()


def test_a_captured_launch_goes_through_warp(fake: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, seen = fake.launch(adjoint=False), []
    packed = warp_launch._CudaLaunch(launch, None)
    monkeypatch.setattr(launch, "launch", seen.append)
    monkeypatch.setattr(warp_launch.runtime(), "captures", {1: object()})
    packed.run()
    assert (seen, fake.calls) == ([fake.stream], [])


def test_an_argument_that_is_set_is_passed_with_its_gradient(fake: FakeGpu) -> None:
    launch, (new, *_) = fake.launch(adjoint=True), arguments()
    packed = warp_launch._CudaLaunch(launch, None)
    before = list(launch.params_addr)
    launch.device = wp.get_device("cpu")  # packs for real
    packed.set(0, new)
    assert [index for index, (old, now) in enumerate(zip(before, launch.params_addr)) if old != now] == [1, 4]
    assert (launch.params[1].data, launch.params[4].data) == (new.ptr, new.grad.ptr)


def test_other_kinds_of_launches_are_left_to_warp() -> None:
    class Deterministic(wp.Launch):
        pass

    launch = wp.launch(tripled, 3, inputs=arguments(), device="cpu", record_cmd=True)
    assert warp_launch._class_of(launch) is warp_launch._CpuLaunch
    launch.__class__ = Deterministic
    assert warp_launch._class_of(launch) is warp_launch.PackedLaunch


@pytest.mark.skipif(not HAS_CPU_BLOCKS, reason="this Warp has no blocks of threads on the CPU")
def test_blocks_of_threads_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp.config, "enable_cpu_blocks", True)
    values = arguments()
    launch = pack_launch(tripled, values, dim=(3,), block_dim=2, device=wp.get_device("cpu"))
    assert type(launch) is PackedLaunch
    launch.run()
    assert values[2].numpy().tolist() == [6.0] * 3


@pytest.fixture
def unchecked() -> Iterator[None]:
    warp_launch.runtime.cache_clear()
    yield
    warp_launch.runtime.cache_clear()


@pytest.mark.parametrize("path", ["context.Launch", "context.pack_arg", "context.runtime.tape"])
def test_a_warp_without_a_required_name_or_with_another_native_launch(
    unchecked: None, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    owner, name = path.rsplit(".", 1)
    monkeypatch.delattr(find(owner), name)
    with pytest.raises(UnsupportedWarpError, match=f"has no warp._src.{path}"):
        warp_launch.runtime()
    monkeypatch.undo()
    monkeypatch.setattr(find("context.runtime").core.wp_cuda_launch_kernel, "argtypes", [])
    with pytest.raises(UnsupportedWarpError, match="wp_cuda_launch_kernel with 11 parameters"):
        warp_launch.runtime()
