"""Plans of Warp's modules: code is generated for a target, and nothing is built."""

from __future__ import annotations

import inspect
from typing import Any

import warp

from warp_tiles._warp.hooks import Hooks
from warp_tiles._warp.modules import user_modules
from warp_tiles._warp.seams import find
from warp_tiles.plan.planning import ModulePlan


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
