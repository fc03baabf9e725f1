"""A GPU that is not there: modules are generated, built, linked and loaded for it by Warp's own code, and never run."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import warp as wp

from warp_tiles import _warp

ALIAS = "stand-in"


class StandIn:
    """What Warp asks of a device while it loads a module.

    Attributes:
        is_capturing: Whether a graph is being captured on it.
        loaded: Paths of what was loaded, in order.
    """

    alias, name, arch, context = ALIAS, "a GPU that is not there", 90, 1
    is_cpu, is_cuda, is_cubin_supported = False, True, True
    max_shared_memory_per_block = 232_448
    context_guard = contextlib.nullcontext()

    def __init__(self) -> None:
        self.is_capturing = False
        self.loaded: list[str] = []

    def get_cuda_output_format(self, preferred: str | None = None) -> str:
        return preferred or "cubin"

    def get_cuda_compile_arch(self) -> int:
        return self.arch

    def _get_cuda_arch_suffix(self, arch: int) -> str:
        return ""

    def load(self, module: Any, block_dim: int | None = None) -> Any:
        """Load a Python module's kernels, as a launch does; Warp's ModuleExec."""
        return wp.get_module(module.__name__).load(ALIAS, block_dim)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> StandIn:
    """A device of compute capability 9.0, and an empty kernel cache."""
    wp.init()
    device = StandIn()
    build, runtime, context = _warp.find("build"), _warp.find("context.runtime"), _warp.find("context")
    monkeypatch.setitem(runtime.device_map, ALIAS, device)

    def load_cuda(path: str, _: Any) -> object:
        device.loaded.append(str(path))
        return object()

    monkeypatch.setattr(build, "load_cuda", load_cuda)
    monkeypatch.delattr(context.ModuleExec, "__del__")
    real = wp.get_devices
    monkeypatch.setattr(wp, "get_devices", lambda: [*real(), device])
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path / "kernels"))
    return device
