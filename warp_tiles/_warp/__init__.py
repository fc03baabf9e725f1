"""The only package that uses Warp's internals. It installs hooks in Warp and removes them.

This module knows the hooks that are installed in this process. It imports no other, so ``import warp_tiles`` does not
import Warp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warp_tiles.errors import PlanError, UnsupportedWarpError

if TYPE_CHECKING:
    from warp_tiles._warp.hooks import Hooks

_hooks: Hooks | None = None
_refusal: UnsupportedWarpError | None = None


def installed() -> Hooks | None:
    return _hooks


def set_installed(hooks: Hooks | None) -> None:
    global _hooks
    _hooks = hooks
    set_refusal(None)


def set_refusal(error: UnsupportedWarpError | None) -> None:
    """Sets why an untested Warp has no hooks although they were asked for, or None."""
    global _refusal
    _refusal = error


def is_enabled() -> bool:
    """True while hooks are installed."""
    return _hooks is not None


def require_hooks(what: str) -> Hooks:
    """Returns the installed hooks. If there are none, raises a PlanError that names the caller, ``what``.

    If everything was left to an untested Warp, raises the UnsupportedWarpError that says why.
    """
    if _refusal is not None:
        raise _refusal
    if _hooks is None:
        raise PlanError(f"{what} needs warp_tiles to be enabled", remedy="call warp_tiles.enable() first")
    return _hooks
