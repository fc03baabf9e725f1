"""The memory that products with split-K keep for a stream, on a fake GPU."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import warp as wp

from warp_tiles.array_products import workspace as module
from warp_tiles.array_products.workspace import workspace


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    addresses = itertools.count(1000)
    monkeypatch.setattr(module, "_kept", {})
    monkeypatch.setattr(wp, "empty", lambda size, **named: SimpleNamespace(ptr=next(addresses), capacity=size))
    monkeypatch.setattr(wp, "zeros", lambda count, **named: SimpleNamespace(ptr=next(addresses), capacity=4 * count))
    stream = SimpleNamespace(cuda_stream=1)
    return SimpleNamespace(alias="cuda:0", is_cuda=True, stream=stream, captures=False, is_capturing=False)


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
    assert [old.ptr for old in kept.older] == [first.start], "a graph may still write to it"


def test_each_stream_has_memory_of_its_own(device: Any) -> None:
    with workspace(1000, 4, device) as first:
        pass
    device.stream = SimpleNamespace(cuda_stream=2)
    with workspace(1000, 4, device) as second:
        assert second != first


def test_a_captured_graph_gets_memory_of_its_own(device: Any) -> None:
    with workspace(1000, 4, device) as kept:
        pass
    device.captures = True
    with workspace(1000, 4, device) as captured:
        assert captured.start != kept.start
        assert captured.arrived != kept.arrived
