"""Scripts whose launches are noted: what Warp's functions do meanwhile, and that everything is restored."""

import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.products import load_kernels
from warp_tiles._warp.intercept import intercepted
from warp_tiles._warp.internals import find

KERNELS = """
import warp as wp

@wp.kernel
def add(x: wp.array(dtype=float), step: float):
    i = wp.tid()
    x[i] = x[i] + step
"""


class Noted(list[tuple[Any, int]]):
    """The launches so far: module and threads per block."""

    substituted: dict[str, str]


@pytest.fixture
def noted() -> Iterator[Noted]:
    found = Noted()
    with intercepted(lambda launch: found.append((launch.kernel.module, launch.block_dim))) as substituted:
        found.substituted = substituted
        yield found


@pytest.fixture
def add() -> Any:
    return load_kernels(KERNELS).add


def test_is_planning_only_inside_and_in_every_thread() -> None:
    seen: list[bool] = []
    assert not warp_tiles.is_planning()
    with intercepted(lambda launch: None):
        thread = threading.Thread(target=lambda: seen.append(warp_tiles.is_planning()))
        thread.start()
        thread.join()
        with intercepted(lambda launch: None):
            pass
        seen.append(warp_tiles.is_planning())
    assert seen == [True, True]
    assert not warp_tiles.is_planning()


def test_stand_ins_keep_names_and_signatures(noted: Noted) -> None:
    assert wp.capture_while.__name__ == "capture_while"
    assert list(inspect.signature(wp.capture_while).parameters)[:2] == ["condition", "while_body"]
    assert "record_cmd" in inspect.signature(find("context").launch).parameters


def test_everything_is_restored_after_an_error() -> None:
    context = find("context")
    owners = (wp, context, wp.Device, context.runtime)
    before = [dict(vars(owner)) for owner in owners]
    with pytest.raises(ValueError, match="Invalid device"), intercepted(lambda launch: None):
        wp.get_device("gpu")
    assert [dict(vars(owner)) for owner in owners] == before
    assert not warp_tiles.is_planning()


def test_launches_are_noted_and_nothing_is_executed_or_built(noted: Noted, add: Any) -> None:
    x = wp.zeros(4, dtype=float, device="cpu")
    wp.launch(add, dim=4, inputs=[x, 1.0], device="cpu", block_dim=32)
    find("context").launch(add, 4, [x, 1.0], device="cpu")
    command = wp.launch(add, dim=4, inputs=[x, 1.0], device="cpu", record_cmd=True)
    command.set_params([x, 2.0])
    command.launch()
    default = int(add.module.options["block_dim"])
    assert noted == [(add.module, 32), (add.module, default), (add.module, default)]
    assert x.numpy().tolist() == [0.0] * 4
    wp.load_module(add.module, device="cpu")
    wp.force_load(device="cpu", modules=[add.module])
    assert wp.compile_aot_module(add.module, arch=90) == []
    assert not add.module.execs


def test_recorded_launches_are_noted_once(noted: Noted, add: Any) -> None:
    x = wp.zeros(4, dtype=float, device="cpu", requires_grad=True)
    recorded = warp_tiles.record(add, 4, [x, 1.0], device="cpu")
    count = len(noted)
    with wp.Tape() as tape:
        for _ in range(3):
            recorded.forward()
            recorded.adjoint()
    assert (len(noted), tape.launches) == (count, [])
    assert count == 2
    assert x.numpy().tolist() == [0.0] * 4


# ---- graph captures


def test_a_loop_of_a_capture_runs_once(noted: Noted, add: Any) -> None:
    condition = wp.ones(1, dtype=int, device="cpu")
    x = wp.zeros(4, dtype=float, device="cpu")

    def body(step: float) -> None:
        wp.launch(add, dim=4, inputs=[x, step], device="cpu", block_dim=64)

    wp.capture_while(condition, while_body=body, step=1.0)
    assert noted == [(add.module, 64)]
    condition.zero_()
    wp.capture_while(condition, body, step=1.0)
    assert len(noted) == 2, "the condition does not matter"


def test_both_branches_run(noted: Noted) -> None:
    ran: list[str] = []
    condition = wp.zeros(1, dtype=int, device="cpu")
    wp.capture_if(
        condition,
        on_true=lambda name: ran.append(f"true {name}"),
        on_false=lambda name: ran.append(f"false {name}"),
        name="x",
    )
    wp.capture_if(condition, lambda: ran.append("alone"))
    assert ran == ["true x", "false x", "alone"]


def test_captures_may_be_nested_and_launched_and_an_error_ends_them(noted: Noted, add: Any) -> None:
    device = wp.get_device("cpu")
    x = wp.zeros(4, dtype=float, device=device)
    assert not device.is_capturing
    with wp.ScopedCapture(device=device, force_module_load=True) as capture:
        assert device.is_capturing
        wp.capture_begin(device)
        wp.launch(add, dim=4, inputs=[x, 1.0], device=device)
        inner = wp.capture_end(device)
        assert device.is_capturing
        wp.capture_while(wp.ones(1, dtype=int, device=device), inner)
        wp.capture_if(wp.ones(1, dtype=int, device=device), on_true=inner)
    assert not device.is_capturing
    assert isinstance(capture.graph, wp.Graph)
    for _ in range(3):
        wp.capture_launch(capture.graph)
    assert len(noted) == 1
    assert not add.module.execs
    with pytest.raises(KeyError), wp.ScopedCapture(device="cpu"):
        raise KeyError
    assert not device.is_capturing


# ---- devices


def test_a_missing_gpu_has_a_substitute(noted: Noted) -> None:
    expected = wp.get_cuda_devices()[0] if wp.is_cuda_available() else wp.get_device("cpu")
    assert wp.get_device("cuda:98") == expected
    assert wp.zeros(1, dtype=float, device="cuda:99").device == expected
    assert wp.get_cuda_device(97) == expected
    with wp.ScopedDevice("cuda:98") as device:
        assert device == wp.get_device() == expected
    assert noted.substituted == {f"cuda:{number}": str(expected) for number in (98, 99, 97)}


@pytest.mark.skipif(wp.is_cuda_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_cpu_stands_for_the_current_one(noted: Noted) -> None:
    cpu = wp.get_device("cpu")
    assert wp.get_device("cuda") == wp.get_cuda_device() == wp.zeros(1, dtype=float, device="cuda").device == cpu
    assert cpu != "cuda:0"
    assert not wp.is_cuda_available()
    assert wp.get_cuda_devices() == []
    assert wp.get_preferred_device() == cpu
    assert noted.substituted == {"cuda": "cpu"}


@pytest.mark.parametrize("name", ["cuda:x", "cuda:1.5", "gpu"])
def test_other_names_are_refused(noted: Noted, name: str) -> None:
    with pytest.raises(ValueError, match="Invalid device identifier"):
        wp.get_device(name)
    assert noted.substituted == {}


def test_afterwards_a_missing_gpu_is_an_error() -> None:
    with intercepted(lambda launch: None):
        wp.get_device("cuda:99")
    with pytest.raises(ValueError, match="Invalid device identifier"):
        wp.get_device("cuda:99")
