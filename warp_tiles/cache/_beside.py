"""Maintenance of what lies beside the store: sealed files, precompiled headers, and leftovers of killed processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from warp_tiles.cache import _maintain
from warp_tiles.cache._documents import Documents
from warp_tiles.cache._folder import Folder
from warp_tiles.cache._maintain import Finding
from warp_tiles.cache._paths import HEADERS_FOR_CPU, HEADERS_FOR_GPU, HEADERS_SUFFIX, LAYOUT, MODULES, MODULES_SUFFIX
from warp_tiles.util.processes import is_leftover

DOCUMENTS = ("toolchain", f"toolchain/{LAYOUT}", "asked", "runs", "statistics")
LOCKS_OF_SEARCHES = "tuning/.locks"


def verify(folder: Folder, *, set_aside: bool) -> Iterator[Finding]:
    """Yield the damage of sealed files and of precompiled headers. Damaged files can be removed or set aside.

    Raises:
        OSError: A folder is refused or cannot be read.
    """
    if folder.files.folder:
        return  # nothing lies beside an inner cache
    for name in DOCUMENTS:
        documents = Documents(folder.root, name, shared=folder.files.shared)
        try:
            damaged = documents.damage()
        except PermissionError:  # a folder that is refused, or of another user
            if not folder.files.shared:  # in a shared cache, they belong to the first user
                raise
            continue
        for path, reason in damaged:
            if set_aside:
                documents.read(path.stem)
            yield Finding(path, reason)
    for cache in caches(folder):
        yield from _maintain.verify(cache, set_aside=set_aside).damaged


def caches(folder: Folder) -> Iterator[Folder]:
    """The caches beside the cache of functions: linked modules, and precompiled headers, which are never shared."""
    beside = [(MODULES, MODULES_SUFFIX)]
    if not folder.files.shared:
        beside += [(HEADERS_FOR_CPU, HEADERS_SUFFIX), (HEADERS_FOR_GPU, HEADERS_SUFFIX)]
    for name, suffix in beside:
        yield Folder(folder.files.root, folder.files.shared, folder.problems, suffix, name)


def clear_modules(folder: Folder) -> None:
    """Remove every linked module.

    Raises:
        OSError: The folder is refused or cannot be changed.
    """
    modules = Folder(folder.files.root, folder.files.shared, folder.problems, MODULES_SUFFIX, MODULES)
    if modules.files.folders(LAYOUT):
        with modules.changing():
            _maintain.clear(modules)


def sweep(folder: Folder) -> int:
    """Remove what killed processes left beside the store: temporary files, payloads without a key, names of holders.

    Returns:
        The number of files.

    Raises:
        OSError: A folder is refused or cannot be read.
    """
    if folder.files.folder:
        return 0
    removed, pending = 0, [*DOCUMENTS, "tuning", "failed"]
    while pending:
        place = pending.pop()
        try:
            pending += [inner for inner in folder.files.folders(place) if inner not in DOCUMENTS]
            for name, status in folder.files.files(place):
                if is_leftover(name.rpartition("/")[2], status.st_mtime):
                    folder.files.remove(name)
                    removed += 1
        except PermissionError:
            if not folder.files.shared:
                raise
    _maintain.drop_idle_locks(folder.files, folder.files.files(LOCKS_OF_SEARCHES), time.time())
    for cache in caches(folder):
        try:
            if cache.files.folders(LAYOUT):
                with cache.changing():
                    report = _maintain.collect(cache, max_bytes=sys.maxsize)
                removed += report.payloads + report.leftovers
        except PermissionError:
            if not folder.files.shared:
                raise
    return removed
