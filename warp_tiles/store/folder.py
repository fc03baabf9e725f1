"""The cache's folder: its layout, its permissions, and reads and writes of one entry.

<root>/v1/keys/ab/<key digest>.json         manifest, sealed
<root>/v1/objects/ab/<payload sha256>.ltoir raw payload
<root>/v1/locks/                            one lock per key that is being built, one for changes of the store
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from warp_tiles.errors import CacheError
from warp_tiles.store import JSON, Kind
from warp_tiles.store.documents import DamagedError, Documents, Problems, read_bounded
from warp_tiles.store.manifest import MAX_MANIFEST_BYTES, Entry, Manifest
from warp_tiles.store.paths import KEYS, LOCKS, OBJECTS, is_digest
from warp_tiles.util.threads import suppressed
from warp_tiles.util.trusted_folder import NoLocksError, RefusedFolderError


class Folder(Documents[Manifest]):
    """Files of one cache: manifests, which are documents named after their keys, and payloads.

    Methods raise ``OSError`` if the folder cannot be used or is refused. See :class:`warp_tiles.store.cache.Cache` for
    the arguments. ``problems`` receives reports of damage.
    """

    lock_name = f"{LOCKS}/store.lock"

    def __init__(self, root: Path, kind: Kind, allow_shared: bool, problems: Problems) -> None:
        super().__init__(root, kind, Manifest.decode, Manifest.encode, shared=allow_shared)
        self.root = self.files.path("")
        self.problems = problems
        self.most_bytes = MAX_MANIFEST_BYTES

    def file(self, name: str) -> str:
        return f"{KEYS}/{name[:2]}/{name}{JSON}"

    def object_name(self, sha256: str) -> str:
        return f"{OBJECTS}/{sha256[:2]}/{sha256}{self.kind.suffix}"

    def check_trust(self) -> None:
        """Raise a RefusedFolderError for folders that others can write, and links in their place. Missing ones pass."""
        self.files.check()
        for folder in (KEYS, OBJECTS, LOCKS):
            self.files.folders(folder)

    def lock(
        self, name: str, timeout_s: float, waiting: Callable[[str], None] | None = None
    ) -> AbstractContextManager[None]:
        """Hold a lock across processes, see :meth:`TrustedFolder.lock`."""
        return self.files.lock(f"{LOCKS}/{name}.lock", timeout_s, waiting=waiting)

    def _unusable(self, name: str, error: Exception) -> None:
        raise error

    def _unlocked(self, error: OSError) -> None:
        """Report that a change is made without the lock, which at worst causes a later miss."""
        self.problems.add("lock", self.files.root if isinstance(error, NoLocksError) else self.root, error)

    def read_object(self, sha256: str) -> tuple[bytes, os.stat_result]:
        """Read a payload without verifying it. Raises DamagedError if it is larger than a payload can be."""
        return read_bounded(self.files, self.object_name(sha256), self.kind.most_bytes)

    def read_entry(self, digest: str, *, full: bool = False) -> Entry | None:
        """Read and verify an entry. A damaged entry is removed and reported.

        Length and CRC-32 of the payload are always checked. Its SHA-256 is checked too if ``full`` is set, or if the
        file's modification time is not the one of the manifest. None if it is missing or incomplete.
        """
        manifest = self.read(digest)
        if manifest is None:
            return None
        try:
            payload, status = self.read_object(manifest.payload_sha256)
            manifest.check_payload(payload, full=full or status.st_mtime_ns != manifest.payload_mtime_ns)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self.remove_damaged(self.object_name(manifest.payload_sha256), str(error))
            with suppressed(OSError):
                self.files.remove(self.file(digest))
            return None
        return Entry(payload, manifest)

    def remove_damaged(self, name: str, reason: str) -> None:
        """Remove and report a damaged file."""
        self.problems.add("damage", self.files.path(name), reason)
        with suppressed(OSError):
            self.files.remove(name)

    def store_entry(self, manifest: Manifest, payload: bytes) -> Manifest:
        """Store an entry durably, the payload first. Returns the stored manifest. The caller holds the store lock."""
        name = self.object_name(manifest.payload_sha256)
        status = None
        with suppressed(OSError, DamagedError):
            known, status = self.read_object(manifest.payload_sha256)
            if known != payload:
                self.remove_damaged(name, "payload does not match its name")
                status = None
        if status is None:
            status = self.files.write(name, payload)
        stored = replace(manifest, payload_mtime_ns=status.st_mtime_ns)
        self.files.write(self.file(manifest.key.digest), stored.encode())
        self.touch(manifest.key.digest)
        return stored

    def each_key(self) -> Iterator[tuple[str, os.stat_result]]:
        """Digests and file status of the stored keys."""
        return self._each(KEYS, JSON)

    def each_object(self) -> Iterator[tuple[str, os.stat_result]]:
        """Digests and file status of the stored payloads."""
        return self._each(OBJECTS, self.kind.suffix)

    def _each(self, folder: str, suffix: str) -> Iterator[tuple[str, os.stat_result]]:
        for name, status in self._sharded(folder):
            digest = name.rpartition("/")[2].removesuffix(suffix)
            if name.endswith(suffix) and is_digest(digest):
                yield digest, status

    def size_bytes(self) -> int:
        """Bytes of all stored and temporary files."""
        return sum(status.st_size for folder in (KEYS, OBJECTS) for _, status in self._sharded(folder))

    def _sharded(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        for shard in self.files.folders(folder):
            yield from self.files.files(shard)


def refused(error: RefusedFolderError) -> CacheError:
    """The error of a command for a folder that is refused."""
    return CacheError(
        f"{error.strerror}; whoever can write to it chooses the code that runs",
        remedy=f"chmod 700 {error.path}, remove a link there, choose a folder of your own, "
        "or set WARP_TILES_CACHE_SHARED=1 if the other users may choose your code",
    )
