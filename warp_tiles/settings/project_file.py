"""The table ``[tool.warp_tiles]`` of the nearest pyproject.toml."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from warp_tiles.errors import SettingError
from warp_tiles.util.files import FileTooLargeError, read_whole
from warp_tiles.util.threads import unless_signalled
from warp_tiles.util.warn import shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "pyproject.toml"
_MAX_BYTES = 1 << 20
_MOST_DOTS = 200
_NOT_IN_A_KEY = re.compile(rb"[^\w\"'. \t-]+")
# by path: modification time and size, and the table at that state
_read: dict[str, tuple[tuple[int, int], Mapping[str, Any] | None]] = {}


def find() -> tuple[Path, Mapping[str, Any]] | None:
    """The first pyproject.toml with a table ``[tool.warp_tiles]``, from the working folder upwards.

    Another user's file in a world-writable folder, such as /tmp, is ignored, because it could name a cache with
    malicious code.

    Raises:
        SettingError: One of these files is not TOML, or its ``tool.warp_tiles`` is not a table.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:  # the working directory was removed
        return None
    while True:
        path = os.path.join(here, FILE)
        table = _table(path)
        if table is not None:
            return Path(path), table
        parent = os.path.dirname(here)
        if parent == here:
            return None
        here = parent


def is_trusted(path: Path, trusted: Iterable[Path]) -> bool:
    """True if one of the trusted folders contains the file itself."""
    return os.path.realpath(path.parent) in map(os.path.realpath, trusted)


def _table(path: str) -> Mapping[str, Any] | None:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or _foreign(path, status):
            return None
        identity = (status.st_mtime_ns, status.st_size)
        known = _read.get(path)
        if known is None or known[0] != identity:
            _read[path] = known = (identity, _parsed(path, read_whole(path, _MAX_BYTES)[0]))
    except FileTooLargeError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}", remedy="make it smaller") from error
    except unless_signalled(OSError):  # there is no file, or it is not readable
        return None
    return known[1]


def _foreign(path: str, status: os.stat_result) -> bool:
    if not hasattr(os, "getuid") or status.st_uid in (0, os.getuid()):
        return False
    return bool(os.stat(os.path.dirname(path)).st_mode & stat.S_IWOTH)


def _parsed(path: str, data: bytes) -> Mapping[str, Any] | None:
    if not re.search(rb"warp[-_]tiles", data):  # no such table; the file need not even be TOML
        return None
    if any(part.count(b".") > _MOST_DOTS for part in _NOT_IN_A_KEY.split(data)):  # tomllib takes their square
        raise SettingError(f"{path} cannot be read: it has keys of hundreds of parts", remedy="make them shorter")
    try:
        tools = tomllib.loads(data.decode("utf-8")).get("tool", {})
        table, misnamed = tools.get("warp_tiles"), "warp-tiles" in tools
    except (ValueError, AttributeError, RecursionError) as error:
        raise SettingError(f"{path} cannot be read: {error}", remedy="make it valid TOML, in UTF-8") from error
    if misnamed:
        raise SettingError(f"{path} has a table [tool.warp-tiles], which nothing reads", "call it [tool.warp_tiles]")
    if table is not None and not isinstance(table, dict):
        raise SettingError(f"tool.warp_tiles in {path} is {shown(table)}", remedy="make it a table of settings")
    return table
