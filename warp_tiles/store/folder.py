"""The cache's folder: its layout, its permissions, reads and writes of one entry, and maintenance.

<root>/v2/keys/ab/<key digest>.json         manifest, sealed
<root>/v2/objects/ab/<payload sha256>.ltoir raw payload
<root>/v2/locks/                            one lock per key that is being built, one for changes of the store

Maintenance raises ``OSError`` if a folder is refused, or cannot be read or changed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from warp_tiles.errors import CacheError, suppressed, unless_signalled
from warp_tiles.store import (
    FORMER,
    FORMER_NAMES,
    JSON,
    KEYS,
    KINDS,
    LAYOUT,
    LOCKS,
    MODULES,
    OBJECTS,
    SEALED,
    Kind,
    is_digest,
)
from warp_tiles.store.documents import DamagedError, Documents, Faults, read_bounded, sealed_documents
from warp_tiles.store.key import MAX_MANIFEST_BYTES, Entry, Manifest
from warp_tiles.util.files import DAY_S, TEMP_PREFIX, is_leftover
from warp_tiles.util.trusted_folder import NoLocksError, RefusedFolderError


@dataclass(frozen=True)
class CacheInfo:
    """Sizes and counts of a cache.

    Attributes:
        payloads: Number of stored payloads; keys with the same payload share one.
        size_bytes: Size of the functions, which count towards the bound.
        parts: The bytes of everything below the root, by the parts of :data:`KINDS`; empty for an inner cache.
    """

    root: Path
    exists: bool
    entries: int
    payloads: int
    payload_bytes: int
    size_bytes: int
    max_bytes: int
    parts: Mapping[str, int]
    total_bytes: int


@dataclass(frozen=True)
class EntryInfo:
    """A stored entry without its payload. Its last use is in nanoseconds since 1970 (UTC)."""

    manifest: Manifest
    used_at_ns: int

    @property
    def key(self) -> str:
        return self.manifest.key.digest


@dataclass(frozen=True)
class Finding:
    """One fault that verification found."""

    path: Path
    reason: str


@dataclass(frozen=True)
class VerifyReport:
    """Outcome of a verification.

    Attributes:
        sound: Number of keys with a sound manifest and payload.
        damaged: Manifests and payloads that differ from the stored ones. A read rejects them.
        missing: Keys without a payload. A read treats them as missing.
        unreferenced: Number of payloads without a key. ``gc`` removes them.
        unfinished: Number of temporary files of writers. ``gc`` removes them after a day.
    """

    checked: int
    sound: int
    damaged: tuple[Finding, ...]
    missing: tuple[Finding, ...]
    unreferenced: int
    unfinished: int

    @property
    def ok(self) -> bool:
        return not self.damaged


@dataclass
class GcReport:
    """The result of a collection. What lies beside the functions counts, too.

    Attributes:
        size_bytes: Size of the remaining functions.
        total_bytes: Size of everything that remains below the root.
    """

    removed: list[str] = field(default_factory=list)
    payloads: int = 0
    leftovers: int = 0
    freed_bytes: int = 0
    size_bytes: int = 0
    total_bytes: int = 0

    def include(self, other: GcReport) -> None:
        """Count what was removed from another cache."""
        self.removed += other.removed
        self.payloads += other.payloads
        self.leftovers += other.leftovers
        self.freed_bytes += other.freed_bytes


class Folder(Documents[Manifest]):
    """Files of one cache: manifests, which are documents named after their keys, and payloads.

    Methods raise ``OSError`` if the folder cannot be used or is refused. See :class:`warp_tiles.store.cache.Cache` for
    the arguments. ``faults`` receives reports of damage.
    """

    lock_name = f"{LOCKS}/store.lock"

    def __init__(self, root: Path, kind: Kind, allow_shared: bool, faults: Faults) -> None:
        super().__init__(root, kind, Manifest.decode, Manifest.encode, shared=allow_shared)
        self.root = self.files.path("")
        self.faults = faults
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
        self.faults.add("lock", self.files.root if isinstance(error, NoLocksError) else self.root, error)

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
        self.faults.add("damage", self.files.path(name), reason)
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

    # ---- maintenance

    def below(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        """All files below a folder, without those that a shared cache keeps from this user."""
        with self._others_of_shared():
            yield from self.files.files(folder)
            for inner in self.files.folders(folder):
                yield from self.below(inner)

    def sizes(self) -> dict[str, int]:
        """The bytes of everything below the root of all caches, by part; empty for an inner cache."""
        sizes: Counter[str] = Counter()
        for kind in () if self.kind.folder else KINDS:
            sizes[kind.part] += sum(status.st_size for _, status in self._files_of(kind))
        return dict(sizes)

    def _files_of(self, kind: Kind) -> Iterable[tuple[str, os.stat_result]]:
        """The files of a kind: all below its folder, but of a former version's those that it named."""
        if kind not in FORMER:
            return self.below(kind.location)
        files: list[tuple[str, os.stat_result]] = []
        with suppressed(OSError):  # a refused folder is not removed
            files += self.below(kind.folder)
        return [(name, status) for name, status in files if FORMER_NAMES.fullmatch(name.rpartition("/")[2])]

    def verify(self, *, remove: bool) -> VerifyReport:
        """Check every manifest and payload by SHA-256."""
        payloads: dict[str, str] = {}  # by key
        state: dict[str, str | None] = {}  # the fault of each stored payload
        damaged: dict[str, str] = {}  # by name of the file
        for digest, _ in self.each_key():
            try:
                payloads[digest] = self.load(digest).payload_sha256
            except FileNotFoundError:
                pass  # removed meanwhile
            except DamagedError as error:
                damaged[self.file(digest)] = str(error)
        checked = len(payloads) + len(damaged)
        for payload in dict.fromkeys([*payloads.values(), *(digest for digest, _ in self.each_object())]):
            with suppress(FileNotFoundError):
                state[payload] = self._payload_damage(payload)
        damaged |= {self.object_name(payload): reason for payload, reason in state.items() if reason}
        for name, reason in damaged.items() if remove else ():
            self.remove_damaged(name, reason)
        return VerifyReport(
            checked=checked,
            sound=sum(state.get(payload, "") is None for payload in payloads.values()),
            damaged=tuple(Finding(self.files.path(name), reason) for name, reason in damaged.items()),
            missing=tuple(
                Finding(self.path(digest), f"its payload {payload} is not stored")
                for digest, payload in payloads.items()
                if payload not in state
            ),
            unreferenced=len(state.keys() - payloads.values()),
            unfinished=sum(TEMP_PREFIX in name for name, _ in self.below(LAYOUT)),
        )

    def _payload_damage(self, sha256: str) -> str | None:
        try:
            payload, _ = self.read_object(sha256)
        except DamagedError as error:
            return str(error)
        return None if hashlib.sha256(payload).hexdigest() == sha256 else "payload does not match its SHA-256"

    def collect(self, max_bytes: int, keep: str | None = None) -> GcReport:
        """Remove unreferenced payloads, then the least recently used keys. The caller holds the store lock.

        Keys but ``keep`` are removed until the size is at most ``max_bytes``; -1 removes all.
        """
        report = GcReport(size_bytes=self.size_bytes())

        def drop(name: str, size: int) -> int:
            self.files.remove(name)
            report.size_bytes -= size
            report.freed_bytes += size
            return 1

        keys: list[tuple[int, str, int, str]] = []  # used_at_ns, key, size of its manifest, payload
        complete = True
        for digest, status in self.each_key():
            payload = ""
            try:
                if (manifest := self.read(digest)) is None:
                    continue
                payload = manifest.payload_sha256
            except unless_signalled(OSError):
                complete = False  # this key may refer to any payload
            keys.append((status.st_mtime_ns, digest, status.st_size, payload))
        references = Counter(payload for *_, payload in keys)
        sizes = {digest: status.st_size for digest, status in self.each_object()}

        def drop_unreferenced(payloads: Iterable[str]) -> None:
            for payload in payloads:
                if (complete or max_bytes < 0) and not references[payload] and payload in sizes:
                    report.payloads += drop(self.object_name(payload), sizes[payload])

        drop_unreferenced(sizes)
        for _, digest, size, payload in sorted(keys):
            if report.size_bytes <= max_bytes:
                break
            if digest != keep:
                drop(self.file(digest), size)
                self.files.sync(f"{KEYS}/{digest[:2]}")  # never a durable key without its payload
                report.removed.append(digest)
                references[payload] -= 1
                drop_unreferenced([payload])
        return report

    def _beside(self) -> list[Folder]:
        """The caches beside the cache of functions."""
        kinds = () if self.kind.folder else (MODULES,)  # nothing lies beside an inner cache
        return [Folder(self.files.root, kind, self.files.shared, self.faults) for kind in kinds]

    @contextmanager
    def _others_of_shared(self) -> Iterator[None]:
        """Skip a folder that is refused or of another user, if the cache is shared: it belongs to the first user."""
        try:
            yield
        except PermissionError:
            if not self.files.shared:
                raise

    def verify_beside(self, *, remove: bool) -> Iterator[Finding]:
        """Yield the damage of sealed files and linked modules. Damaged files can be removed."""
        for kind in () if self.kind.folder else SEALED:
            documents = sealed_documents(self.root, kind, shared=self.files.shared)
            with self._others_of_shared():
                for name in documents.names():
                    try:
                        documents.load(name)
                    except DamagedError as error:
                        yield Finding(documents.path(name), str(error))
                        if remove:
                            documents.read(name)
                    except FileNotFoundError:
                        pass  # removed meanwhile
        for cache in self._beside():
            yield from cache.verify(remove=remove).damaged

    def sweep(self, *folders: str) -> GcReport:
        """Remove what killed processes left: temporary files, locks not taken for a day, and holders' names."""
        report = GcReport()
        for folder in folders:
            for name, status in list(self.below(folder)):
                lock, _, suffix = name.rpartition(".")
                if is_leftover(name.rpartition("/")[2], status.st_mtime):
                    self.files.remove(name)
                    report.leftovers += 1
                    report.freed_bytes += status.st_size
                elif suffix == "holder" or (suffix == "lock" and time.time() - status.st_mtime > DAY_S):
                    # a held lock stays, and one without file locking
                    with suppressed(OSError), self.files.lock(f"{lock}.lock", 0.0):
                        self.files.remove(name)
        return report

    def collect_all(self, max_bytes: int, cleared: Collection[Kind] = ()) -> GcReport:
        """Collect the cache of functions, what killed processes left of all kinds, and then the caches beside it.

        Some kinds are ``cleared`` as a whole. Of the other caches, payloads without a key are removed.
        """
        swept = self.sweep(*(kind.location for kind in KINDS if kind not in FORMER))
        report = self.collect(-1 if self.kind in cleared else max_bytes)
        report.include(swept)
        for cache in self._beside():
            with cache._others_of_shared():
                if cache.files.folders(LAYOUT):
                    with cache.changing():
                        report.include(cache.collect(-1 if cache.kind in cleared else sys.maxsize))
        for kind in cleared:
            if kind in FORMER:
                self._remove_former(kind, report)
                continue
            for name, status in () if kind.entries else list(self.below(kind.location)):
                if not name.endswith((".lock", ".holder")):  # another process may hold it
                    self.files.remove(name)
                    report.freed_bytes += status.st_size
        return report

    def _remove_former(self, kind: Kind, report: GcReport) -> None:
        """Remove what a former version left, as far as this user may, and the folders that become empty."""
        for name, status in (former := self._files_of(kind)):
            with suppressed(OSError):
                self.files.remove(name)
                report.freed_bytes += status.st_size
        if former:
            self.files.remove_empty(kind.folder)


def refused(error: RefusedFolderError) -> CacheError:
    return CacheError(
        f"{error.strerror}; whoever can write to it chooses the code that runs",
        remedy=f"chmod 700 {error.path}, remove a link there, choose a folder of your own, "
        "or set WARP_TILES_CACHE_SHARED=1 if the other users may choose your code",
    )
