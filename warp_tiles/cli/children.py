"""Enables warp_tiles in the processes that a script of ``warp-tiles run`` starts."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping
from multiprocessing import spawn
from typing import Any

from warp_tiles._warp import is_enabled, require_hooks
from warp_tiles.api import enable
from warp_tiles.settings import COMMAND_LINE, configure, configure_by_option, configured, current, keep_start_record
from warp_tiles.util.warn import warn

# ---- children of a script through multiprocessing (spawn and forkserver)
#
# Such a child begins with data that its parent pickles: search path, arguments, main module. One more value is
# added to this data. Unpickling it enables warp_tiles in the child, before the main module is imported. A forked child
# inherits warp_tiles anyway.

_NAME = "warp_tiles"
# the child's search path is not set yet when it reads this
_ENABLE = """
import sys
before, sys.path = sys.path, search_path
try:
    from warp_tiles.cli.children import enable_here
    enable_here(configured, options, start_record)
finally:
    sys.path = before
"""


def enabling() -> dict[str, Any]:
    """The arguments of :func:`enable_here`."""
    given = {"configured": configured(), "options": configured(COMMAND_LINE)}
    return {**given, "start_record": current().start_record}


class _Enabler:
    """A value that enables warp_tiles in the process that unpickles it."""

    def __init__(self) -> None:
        self._given = enabling()

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_ENABLE, {"search_path": list(sys.path), **self._given})


def enable_here(configured: Mapping[str, Any], options: Mapping[str, Any], start_record: bool) -> None:
    """Enable warp_tiles in a child as in its parent. If it cannot be enabled, the child runs with Warp alone.

    Args:
        configured: The settings of :func:`warp_tiles.configure` in the parent, and of options of the command.
        options: Those of options of the command alone.
        start_record: True if the parent keeps a start record.
    """
    try:
        configure(**configured)
        for name, value in options.items():
            configure_by_option(name, value)
        keep_start_record(kept=start_record)
        enable()
        if is_enabled():
            require_hooks("run").takes_start = False  # the parent writes the record
        _enable_children()
    except Exception as error:  # a child must not fail because of this
        warn(f"a child process runs with Warp alone: {error}")


@contextlib.contextmanager
def enabled_in_children() -> Iterator[None]:
    """Enable warp_tiles in the children that are started in the block. They get the settings of their start."""
    original = spawn.get_preparation_data
    _enable_children()
    try:
        yield
    finally:
        spawn.get_preparation_data = original


def _enable_children() -> None:
    """Add the value to the data of children, as long as warp_tiles is enabled."""
    original = spawn.get_preparation_data

    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        data = dict(original(name))
        return {**data, _NAME: _Enabler()} if is_enabled() else data

    spawn.get_preparation_data = get_preparation_data
