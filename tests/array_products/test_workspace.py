"""The memory that products with split-K keep for a stream, on a fake GPU."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import warp as wp

from warp_tiles.array_products import workspace as module
from warp_tiles.array_products.workspace import KEPT_BYTES, workspace


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


def test_each_stream_has_memory_of_its_own(device: Any) -> None:
    with workspace(1000, 4, device) as first:
        pass
    device.stream = stream(2)
    with workspace(1000, 4, device) as second:
        assert second != first


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


@pytest.mark.parametrize("captures", [False, True], ids=["another library", "Warp"])
def test_each_captured_graph_gets_memory_of_its_own(device: Any, captures: bool) -> None:
    with workspace(1000, 4, device) as kept:
        pass
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
