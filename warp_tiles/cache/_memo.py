"""Digests of toolchain files, cached by the files' status.

A compiler library of 90 MB takes 50 ms to hash and hardly ever changes. A digest is taken again when path, size,
modification or change time, inode or device differ. A program cannot set the change time, so a replacement under the
old modification time is detected.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from warp_tiles.cache._documents import Documents
from warp_tiles.cache._paths import LAYOUT, absolute, is_digest
from warp_tiles.util.files import sha256_of as _hash_file

#: The largest number of records. The oldest are removed first.
MAX_RECORDS = 256
#: A file that changed this recently may change again within one clock tick, so its digest is not stored.
SETTLE_NS = 2_000_000_000
_NAME = "digests"


class FileDigests:
    """SHA-256 of files, cached between processes. If the memo cannot be read or written, only time is lost.

    Args:
        root: The cache's folder. It is first accessed when a digest is requested.
        folder: The memo's folder, by name below the root.
        allow_shared: Accept a root that others can write. The memo itself is for this user alone.
    """

    def __init__(self, root: Path, folder: str = "", *, allow_shared: bool = False) -> None:
        place = f"{folder}/{LAYOUT}" if folder else LAYOUT
        self._documents = Documents(absolute(root), place, shared=allow_shared)
        self._records: dict[str, str] | None = None
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """True if no digest is stored, as at the first use on a machine."""
        return not self._records and not self._documents.names()

    def digest(self, path: str | os.PathLike[str]) -> str:
        """SHA-256 of one file, hex.

        Raises:
            OSError: The file cannot be read.
        """
        return self._remembered("file", {"": path}, lambda paths: _hash_file(paths[""]))

    def digest_many(self, files: Mapping[str, str | os.PathLike[str]]) -> str:
        """One SHA-256 over the names and contents of several files, hex.

        Args:
            files: A file for each name, such as a path relative to an include folder. Only names and contents count,
                not the order of the files or their folders.

        Raises:
            OSError: A file cannot be read.
        """
        return self._remembered("group", files, _hash_group)

    def _remembered(
        self,
        kind: str,
        files: Mapping[str, str | os.PathLike[str]],
        take: Callable[[Mapping[str, str | os.PathLike[str]]], str],
    ) -> str:
        identity, newest_ns = _identity(kind, files)
        with self._lock:
            if self._records is None:
                self._records = self._load()
            known = self._records.get(identity)
        if known is not None:
            return known
        digest = take(files)
        after, _ = _identity(kind, files)
        if after == identity and time.time_ns() - newest_ns > SETTLE_NS:
            self._remember(identity, digest)
        return digest

    def _load(self) -> dict[str, str]:
        records = (self._documents.read(_NAME) or {}).get("records")
        if not isinstance(records, list):
            return {}
        return {
            row[0]: row[1]
            for row in records
            if isinstance(row, list)
            and len(row) == 2
            and all(isinstance(part, str) and is_digest(part) for part in row)
        }

    def _remember(self, identity: str, digest: str) -> None:
        with self._lock:
            merged = {**self._load(), **(self._records or {})}  # another process may have added some
            merged.pop(identity, None)
            merged[identity] = digest
            self._records = dict(list(merged.items())[-MAX_RECORDS:])
            self._documents.write(_NAME, {"records": [list(row) for row in self._records.items()]})


def _identity(kind: str, files: Mapping[str, str | os.PathLike[str]]) -> tuple[str, int]:
    """Digest of the status of the files, and the newest of their change times."""
    rows: list[tuple[object, ...]] = []
    newest_ns = 0
    for name in sorted(files):
        path = os.fspath(files[name])
        if not os.path.isabs(path):
            path = os.path.abspath(path)
        status = os.stat(path)
        newest_ns = max(newest_ns, status.st_ctime_ns)
        state = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
        rows.append((name, path, *state))
    return hashlib.sha256(repr((kind, rows)).encode("utf-8", "surrogatepass")).hexdigest(), newest_ns


def _hash_group(files: Mapping[str, str | os.PathLike[str]]) -> str:
    hasher = hashlib.sha256(b"warp_tiles file group\0")
    for name in sorted(files):
        label = name.encode("utf-8", "surrogatepass")
        hasher.update(len(label).to_bytes(8, "big") + label + bytes.fromhex(_hash_file(files[name])))
    return hasher.hexdigest()
