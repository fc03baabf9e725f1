"""Operations on Warp's modules: list them, discard their hashes, compile them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import warp

from warp_tiles._warp.hashes import hash_outdated, loads_a_module
from warp_tiles._warp.internals import find
from warp_tiles.errors import PlanError
from warp_tiles.gemm.hardware import BLOCK_THREADS
from warp_tiles.util.files import digests_of, is_kept, require_replaceable, write_digests

_ATTEMPTS = 3  # of processes that compile the same module into one folder


def rehash_modules() -> None:
    """Discards the hash of every module, while no thread loads one (:func:`warp_tiles._warp.hashes.hash_all_again`)."""
    for module in list(find("context.user_modules").values()):
        module.mark_modified()


def user_modules() -> dict[str, Any]:
    """Warp's modules by name."""
    return dict(find("context.user_modules"))


def users_own_modules() -> list[Any]:
    """Warp's modules that have kernels, without those of Warp itself."""
    return [m for name, m in user_modules().items() if m.kernels and not name.startswith("warp.")]


def require_target(arch: Any, block_dim: Any, *, compiled: bool = True) -> None:
    """Refuses a target that no module can have.

    Args:
        arch: Compute capability, e.g. ``90``; None for the CPU.
        block_dim: Threads per block; None for a module's option.
        compiled: True if Warp's compiler has to know the architecture. A plan can be made for others.

    Raises:
        PlanError: Warp's compiler does not know the architecture, or a block cannot have so many threads.
    """
    known = warp.get_cuda_supported_archs()
    whole = isinstance(arch, int) and not isinstance(arch, bool)
    if arch is not None and (not whole or (compiled and known and arch not in known)):
        raise PlanError(
            f"arch is {arch!r}, which Warp's compiler does not know",
            remedy=f"give a compute capability as a number: {', '.join(map(str, known)) or 'e.g. 90'}",
        )
    whole = isinstance(block_dim, int) and not isinstance(block_dim, bool)
    if block_dim is not None and not (whole and 1 <= block_dim <= BLOCK_THREADS):
        raise PlanError(
            f"block_dim is {block_dim!r}, and a block has 1 to {BLOCK_THREADS} threads",
            remedy="give such a number; a launch in the script may name another",
        )


@loads_a_module
def compile_module(module: Any, arch: int, block_dim: int, folder: Path) -> Path:
    """Compiles a module ahead of time.

    An output of an earlier call is kept if it matches the digest beside it. Otherwise it is built again, with a
    warning if it has changed since it was written.

    Args:
        module: Warp's module.
        arch: Compute capability, e.g. ``90``.
        block_dim: Threads per block.
        folder: Receives the cubin, its metadata and its source.

    Returns:
        The path of the cubin.

    Raises:
        PlanError: There is no such target.
        OSError: The folder cannot be written, or a FIFO, a device or a folder is in the place of an output.
    """
    require_target(arch, block_dim)
    hash_outdated(module)
    module.get_module_hash(block_dim)
    options = module.resolve_options(warp.config, block_dim=block_dim)
    cubin = folder / str(module._get_compile_output_name(None, output_arch=arch, use_ptx=False, block_dim=block_dim))
    meta = folder / str(module._get_meta_name(block_dim=block_dim))
    for path in (cubin, meta, meta.with_suffix(".cu"), digests_of(cubin)):
        require_replaceable(path)
    for attempt in range(_ATTEMPTS):
        if not is_kept(cubin, [meta]):
            for path in (cubin, meta):
                path.unlink(missing_ok=True)
        module._compile(None, folder, output_arch=arch, use_ptx=False, options=options)
        try:
            write_digests(cubin, [meta])
            break
        except FileNotFoundError:  # another process removed an output of this one, to write the same again
            if attempt == _ATTEMPTS - 1:
                raise
    return cubin


@loads_a_module
def compile_into_cache(module: Any, device: Any, block_dim: int) -> None:
    """Compiles a module into Warp's kernel cache, as ``Module.load`` does, and loads nothing on the device.

    Args:
        module: Warp's module.
        device: Warp's device.
        block_dim: Threads per block.
    """
    folder = Path(warp.config.kernel_cache_dir) / module.get_module_identifier(block_dim)
    name = module._get_compile_output_name(device, block_dim=block_dim)
    arch = module._get_compile_arch(device)
    module._compile(device, folder, name, arch, options=module.resolved_options[block_dim])
