"""The cache's folder: its layout, its permissions, and reads and writes of one entry.

<root>/v1/keys/ab/<key digest>.json         manifest, sealed
<root>/v1/objects/ab/<payload sha256>.ltoir raw payload
<root>/v1/locks/                            one lock per key that is being built, one for changes of the store
<root>/v1/quarantine/                       damaged files, kept for a week
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from warp_tiles.cache._manifest import Entry, Manifest
from warp_tiles.cache._paths import LAYOUT, foreign_writers, is_digest, modes_in
from warp_tiles.cache._report import Problem, Problems
from warp_tiles.cache._sealed import DamagedError
from warp_tiles.errors import CacheError
from warp_tiles.util.files import TEMP_PREFIX, make_private_folders, read_whole, write_atomic
from warp_tiles.util.locks import file_lock

STORE_LOCK = "store"


class Folder:
    """Files of one cache. Methods raise ``OSError`` if the folder cannot be used.

    Args:
        root: The cache's folder.
        allow_shared: Accept a folder that others can write.
        problems: Receives reports of damage.
        suffix: Suffix of payload files.
    """

    def __init__(self, root: Path, allow_shared: bool, problems: Problems, suffix: str = ".ltoir") -> None:
        self.root = root
        self.allow_shared = allow_shared
        self.problems = problems
        self._suffix = suffix
        self.base = root / LAYOUT
        self.keys = self.base / "keys"
        self.objects = self.base / "objects"
        self.locks = self.base / "locks"
        self.quarantine = self.base / "quarantine"
        self.marks = self.base / "marks"

    def key_path(self, digest: str) -> Path:
        """Path of a key's manifest."""
        return self.keys / digest[:2] / f"{digest}.json"

    def object_path(self, sha256: str) -> Path:
        """Path of a payload."""
        return self.objects / sha256[:2] / f"{sha256}{self._suffix}"

    def temporary_path(self) -> Path:
        """An unused path for a file that :meth:`each_temporary` finds. Its folder is created."""
        folder = self.objects / "00"
        make_private_folders(folder, self.modes()[0])
        return folder / f"{TEMP_PREFIX}{uuid.uuid4().hex}"

    def mark(self, name: str, most: int) -> bool:
        """Leave an empty file as a mark, and remove the oldest marks above a number. Returns True if it existed."""
        make_private_folders(self.marks, self.modes()[0])
        try:
            os.close(os.open(self.marks / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, self.modes()[1]))
        except FileExistsError:
            return True
        marks = sorted((status.st_mtime_ns, path) for path, status in _entries(self.marks))
        for _, path in marks[: max(0, len(marks) - most)]:
            self.remove(path)
        return False

    def check_trust(self) -> None:
        """Refuse folders that others can write. Missing folders pass.

        Raises:
            CacheError: Another user owns or can write a folder of the cache, and the cache is not shared.
            OSError: A folder cannot be examined.
        """
        if self.allow_shared:
            return
        for path in (self.root, self.base, self.keys, self.objects):
            try:
                reason = foreign_writers(path)
            except FileNotFoundError:
                continue
            if reason is not None:
                raise CacheError(
                    f"the cache folder {path} is refused: {reason}; whoever can write to it chooses the code that runs",
                    remedy=f"chmod 700 {path}, choose a folder of your own, or set WARP_TILES_CACHE_SHARED=1",
                )

    def modes(self) -> tuple[int, int]:
        """Permissions of new folders and files: for the owner only, or those of a shared root."""
        return modes_in(self.root, self.allow_shared)

    @contextmanager
    def lock(self, name: str, timeout_s: float) -> Iterator[None]:
        """Hold a lock across processes.

        Raises:
            OSError: The lock cannot be created; ``TimeoutError`` if another process holds it for too long.
        """
        folder_mode, file_mode = self.modes()
        make_private_folders(self.locks, folder_mode)
        with file_lock(self.locks / f"{name}.lock", timeout_s, file_mode):
            yield

    def read_manifest(self, digest: str) -> Manifest:
        """Read a key's manifest.

        Raises:
            DamagedError: It is damaged.
            FileNotFoundError: The key is not stored.
        """
        return Manifest.decode(read_whole(self.key_path(digest))[0], digest)

    def read_payload(self, manifest: Manifest, *, full: bool = False) -> bytes:
        """Read and verify a payload.

        Length and CRC-32 are always checked. The SHA-256 is checked too if ``full`` is set or if the file's
        modification time is not the one of the manifest.

        Raises:
            DamagedError: It is damaged.
            FileNotFoundError: The payload is missing.
        """
        payload, status = read_whole(self.object_path(manifest.payload_sha256))
        manifest.check_payload(payload, full=full or status.st_mtime_ns != manifest.payload_mtime_ns)
        return payload

    def read_entry(self, digest: str, *, full: bool = False) -> Entry | None:
        """Read and verify an entry. A damaged entry is set aside and reported.

        Returns:
            The entry, or ``None`` if it is missing or incomplete.
        """
        try:
            manifest = self.read_manifest(digest)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self.set_aside(self.key_path(digest), str(error))
            return None
        try:
            return Entry(digest, self.read_payload(manifest, full=full), manifest)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self.set_aside(self.object_path(manifest.payload_sha256), str(error))
            self.set_aside(self.key_path(digest), None)
            return None

    def set_aside(self, path: Path, reason: str | None) -> None:
        """Move a damaged file to the quarantine, or remove it if that fails. Report it if there is a reason."""
        if reason is not None:
            self.problems.damage(str(path), reason)
        target = self.quarantine / f"{time.time_ns():x}-{path.name}"
        try:
            make_private_folders(self.quarantine, self.modes()[0])
            os.replace(path, target)
            os.utime(target)
        except OSError:
            with suppress(OSError):
                os.unlink(path)

    def touch(self, digest: str) -> None:
        """Record a use of a key for the order of eviction, as far as permissions allow."""
        path, now = self.key_path(digest), time.time_ns()
        try:
            os.utime(path, ns=(now, now))  # finer than the kernel's own clock tick
        except PermissionError:  # another user's file in a shared cache: only "now" may be set
            with suppress(OSError):
                os.utime(path)
        except OSError:
            pass

    def store(self, manifest: Manifest, payload: bytes) -> Manifest:
        """Store an entry durably, the payload first. The caller holds the store lock.

        Returns:
            The stored manifest.
        """
        folder_mode, file_mode = self.modes()
        place = self.object_path(manifest.payload_sha256)
        make_private_folders(place.parent, folder_mode)
        status = self._same_payload(place, payload)
        if status is None:
            status = write_atomic(place, payload, file_mode)
        stored = replace(manifest, payload_mtime_ns=status.st_mtime_ns)
        path = self.key_path(manifest.key.digest)
        make_private_folders(path.parent, folder_mode)
        write_atomic(path, stored.encode(), file_mode)
        self.touch(manifest.key.digest)
        return stored

    def _same_payload(self, place: Path, payload: bytes) -> os.stat_result | None:
        try:
            found, status = read_whole(place)
        except OSError:
            return None
        if found == payload:
            return status
        self.set_aside(place, "payload does not match its name")
        return None

    def each_key(self) -> Iterator[tuple[str, os.stat_result]]:
        """Digests and file status of the stored keys."""
        for path, status in _files(self.keys):
            if path.suffix == ".json" and is_digest(path.stem):
                yield path.stem, status

    def each_object(self) -> Iterator[tuple[str, os.stat_result]]:
        """Digests and file status of the stored payloads."""
        for path, status in _files(self.objects):
            if path.suffix == self._suffix and is_digest(path.stem):
                yield path.stem, status

    def each_temporary(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Temporary files of running and of interrupted writers."""
        for folder in (self.keys, self.objects):
            for path, status in _files(folder):
                if path.name.startswith(TEMP_PREFIX):
                    yield path, status

    def each_quarantined(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Damaged files in the quarantine."""
        yield from _entries(self.quarantine)

    def each_lock(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Lock files of keys."""
        for path, status in _entries(self.locks):
            if is_digest(path.stem):
                yield path, status

    def size_bytes(self) -> int:
        """Bytes of all stored, temporary and quarantined files."""
        parts = (_files(self.keys), _files(self.objects), _entries(self.quarantine))
        return sum(status.st_size for part in parts for _, status in part)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        with suppress(FileNotFoundError):
            os.unlink(path)


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for shard in _scan(folder):
        if shard.is_dir(follow_symlinks=False):
            yield from _entries(Path(shard.path))


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for item in _scan(folder):
        with suppress(FileNotFoundError):
            if not item.is_dir(follow_symlinks=False):
                yield Path(item.path), item.stat(follow_symlinks=False)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except FileNotFoundError:
        return []


def lock_problem(root: Path, error: OSError) -> Problem:
    """The problem of a lock that could not be taken. The build continues without it."""
    return Problem(
        "lock",
        str(root),
        f"builds are not coordinated between processes ({error.strerror or error})",
        "check whether another process hangs, or choose a cache folder on a local file system",
    )
