"""Plans Warp's modules: generates their code for a target, and builds nothing."""

from __future__ import annotations

import inspect
from typing import Any

import warp

from warp_tiles._warp.hashes import hash_outdated
from warp_tiles._warp.hooks import Hooks
from warp_tiles._warp.internals import MATMUL, SOLVERS, find
from warp_tiles._warp.modules import require_target, user_modules
from warp_tiles.plan.planning import ModulePlan


def plan_module(hooks: Hooks, module: Any, arch: int | None, block_dim: int | None = None) -> ModulePlan | None:
    """Generates a module's code for a target, and returns its plan. Nothing is built.

    Args:
        hooks: The installed hooks.
        module: Warp's module.
        arch: Compute capability, e.g. ``90``; None plans for the CPU.
        block_dim: Threads per block; None takes the module's option.

    Returns:
        The plan. None if the module contains no product and no solver, or if the settings leave it to Warp, whose code
        generation would build its functions.

    Raises:
        PlanError: There is no such target.
    """
    require_target(arch, block_dim, compiled=False)
    context = find("context")
    hash_outdated(module)
    with find("codegen._codegen_lock"):
        threads = block_dim if block_dim is not None else module.options["block_dim"]
        if not hooks.reloads.settings_of({**module.options, "block_dim": threads}, module).providers:
            return None
        with hooks.reloads.planning():
            module.get_module_hash(threads)  # evaluates deferred wp.static() expressions
        if _mentions_nothing(module.hashers[threads]):
            return None
        options = module.resolve_options(warp.config, block_dim=threads) | {"output_arch": arch}
        target = "cpu" if arch is None else "cuda"
        known = inspect.signature(context.ModuleBuilder).parameters
        extra = {"target": target} if "target" in known else {}
        with hooks.reloads.planning():
            # with the module's own hasher the kernels have the same names as in the loaded module
            builder = context.ModuleBuilder(module, options, hasher=module.hashers[threads], **extra)
            builder.codegen(target)
    state = hooks.sites.existing_state(builder)
    return state.build.plan if state is not None and state.build is not None else None


def _mentions_nothing(hasher: Any) -> bool:
    """True if the source of a hashed module refers to no product and no solver. Such a module needs no code generation.

    If an option of the module leaves one kind to Warp, only the generated code tells.
    """
    return not hasher.warp_tiles_has_calls and hasher.warp_tiles_names >= {MATMUL, *SOLVERS}


def plan_loaded_modules(hooks: Hooks) -> None:
    """Plans the modules that Warp loaded from its kernel cache. Their code was not generated in this process."""
    for module in user_modules().values():
        for execution in tuple(module.execs.values()):
            arch = None if execution.device.is_cpu else execution.compile_arch
            hasher = module.hashers.get(execution.block_dim)
            known = hooks.engine.recorder.has_plan(module.name, arch, execution.block_dim)
            if getattr(hasher, "warp_tiles_has_calls", False) and not known:
                plan_module(hooks, module, arch, execution.block_dim)
