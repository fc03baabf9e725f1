"""The functions that a user's program calls."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import warp_tiles.plan  # noqa: F401  a folder takes its name at its first import, so it comes before the function
from warp_tiles._warp import installed, is_enabled, require_hooks, set_installed, set_refusal
from warp_tiles._warp.intercept import is_planning
from warp_tiles.errors import PlanError, SettingError, UnsupportedWarpError
from warp_tiles.settings import current, on_change
from warp_tiles.settings.table import path
from warp_tiles.store import cache_root, start_file
from warp_tiles.util.warn import warn

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from types import ModuleType

    import warp as wp

    from warp_tiles.plan.planning import ModulePlan

__all__ = ["disable", "enable", "enabled", "is_enabled", "is_planning", "plan", "prefetch", "report"]

_lock = threading.RLock()


def enable(*, executor: Executor | None = None, start: str | os.PathLike[str] | None = None) -> None:
    """Hook into Warp. From then on warp_tiles plans, builds, caches and links Warp's modules.

    A second call has no effect, but for its start list. A forked child starts its own compiler processes.

    Args:
        executor: Runs the compilers in place of this package's processes, one picklable request per call, e.g.
            ``client.get_executor()`` of Dask. Its workers need the same packages; a worker with others is refused
            (docs/cluster.md). :func:`disable` does not shut it down.
        start: File of the program's start list (docs/cache.md). The modules that it names are compiled at once, side
            by side. :func:`disable`, or the end of the program, writes it with what was loaded. It contains the source
            of the kernels. With it, ``modules="auto"`` means ``all``. It takes the place of a list that is kept
            already. None takes the one that ``warp-tiles warm`` has left for the running script, if there is one.

    Raises:
        UnsupportedWarpError: The installed Warp lacks a part that warp_tiles hooks into. Warp stays unchanged. If it is
            newer than the newest tested version, a warning says so instead, and everything is left to it.
        SettingError: The environment or the project file holds an unknown name or value, the executor is none, or
            warp_tiles is already enabled and the call names an executor. The start list is no path of a file, or its
            folder is missing.
    """
    file = None if start is None else require_start_file(start)
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise SettingError(f"executor is {executor!r}", "give a concurrent.futures.Executor, or None")
    if hasattr(executor, "get_executor"):
        raise SettingError(f"executor is {executor!r}, a client", "give its executor: client.get_executor()")
    with _lock:
        if is_enabled():
            hooks = require_hooks("enable()")
            if executor is not None:
                raise SettingError("warp_tiles is enabled already, so it takes no executor", "call disable() first")
            # a command that only plans the script keeps no list
            keeps = hooks.program_start is not None or not is_planning()
            if file is not None and keeps and not hooks.start_is_fixed:
                hooks.begin_start(file)
            return
        import warp

        from warp_tiles._warp.hooks import Hooks
        from warp_tiles._warp.internals import untested
        from warp_tiles.build.engine import Engine
        from warp_tiles.tuning.snapshots import TunedSnapshots

        try:
            engine = Engine(warp_toolkit=warp.get_cuda_toolkit_version(), executor=executor, tuned=TunedSnapshots())
            context = engine.build_context(current())
            _ = context.bundle or context.remote  # to ask for either is to open it, or to connect in the background
            hooks = Hooks(engine, _gemm_gradients)
            hooks.install()
        except UnsupportedWarpError as error:
            if not untested():
                raise
            set_refusal(error)
            warn(f"everything is left to Warp: {error}")
            return
        on_change(_settings_changed)
        set_installed(hooks)
        if (file := file or _own_start()) is not None:
            hooks.begin_start(file)


def _own_start() -> Path | None:
    """The start list that ``warp-tiles warm`` or ``run`` has left for the running script."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None:
        return None
    file = start_file(cache_root(current().cache_dir), Path(script))
    return file if os.path.exists(file) else None  # Path.exists() raises for a folder that may not be read


def require_start_file(start: str | os.PathLike[str]) -> Path:
    """The file of a start list.

    Raises:
        SettingError: It is no path of a file, or its folder is missing.
    """
    file = path("start", start)
    if file is None or os.path.isdir(file):
        raise SettingError(f"start is {start!r}, and no file", "give the path of a file")
    if not file.parent.is_dir():
        raise SettingError(f"start is {os.fspath(start)!r}, in no folder", "make the folder first")
    return file


def disable() -> None:
    """Restore Warp and end the compiler processes.

    Warp builds modules with products or solvers at their next launch. Do not call this while another
    thread loads modules, because a build in progress fails. While a command plans a script, this has no effect.
    """
    if is_planning():
        return
    with _lock:
        set_refusal(None)
        if (hooks := installed()) is not None:
            try:
                hooks.end_start()
            finally:
                set_installed(None)
                hooks.uninstall()
                hooks.engine.close()


