"""The memory that products with split-K keep for a stream, on a fake GPU."""

from __future__ import annotations

import itertools
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import warp as wp

from warp_tiles.array_products import workspace as module
from warp_tiles.array_products.matmul_problem import KEPT_BYTES
from warp_tiles.array_products.workspace import workspace
from warp_tiles.errors import MatmulError


@dataclass(frozen=True)
class Memory:
    ptr: int
    capacity: int


def stream(number: int, waited: Any = lambda other: None) -> Any:
    null_stream = SimpleNamespace(wait_stream=waited)
    return SimpleNamespace(cuda_stream=number, device=SimpleNamespace(null_stream=null_stream))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    addresses = itertools.count(1000)
    monkeypatch.setattr(module, "_kept", {})
    monkeypatch.setattr(wp, "empty", lambda size, **named: Memory(next(addresses), size))
    monkeypatch.setattr(wp, "zeros", lambda count, **named: Memory(next(addresses), 4 * count))
    return SimpleNamespace(alias="cuda:0", is_cuda=True, stream=stream(1), captures=False, is_capturing=False)


def test_memory_is_kept_and_grows(device: Any) -> None:
    with workspace(1000, 4, device) as first:
        pass
    with workspace(900, 4, device) as second:
        pass
    assert second == first
    with workspace(5000, 4, device) as larger:
        pass
    assert larger.start != first.start
    assert larger.arrived == first.arrived
    (kept,) = module._kept.values()
    assert kept.array.capacity >= 5000


def test_the_workspaces_of_a_device_are_bounded(device: Any) -> None:
    for number in range(8):
        device.stream = stream(number)
        for size in (1000, KEPT_BYTES // 4):
            with workspace(size, 4, device):
                pass
        device.stream = stream(0)
        with workspace(1000, 4, device) as first:
            pass
    assert sum(kept.array.capacity for kept in module._kept.values()) == KEPT_BYTES
    assert [stream for _, stream in module._kept] == [0, 5, 6, 7], "those that were used last"
    assert module._kept["cuda:0", 0].memory == first
    other = SimpleNamespace(**{**vars(device), "alias": "cuda:1"})
    with workspace(KEPT_BYTES, 4, other):
        assert len(module._kept) == 5, "each device has its own"
    with workspace(KEPT_BYTES, 4, device):
        assert [alias for alias, _ in module._kept] == ["cuda:0", "cuda:1"]


def test_a_dropped_workspace_lives_as_long_as_it_is_used(device: Any) -> None:
    with workspace(KEPT_BYTES, 4, device):
        array = weakref.ref(module._kept["cuda:0", 1].array)
        device.stream = stream(2)
        with workspace(KEPT_BYTES, 4, device):
            assert ("cuda:0", 1) not in module._kept
            assert array() is not None
    assert array() is None


class Driver:
    """The calls of a stream's memory, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        addresses = itertools.count(4096, 4096)

        def call(name: str, *arguments: Any) -> str:
            if name == "cuMemAllocAsync":  # the first argument is where the address goes
                arguments[0]._obj.value = next(addresses)
                arguments = arguments[1:]
            self.calls.append((name, *(argument.value for argument in arguments)))
            return "CUDA_ERROR_OUT_OF_MEMORY" if name == failing else ""

        monkeypatch.setattr(module.driver, "call", call)
        monkeypatch.setattr(wp, "ScopedDevice", nullcontext)


def test_a_graph_of_another_library_frees_its_memory_on_its_stream(device: Any, monkeypatch: Any) -> None:
    driver = Driver(monkeypatch)
    device.is_capturing = True
    with workspace(1001, 4, device) as memory:
        assert driver.calls == [("cuMemAllocAsync", 1020, 1), ("cuMemsetD32Async", 4096 + 1004, 0, 4, 1)]
    assert (memory.start, memory.arrived) == (4096, 4096 + 1004)
    assert driver.calls[2:] == [("cuMemFreeAsync", 4096, 1)]
    Driver(monkeypatch, failing="cuMemAllocAsync")
    with pytest.raises(MatmulError, match="CUDA_ERROR_OUT_OF_MEMORY"), workspace(1000, 4, device):
        pass


@pytest.mark.parametrize("captures", [False, True], ids=["another library", "Warp"])
def test_each_captured_graph_gets_memory_of_its_own(device: Any, captures: bool, monkeypatch: Any) -> None:
    with workspace(1000, 4, device) as kept:
        pass
    Driver(monkeypatch)
    device.is_capturing, device.captures = True, captures
    found = []
    for _ in range(2):
        with workspace(1000, 4, device) as captured:
            found.append(captured)
    assert len({kept.start, *(memory.start for memory in found)}) == 3
    assert len({kept.arrived, *(memory.arrived for memory in found)}) == 3


def test_memory_is_freed_after_the_kernels_of_its_stream(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    device.stream = stream(7, lambda other: waited.append(other.cuda_stream))
    for size in (1000, 5000):
        with workspace(size, 4, device):
            pass
    assert waited == [7]
    monkeypatch.setattr(wp, "empty", lambda *_, **__: int("no memory"))
    with pytest.raises(ValueError, match="no memory"):
        workspace(50_000, 4, device)
    monkeypatch.setattr(wp, "empty", lambda size, **named: Memory(1, size))
    with workspace(1000, 4, device) as memory:
        assert memory.start == 1, "what was freed is not used again"
    module._kept.clear()
    assert waited == [7, 7, 7]
