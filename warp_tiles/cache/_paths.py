"""Location, permissions and file names of a cache. This module is cheap to import."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warp_tiles.settings import Settings

LAYOUT = "v1"
_HEX64 = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Returns True if the text is 64 lower-case hex digits."""
    return _HEX64.fullmatch(text) is not None


def default_root() -> Path:
    """The user's cache folder for this package, by the platform's convention. Nothing is created."""
    import platformdirs

    return platformdirs.user_cache_path("warp_tiles", appauthor=False)


def cache_root(settings: Settings) -> Path:
    """Folder of the cache, of the tuning records, and of the stored facts about the toolchain."""
    return settings.cache_dir or default_root()


def foreign_writers(path: Path) -> str | None:
    """The reason why others can write a folder, or ``None`` if only this user can.

    Raises:
        OSError: The folder cannot be examined; ``FileNotFoundError`` if it is missing.
    """
    status = os.stat(path)
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, this process runs as user {os.geteuid()}"
    if status.st_mode & 0o022:
        return f"its permissions {stat.S_IMODE(status.st_mode):#o} let group or others write"
    return None


def modes_in(root: Path, shared: bool) -> tuple[int, int]:
    """Permissions of new folders and files under a root: for the owner only, or those of a shared root.

    Raises:
        OSError: The root of a shared cache cannot be examined.
    """
    if not shared:
        return 0o700, 0o600
    try:
        mode = stat.S_IMODE(os.stat(root).st_mode)
    except FileNotFoundError:
        return 0o700, 0o600
    return mode | 0o700, (mode & 0o666) | 0o600
