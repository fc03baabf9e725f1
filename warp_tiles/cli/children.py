"""Enables warp_tiles in the processes that a script starts through ``multiprocessing`` (spawn and forkserver).

Such a child begins with data that its parent pickles: search path, arguments, main module. The data here gets one more
value, which enables warp_tiles when the child unpickles it, before the main module is imported. A forked child inherits
warp_tiles anyway.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import spawn
from typing import Any

from warp_tiles import settings
from warp_tiles._warp.installed import is_enabled
from warp_tiles.util.warn import warn

_NAME = "warp_tiles"
# the child's search path is not set yet when it reads this
_ENABLE = """
import sys
before, sys.path = sys.path, search_path
try:
    from warp_tiles.cli.children import enable_here
    enable_here(configured, options)
finally:
    sys.path = before
"""


class _Enabler:
    """A value that enables warp_tiles in the process that unpickles it."""

    def __init__(self) -> None:
        self._given = {"configured": settings.configured(), "options": settings.configured(settings.COMMAND_LINE)}

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_ENABLE, {"search_path": list(sys.path), **self._given})


def enable_here(configured: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Enable warp_tiles in a child as in its parent. If it cannot be enabled, the child runs with Warp alone.

    Args:
        configured: The settings of :func:`warp_tiles.configure` in the parent, and of options of the command.
        options: Those of options of the command alone.
    """
    try:
        from warp_tiles import api

        settings.configure(**configured)
        for name, value in options.items():
            settings.configure_by_option(name, value)
        api.enable()
        _install()
    except Exception as error:  # a child must not fail because of this
        warn(f"a child process runs with Warp alone: {error}")


@contextlib.contextmanager
def enabled_in_children() -> Iterator[None]:
    """Enable warp_tiles in the children that are started in the block. They get the settings of their start."""
    restore = _install()
    try:
        yield
    finally:
        restore()


def _install() -> Callable[[], None]:
    """Add the value to the data of children, as long as warp_tiles is enabled. Returns a function that ends it."""
    original = spawn.get_preparation_data

    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        data = dict(original(name))
        return {**data, _NAME: _Enabler()} if is_enabled() else data

    def restore() -> None:
        spawn.get_preparation_data = original

    spawn.get_preparation_data = get_preparation_data
    return restore
