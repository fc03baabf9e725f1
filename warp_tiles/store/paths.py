"""Location and file names of a cache. This module is cheap to import."""

from __future__ import annotations

import os
import re
from pathlib import Path

from warp_tiles.store import LAYOUT, STARTS
from warp_tiles.util.threads import unless_signalled

#: The folders of manifests, payloads and locks below a cache, and the beginning of the locks of running compilers.
KEYS, OBJECTS, LOCKS = f"{LAYOUT}/keys", f"{LAYOUT}/objects", f"{LAYOUT}/locks"
SLOT_PREFIX = "worker-"
_NO_FOLDER = Path(os.devnull) / "warp_tiles"
_HEX64 = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Returns True if the text is 64 lower-case hex digits."""
    return _HEX64.fullmatch(text) is not None


def default_root() -> Path:
    """The user's cache folder for this package, by the platform's convention. Nothing is created.

    Without a home folder, it is a path that cannot be used, and the cache reports that.
    """
    return _of_user("user_cache_path")


def config_folder() -> Path:
    """The user's configuration folder for this package, as :func:`default_root` is the one of the cache."""
    return _of_user("user_config_path")


def _of_user(kind: str) -> Path:
    import platformdirs

    try:
        folder: Path = getattr(platformdirs, kind)("warp_tiles", appauthor=False)
    except unless_signalled(RuntimeError):  # this user has no home folder
        return _NO_FOLDER
    return folder if folder.is_absolute() else _NO_FOLDER  # XDG_CACHE_HOME may be relative


def cache_root(cache_dir: Path | None) -> Path:
    """Folder of the cache, of the tuning records, and of the facts about the toolchain; None for the default."""
    return absolute(cache_dir or default_root())


def start_file(root: Path, script: Path) -> Path:
    """Where the start list of a script lies if no other file is named; ``root`` is the folder of all caches."""
    import hashlib

    identity = hashlib.sha256(os.fsencode(script.resolve())).hexdigest()
    name = "".join(char if char.isalnum() or char in ".-" else "_" for char in script.name)[:80]
    return root / STARTS.folder / f"{name}-{identity[:12]}{STARTS.suffix}"


def absolute(path: Path) -> Path:
    """The absolute path, or the path as it is if the working directory was removed; it then cannot be used."""
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        return Path(path)
