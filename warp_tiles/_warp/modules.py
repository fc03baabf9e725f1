"""Warp's modules: planned, compiled ahead of time, hashed again."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import warp

from warp_tiles._warp.seams import find
from warp_tiles.planning import ModulePlan

if TYPE_CHECKING:
    from warp_tiles._warp.hooks import Hooks


def rehash_modules() -> None:
    """Have every module hashed again at its next use."""
    for module in list(find("context.user_modules").values()):
        module.mark_modified()


def plan_module(hooks: Hooks, module: Any, arch: int | None, block_dim: int | None = None) -> ModulePlan | None:
    """Generate a module's code for a target and return its plan; nothing is built.

    Returns:
        None if the module multiplies no tiles, or is left to Warp, whose code generation would build them.
    """
    context = find("context")
    with find("codegen._codegen_lock"):
        threads = block_dim if block_dim is not None else module.options["block_dim"]
        if not hooks.reloads.settings_of({**module.options, "block_dim": threads}, module).providers:
            return None
        module.get_module_hash(threads)  # resolves what wp.static() defers
        options = module.resolve_options(warp.config, block_dim=threads) | {"output_arch": arch}
        target = "cpu" if arch is None else "cuda"
        known = inspect.signature(context.ModuleBuilder).parameters
        extra = {"target": target} if "target" in known else {}
        # with the module's own hasher the names of kernels stay those of what is loaded
        builder = context.ModuleBuilder(module, options, hasher=module.hashers[threads], **extra)
        with hooks.reloads.planning():
            builder.codegen(target)
    state = hooks._sessions.get(builder)
    return state.build.plan if state is not None and state.build is not None else None


def plan_loaded_modules(hooks: Hooks) -> None:
    """Plan the modules that Warp loaded from its own kernel cache, for which no code was generated."""
    for module in user_modules().values():
        for execution in tuple(module.execs.values()):
            arch = None if execution.device.is_cpu else execution.compile_arch
            hasher = module.hashers.get(execution.block_dim)
            known = hooks.engine.recorder.has_plan(module.name, arch, execution.block_dim)
            if getattr(hasher, "warp_tiles_has_products", False) and not known:
                plan_module(hooks, module, arch, execution.block_dim)


def user_modules() -> dict[str, Any]:
    """Warp's modules by name."""
    return dict(find("context.user_modules"))


def compile_module(module: Any, arch: int, block_dim: int, folder: Path) -> Path:
    """Compile a module ahead of time.

    Args:
        module: Warp's module.
        arch: Compute capability, e.g. ``90``.
        block_dim: Threads per block.
        folder: Where the cubin, its metadata and its source go.

    Returns:
        Path of the cubin.
    """
    module.get_module_hash(block_dim)
    options = module.resolve_options(warp.config, block_dim=block_dim)
    module._compile(None, folder, output_arch=arch, use_ptx=False, options=options)
    name = module._get_compile_output_name(None, output_arch=arch, use_ptx=False, block_dim=block_dim)
    return folder / str(name)
