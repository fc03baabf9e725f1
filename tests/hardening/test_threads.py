"""The settings of a load are those at its start."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import gemm, load
from warp_tiles._warp.internals import find
from warp_tiles._warp.modules import compile_module

CHANGES: dict[str, Callable[[], None]] = {
    "configure": lambda: warp_tiles.configure(policy="scalar"),
    "override": lambda: _blocks.enter_context(warp_tiles.override(policy="scalar")),
}
_blocks = contextlib.ExitStack()


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    warp_tiles.configure(policy=None)
    _blocks.close()


def in_another_thread(change: Callable[[], None]) -> None:
    thread = threading.Thread(target=change)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def while_compiling(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> list[str]:
    """Make the next compilation of a module wait for a change in another thread. Returns the list of changes."""
    original, changes = find("context.Module")._compile, []

    def compile_(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not changes:
            changes.append(module.name)
            in_another_thread(change)
        return original(module, *args, **kwargs)

    monkeypatch.setattr(find("context.Module"), "_compile", compile_)
    return changes


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.usefixtures("enabled")
def test_a_change_in_another_thread_does_not_disturb_a_launch(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    kernels = load(gemm())
    changes = while_compiling(monkeypatch, CHANGES[change])
    a = wp.array(np.full((16, 16), 2.0), dtype=wp.float32, device="cpu")
    c = wp.zeros((16, 16), dtype=wp.float32, device="cpu")
    for _ in range(2):
        c.zero_()
        wp.launch_tiled(kernels.gemm, dim=[1], inputs=[a, a], outputs=[c], block_dim=64, device="cpu")
        assert (c.numpy() == 64.0).all()
    assert changes


@pytest.mark.usefixtures("enabled")
def test_a_build_keeps_the_settings_of_its_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    kernels = load(gemm())
    while_compiling(monkeypatch, CHANGES["configure"])
    module = wp.get_module(kernels.__name__)
    cubin = compile_module(module, 90, 64, tmp_path)
    built = [row for row in warp_tiles.report()["modules"] if row.get("output") == cubin.name]
    assert built[-1]["linker"] == "warp_tiles"
    assert warp_tiles.plan(module, arch=90, block_dim=64).settings.policy == "scalar"
