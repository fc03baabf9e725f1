"""A GPU that is not there: Warp's own code generates, builds, links and loads modules for it, and never runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

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
        """Cubins, unless asked for PTX."""
        return preferred or "cubin"

    def get_cuda_compile_arch(self) -> int:
        """The compute capability."""
        return self.arch

    def _get_cuda_arch_suffix(self, arch: int) -> str:
        return ""

    def load(self, module: str, block_dim: int | None = None) -> Any:
        """Load a module by name, as a launch does; Warp's ModuleExec."""
        import warp as wp

        return wp.get_module(module).load(ALIAS, block_dim)


@contextlib.contextmanager
def stand_in(kernel_cache: Path) -> Iterator[StandIn]:
    """A device of compute capability 9.0 for a with-block.

    Args:
        kernel_cache: Folder of Warp's kernel cache in it.
    """
    import warp as wp

    from warp_tiles._warp import find

    wp.init()
    device = StandIn()
    real = wp.get_devices

    def load_cuda(path: str, _: Any) -> object:
        device.loaded.append(str(path))
        return object()

    def devices() -> list[Any]:
        return [*real(), device]

    def keep(execution: Any) -> None:  # what load_cuda() gave cannot be unloaded
        pass

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(find("context.runtime").device_map, {ALIAS: device, device: device}))
        stack.enter_context(mock.patch.object(find("build"), "load_cuda", load_cuda))
        stack.enter_context(mock.patch.object(find("context.ModuleExec"), "__del__", keep))
        stack.enter_context(mock.patch.object(wp, "get_devices", devices))
        stack.enter_context(mock.patch.object(wp.config, "kernel_cache_dir", str(kernel_cache)))
        yield device
