"""The only package that uses Warp's internals. It installs hooks in Warp and removes them.

Each name is imported at its first use, so that ``import warp_tiles`` does not import Warp.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warp_tiles._warp.hooks import Hooks
    from warp_tiles._warp.internals import (
        REQUIRED,
        SUPPORTED_VERSIONS,
        check_internals,
        driver_version,
        find,
        mathdx_enabled,
        toolkit_version,
    )
    from warp_tiles._warp.libmathdx import libmathdx_build
    from warp_tiles._warp.modules import compile_module, rehash_modules, require_target, user_modules, users_own_modules
    from warp_tiles._warp.plans import plan_loaded_modules, plan_module
    from warp_tiles._warp.tapes import Tapes

_MODULE_OF = {
    "REQUIRED": "internals",
    "SUPPORTED_VERSIONS": "internals",
    "Hooks": "hooks",
    "Tapes": "tapes",
    "check_internals": "internals",
    "compile_module": "modules",
    "driver_version": "internals",
    "find": "internals",
    "libmathdx_build": "libmathdx",
    "mathdx_enabled": "internals",
    "plan_loaded_modules": "plans",
    "plan_module": "plans",
    "rehash_modules": "modules",
    "require_target": "modules",
    "toolkit_version": "internals",
    "user_modules": "modules",
    "users_own_modules": "modules",
}

__all__ = [
    "REQUIRED",
    "SUPPORTED_VERSIONS",
    "Hooks",
    "Tapes",
    "check_internals",
    "compile_module",
    "driver_version",
    "find",
    "libmathdx_build",
    "mathdx_enabled",
    "plan_loaded_modules",
    "plan_module",
    "rehash_modules",
    "require_target",
    "toolkit_version",
    "user_modules",
    "users_own_modules",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
