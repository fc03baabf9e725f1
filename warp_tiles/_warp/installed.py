"""The hooks that are installed in this process, if there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warp_tiles.errors import PlanError

if TYPE_CHECKING:
    from warp_tiles._warp.hooks import Hooks
    from warp_tiles.build.engine import Engine

_hooks: Hooks | None = None


def installed() -> Hooks | None:
    """The hooks, or None while Warp is left alone."""
    return _hooks


def set_installed(hooks: Hooks | None) -> None:
    """Remember which hooks are installed."""
    global _hooks
    _hooks = hooks


def is_enabled() -> bool:
    """Whether Warp is hooked."""
    return _hooks is not None


def require_hooks(what: str) -> Hooks:
    """The hooks.

    Raises:
        PlanError: warp_tiles is not enabled, which ``what`` needs.
    """
    if _hooks is None:
        raise PlanError(f"{what} needs warp_tiles to be enabled", remedy="call warp_tiles.enable() first")
    return _hooks


def engine() -> Engine:
    """The engine, which plans and builds.

    Raises:
        PlanError: warp_tiles is not enabled.
    """
    return require_hooks("engine()").engine
