"""Operations on Warp's modules: list them, discard their hashes, compile them ahead of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import warp

from warp_tiles._warp.seams import find


def rehash_modules() -> None:
    """Discards the hash of every module. Warp computes it again at the module's next use."""
    for module in list(find("context.user_modules").values()):
        module.mark_modified()


def user_modules() -> dict[str, Any]:
    """Warp's modules by name."""
    return dict(find("context.user_modules"))


def compile_module(module: Any, arch: int, block_dim: int, folder: Path) -> Path:
    """Compiles a module ahead of time.

    Args:
        module: Warp's module.
        arch: Compute capability, e.g. ``90``.
        block_dim: Threads per block.
        folder: Receives the cubin, its metadata and its source.

    Returns:
        The path of the cubin.
    """
    module.get_module_hash(block_dim)
    options = module.resolve_options(warp.config, block_dim=block_dim)
    module._compile(None, folder, output_arch=arch, use_ptx=False, options=options)
    name = module._get_compile_output_name(None, output_arch=arch, use_ptx=False, block_dim=block_dim)
    return folder / str(name)