@contextlib.contextmanager
def enabled(*, executor: Executor | None = None, start: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Enable warp_tiles for a with-block. If it is already enabled, the block changes nothing.

    Raises:
        UnsupportedWarpError, SettingError: See :func:`enable`.
    """
    already = is_enabled()
    enable(executor=executor, start=start)
    try:
        yield
    finally:
        if not already:
            disable()


def _settings_changed() -> None:
    if (hooks := installed()) is not None:
        hooks.settings_changed()


def _gemm_gradients(*launch: Any) -> Any:
    from warp_tiles.array_products.backward import gemm_gradients  # only tapes with such a launch need it

    return gemm_gradients(*launch)


_held_for_fork = threading.local()


def _before_fork() -> None:
    """Take the lock of Warp's code generator, which a thread of :func:`prefetch` could hold in the child forever."""
    if installed() is not None:
        from warp_tiles._warp.internals import find

        _held_for_fork.lock = find("codegen._codegen_lock")
        _held_for_fork.lock.acquire()


def _release_after_fork() -> None:
    lock = getattr(_held_for_fork, "lock", None)
    if lock is not None:
        _held_for_fork.lock = None
        lock.release()


def _after_fork() -> None:
    _release_after_fork()
    if (hooks := installed()) is not None:
        hooks.program_start, hooks.start_is_fixed = None, True  # the parent writes the list
        hooks.engine.after_fork()
        hooks.reloads.after_fork()


def plan(
    module: str | ModuleType | wp.Module | wp.Kernel, *, arch: int | str | None = None, block_dim: int | None = None
) -> ModulePlan:
    """Plan a Warp module without building anything.

    Of a generic kernel (with ``Any`` in its arguments), its instances are planned. A launch or ``wp.overload()`` makes
    one; the plan names the kernels that have none yet (``uninstantiated``).

    Args:
        module: A Warp module, a Python module, the name of one, or a kernel.
        arch: Compute capability, e.g. ``90``, ``"sm_90"`` or ``"9.0"``; None plans for the CPU.
        block_dim: Threads per block; None takes the module's option.

    Raises:
        PlanError: warp_tiles is not enabled, the module has no kernels, or Warp's compiler does not know the target.
    """
    from warp_tiles.gemm.hardware import parse_arch

    hooks = require_hooks("plan()")
    warp_module = _warp_module(module)
    number = None if arch is None else parse_arch(arch)
    planned = hooks.plan_module(warp_module, number, block_dim)
    if planned is None:
        from warp_tiles.plan.planning import ModulePlan

        resolved = current(warp_module.options, warp_module.name)
        threads = block_dim or int(warp_module.options["block_dim"])
        planned = ModulePlan(warp_module.name, number, threads, tuple(warp_module.kernels), (), resolved)
    return replace(planned, uninstantiated=hooks.uninstantiated(warp_module))


def _warp_module(module: Any) -> Any:
    """Warp's module of a Python module, a name, a kernel or a Warp module.

    Raises:
        PlanError: It has no kernels.
    """
    from warp_tiles._warp.modules import user_modules

    if hasattr(module, "mark_modified"):
        return module
    if hasattr(module, "module"):  # a kernel
        return module.module
    name = module if isinstance(module, str) else getattr(module, "__name__", None) or getattr(module, "name", None)
    warp_module = user_modules().get(str(name))
    if warp_module is None:
        raise PlanError(
            f"module {module if name is None else name!r} has no Warp kernels",
            remedy=f"modules with kernels: {', '.join(user_modules()) or 'none'}",
        )
    return warp_module


def prefetch(
    *modules: str | ModuleType | wp.Module | wp.Kernel, device: wp.DeviceLike = None, block_dim: int | None = None
) -> int:
    """Compile modules side by side on threads, before they are launched. Returns at once.

    Compiled modules lie in Warp's kernel cache. A launch waits only for its own module, and finds the file if nothing
    changed that the module depends on. Call it when all kernels are defined. An error of a module is reported by its
    launch. The setting ``jobs`` limits the threads.

    Args:
        modules: Warp modules, Python modules, their names, or kernels; none for all with kernels but Warp's own.
        device: Warp's device or its name; None for the current one.
        block_dim: Threads per block, as the launches give it; None for the module's option, and 1 on the CPU.

    Returns:
        The number of modules that are queued. Modules that are loaded already and those whose files a launch could
        not reuse are left out: with ``wp.config.cache_kernels=False``, with the option ``strip_hash`` or
        ``verify_autograd_array_access``, and with deferred ``wp.static`` expressions. 0 while a script is planned.

    Raises:
        PlanError: warp_tiles is not enabled, a module has no kernels, or a block cannot have so many threads.
    """
    from warp_tiles._warp.modules import require_target, users_own_modules

    hooks = require_hooks("prefetch()")
    require_target(None, block_dim)
    if is_planning():
        return 0
    chosen = [_warp_module(module) for module in modules] or users_own_modules()
    return hooks.prefetch(chosen, device, block_dim)


def report() -> dict[str, Any]:
    """The plan and the log of the build of every module that was built or loaded since :func:`enable`, as JSON values.

    With a start list, ``start`` says what was compiled ahead.

    Raises:
        PlanError: warp_tiles is not enabled.
    """
    hooks = require_hooks("report()")
    hooks.plan_loaded_modules()
    start = hooks.program_start
    return {**hooks.engine.log.to_json(), **({} if start is None else {"start": start.to_json()})}


atexit.register(disable)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_release_after_fork, after_in_child=_after_fork)
