"""A fake GPU: Warp's own code generates, builds, links and loads modules for it, and never runs them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ALIAS = "stand-in"


class StandIn:
    """The interface that Warp uses of a device while it loads a module.

    Attributes:
        is_capturing: True while a graph is captured on it.
        loaded: Paths of the loaded modules, in order.
    """

    alias, name, arch, context = ALIAS, "a fake GPU", 90, 1
    is_cpu, is_cuda, is_cubin_supported = False, True, True
    max_shared_memory_per_block = 232_448
    context_guard = contextlib.nullcontext()

    def __init__(self) -> None:
        self.is_capturing = False
        self.loaded: list[str] = []

    def get_cuda_output_format(self, preferred: str | None = None) -> str:
        """``cubin``, unless another format is preferred."""
        return preferred or "cubin"

    def get_cuda_compile_arch(self) -> int:
        """The compute capability."""
        return self.arch

    def _get_cuda_arch_suffix(self, arch: int) -> str:
        return ""

    def load(self, module: str, block_dim: int | None = None) -> Any:
        """Load a module by name, as a launch does. Returns Warp's ModuleExec."""
        import warp as wp

        return wp.get_module(module).load(ALIAS, block_dim)


@contextlib.contextmanager
def stand_in(kernel_cache: Path) -> Iterator[StandIn]:
    """Enter a block with a fake device of compute capability 9.0.

    Args:
        kernel_cache: Folder of Warp's kernel cache in the block.
    """
    import warp as wp

    from warp_tiles._warp.internals import find

    wp.init()
    device = StandIn()
    real = wp.get_devices

    def load_cuda(path: str, _: Any) -> object:
        device.loaded.append(str(path))
        return object()

    def devices() -> list[Any]:
        return [*real(), device]

    def keep(execution: Any) -> None:  # the object from load_cuda() cannot be unloaded
        pass

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(find("context.runtime").device_map, {ALIAS: device, device: device}))
        stack.enter_context(mock.patch.object(find("build"), "load_cuda", load_cuda))
        stack.enter_context(mock.patch.object(find("context.ModuleExec"), "__del__", keep))
        stack.enter_context(mock.patch.object(wp, "get_devices", devices))
        stack.enter_context(mock.patch.object(wp.config, "kernel_cache_dir", str(kernel_cache)))
        try:
            yield device
        finally:
            for module in find("context.user_modules").values():
                for execution in module.execs.values():
                    if execution.device is device:
                        execution.handle = None  # Warp unloads nothing
            gc.collect()  # what no module refers to any more, before its __del__ is Warp's again
