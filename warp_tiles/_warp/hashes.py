"""Discards the hashes of modules, so that Warp computes them again, and never while another thread loads the module."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

import warp

from warp_tiles._warp.internals import find

F = TypeVar("F", bound=Callable[..., Any])
_LIMITS = ("_tid_extent_limits", "_scalar_tid_extent_limits")  # Warp 1.18 and newer; Warp 1.17
_METHODS = ("context.Module.load", "context.Module._compile", "context.ModuleExec.get_kernel_hooks")
_loading: set[CodeType] = set()
#: Modules whose settings changed while another thread loaded them, by identity.
outdated: dict[int, Any] = {}


def loads_a_module(function: F) -> F:
    """Marks a function with a parameter ``module``, whose hash must stay while the function runs."""
    _loading.add(function.__code__)
    return function


def discard_hash(module: Any) -> None:
    """Discards the hash of a module, and keeps what Warp knows of each kernel by its own hash."""
    limits = {name: dict(getattr(module, name)) for name in _LIMITS if hasattr(module, name)}
    module.mark_modified()
    for name, known in limits.items():
        setattr(module, name, known)


def hash_again(module: Any) -> bool:
    """Discards a module's hash unless another thread is loading the module. Its next use computes the hash again.

    A thread that begins to load the module needs the lock that this function holds. A thread that has already begun is
    visible in its frames.

    Args:
        module: Warp's module.

    Returns:
        False if another thread is loading the module.
    """
    with find("codegen._codegen_lock"):
        if _loaded_elsewhere(module):
            return False
        discard_hash(module)
        return True


def hash_all_again() -> None:
    """Discards the hash of every module. A module that another thread is loading keeps it until its next use."""
    for module in list(find("context.user_modules").values()):
        if not hash_again(module):
            outdated[id(module)] = module


def hash_outdated(module: Any) -> None:
    """Discards the hash of a module whose settings changed while it was loaded, unless a graph is captured."""
    if id(module) in outdated and not capturing() and hash_again(module):
        outdated.pop(id(module), None)


def capturing() -> bool:
    """True while a graph is being captured on any device."""
    return any(device.is_capturing for device in warp.get_devices())


def _loaded_elsewhere(module: Any) -> bool:
    """True if another thread is inside a function that reads the module's hashes more than once."""
    codes = {inspect.unwrap(find(path)).__code__ for path in _METHODS} | _loading
    for thread, frame in sys._current_frames().items():
        here: FrameType | None = frame if thread != threading.get_ident() else None
        while here is not None:
            if here.f_code in codes and _concerns(here, module):
                return True
            here = here.f_back
    return False


def _concerns(frame: FrameType, module: Any) -> bool:
    kernel = frame.f_locals.get("kernel")
    owners = (frame.f_locals.get("self"), frame.f_locals.get("module"), getattr(kernel, "module", None))
    return any(owner is module for owner in owners)
