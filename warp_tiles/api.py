"""What a user's program calls."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from warp_tiles import settings
from warp_tiles.errors import PlanError, SettingError
from warp_tiles.planning import ModulePlan

if TYPE_CHECKING:
    from warp_tiles._warp import Hooks
    from warp_tiles.engine import Engine

_lock = threading.RLock()
_hooks: Hooks | None = None


def enable(*, executor: Executor | None = None) -> None:
    """Hook into Warp; from now on its modules are planned, built, cached and linked here.

    Enabling twice does nothing more. A forked child starts compiler processes of its own.

    Args:
        executor: Runs the compilers in place of own processes, one picklable request per call; a
            Dask or MPI pool builds a large set this way. It is not shut down here.

    Raises:
        SeamError: The installed Warp lacks something that is hooked into; Warp stays as it was.
        SettingError: The environment or the project file holds an unknown name or value.
    """
    global _hooks
    with _lock:
        if _hooks is not None:
            if executor is not None:
                raise SettingError("warp_tiles is enabled already, with another executor", "call disable() first")
            return
        from warp_tiles import _warp
        from warp_tiles.engine import Engine

        settings.current()
        engine = Engine(warp_toolkit=_warp.toolkit_version(), executor=executor)
        hooks = _warp.Hooks(engine)
        hooks.install()
        settings.on_change(_settings_changed)
        _hooks = hooks


def disable() -> None:
    """Restore Warp and end the compiler processes.

    Modules with products are built by Warp at their next launch. Not to be called while another
    thread loads modules: a build in progress then fails.
    """
    global _hooks
    with _lock:
        if _hooks is not None:
            hooks, _hooks = _hooks, None
            hooks.uninstall()
            hooks.engine.close()


@contextlib.contextmanager
def enabled(*, executor: Executor | None = None) -> Iterator[None]:
    """:func:`enable` for a with-block; within an enabled program it changes nothing.

    Raises:
        SeamError, SettingError: See :func:`enable`.
    """
    already = is_enabled()
    enable(executor=executor)
    try:
        yield
    finally:
        if not already:
            disable()


def is_enabled() -> bool:
    """Whether Warp is hooked."""
    return _hooks is not None


def _settings_changed() -> None:
    if _hooks is not None:
        _hooks.settings_changed()


def _after_fork() -> None:
    if _hooks is not None:
        _hooks.engine.after_fork()
        _hooks.reloads.after_fork()


def _require_hooks(what: str) -> Hooks:
    if _hooks is None:
        raise PlanError(f"{what} needs warp_tiles to be enabled", remedy="call warp_tiles.enable() first")
    return _hooks


def engine() -> Engine:
    """What plans and builds.

    Raises:
        PlanError: warp_tiles is not enabled.
    """
    return _require_hooks("engine()").engine


def plan(module: Any, *, arch: int | None = None, block_dim: int | None = None) -> ModulePlan:
    """What a Warp module needs, without building anything.

    Args:
        module: A Warp module, a Python module or the name of one.
        arch: Compute capability, e.g. ``90``; None plans for the CPU.
        block_dim: Threads per block; None takes the module's option.

    Raises:
        PlanError: warp_tiles is not enabled, or the module has no kernels.
    """
    from warp_tiles import _warp

    hooks = _require_hooks("plan()")
    name = module if isinstance(module, str) else getattr(module, "__name__", None) or getattr(module, "name", None)
    warp_module = module if hasattr(module, "mark_modified") else _warp.user_modules().get(str(name))
    if warp_module is None:
        raise PlanError(
            f"module {name!r} has no Warp kernels",
            remedy=f"modules with kernels: {', '.join(_warp.user_modules()) or 'none'}",
        )
    found = _warp.plan_module(hooks, warp_module, arch, block_dim)
    if found is not None:
        return found
    resolved = settings.current(warp_module.options, str(name))
    threads = block_dim or int(warp_module.options["block_dim"])
    return ModulePlan(str(name), arch, threads, tuple(warp_module.kernels), (), resolved)


def report() -> dict[str, Any]:
    """Plan and build record of every module met since :func:`enable`, as JSON values.

    Raises:
        PlanError: warp_tiles is not enabled.
    """
    from warp_tiles import _warp

    hooks = _require_hooks("report()")
    _warp.plan_loaded_modules(hooks)
    return hooks.engine.recorder.to_json()


atexit.register(disable)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
