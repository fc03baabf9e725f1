"""Maintenance of what lies beside the store: sealed files, precompiled headers, and leftovers of killed processes."""

from __future__ import annotations

import time
from collections.abc import Iterator

from warp_tiles.cache import _maintain
from warp_tiles.cache._documents import Documents
from warp_tiles.cache._folder import Folder
from warp_tiles.cache._maintain import Finding
from warp_tiles.cache._paths import LAYOUT, MODULES, MODULES_SUFFIX
from warp_tiles.util.processes import is_leftover

DOCUMENTS = ("toolchain", f"toolchain/{LAYOUT}", "asked", "runs", "statistics")
HEADERS = ("headers", "cuda_headers")
LOCKS_OF_SEARCHES = "tuning/.locks"


def verify(folder: Folder, *, set_aside: bool) -> Iterator[Finding]:
    """Yield the damage of sealed files and of precompiled headers. Damaged files can be removed or set aside.

    Raises:
        OSError: A folder is refused or cannot be read.
    """
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
    for name in HEADERS if not folder.files.shared else ():
        headers = Folder(folder.root / name, False, folder.problems, ".pch")
        yield from _maintain.verify(headers, set_aside=set_aside).damaged
    yield from _maintain.verify(modules(folder), set_aside=set_aside).damaged


def modules(folder: Folder) -> Folder:
    """The cache of linked modules beside a cache of functions."""
    return Folder(folder.root / MODULES, folder.files.shared, folder.problems, MODULES_SUFFIX)


def sweep(folder: Folder) -> int:
    """Remove the temporary files of killed processes from the folders beside the store. Returns their number.

    Raises:
        OSError: A folder is refused or cannot be read.
    """
    removed, pending = 0, [*DOCUMENTS, *HEADERS, MODULES, "tuning", "failed"]
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
    return removed
