"""Maintenance of a cache: sizes, listing, verification, eviction, clearing.

The functions raise ``OSError`` if a folder is refused, or cannot be read or changed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from warp_tiles.store import KINDS, LAYOUT, MODULES, SEALED, Kind
from warp_tiles.store.documents import DamagedError, sealed_documents
from warp_tiles.store.folder import Folder
from warp_tiles.store.manifest import Manifest
from warp_tiles.store.paths import KEYS
from warp_tiles.util.files import DAY_S, TEMP_PREFIX, is_leftover
from warp_tiles.util.threads import suppressed, unless_signalled


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
        """True if nothing is damaged."""
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


def below(folder: Folder, place: str) -> Iterator[tuple[str, os.stat_result]]:
    """All files below a folder, without those that a shared cache keeps from this user."""
    with _others_of_shared(folder):
        yield from folder.files.files(place)
        for inner in folder.files.folders(place):
            yield from below(folder, inner)


def sizes(folder: Folder) -> dict[str, int]:
    """The bytes of everything below the root of all caches, by part; empty for an inner cache."""
    found: Counter[str] = Counter()
    for kind in () if folder.kind.folder else KINDS:
        found[kind.part] += sum(status.st_size for _, status in below(folder, kind.folder or LAYOUT))
    return dict(found)


def verify(folder: Folder, *, remove: bool) -> VerifyReport:
    """Check every manifest and payload by SHA-256."""
    payloads: dict[str, str] = {}  # by key
    state: dict[str, str | None] = {}  # the fault of each stored payload
    damaged: dict[str, str] = {}  # by name of the file
    for digest, _ in folder.each_key():
        try:
            payloads[digest] = folder.load(digest).payload_sha256
        except FileNotFoundError:
            pass  # removed meanwhile
        except DamagedError as error:
            damaged[folder.file(digest)] = str(error)
    checked = len(payloads) + len(damaged)
    for payload in dict.fromkeys([*payloads.values(), *(digest for digest, _ in folder.each_object())]):
        with suppress(FileNotFoundError):
            state[payload] = _payload_damage(folder, payload)
    damaged |= {folder.object_name(payload): reason for payload, reason in state.items() if reason}
    for name, reason in damaged.items() if remove else ():
        folder.remove_damaged(name, reason)
    return VerifyReport(
        checked=checked,
        sound=sum(state.get(payload, "") is None for payload in payloads.values()),
        damaged=tuple(Finding(folder.files.path(name), reason) for name, reason in damaged.items()),
        missing=tuple(
            Finding(folder.path(digest), f"its payload {payload} is not stored")
            for digest, payload in payloads.items()
            if payload not in state
        ),
        unreferenced=len(state.keys() - payloads.values()),
        unfinished=sum(TEMP_PREFIX in name for name, _ in below(folder, LAYOUT)),
    )


def _payload_damage(folder: Folder, sha256: str) -> str | None:
    try:
        payload, _ = folder.read_object(sha256)
    except DamagedError as error:
        return str(error)
    return None if hashlib.sha256(payload).hexdigest() == sha256 else "payload does not match its SHA-256"


def collect(folder: Folder, max_bytes: int, keep: str | None = None) -> GcReport:
    """Remove unreferenced payloads, then the least recently used keys. The caller holds the store lock.

    Args:
        max_bytes: Keys are removed until the size is at most this; -1 to remove all.
        keep: A key that stays in any case.
    """
    report = GcReport(size_bytes=folder.size_bytes())

    def drop(name: str, size: int) -> int:
        folder.files.remove(name)
        report.size_bytes -= size
        report.freed_bytes += size
        return 1

    keys: list[tuple[int, str, int, str]] = []  # used_at_ns, key, size of its manifest, payload
    complete = True
    for digest, status in folder.each_key():
        payload = ""
        try:
            if (manifest := folder.read(digest)) is None:
                continue
            payload = manifest.payload_sha256
        except unless_signalled(OSError):
            complete = False  # this key may refer to any payload
        keys.append((status.st_mtime_ns, digest, status.st_size, payload))
    references = Counter(payload for *_, payload in keys)
    sizes = {digest: status.st_size for digest, status in folder.each_object()}

    def drop_unreferenced(payloads: Iterable[str]) -> None:
        for payload in payloads:
            if (complete or max_bytes < 0) and not references[payload] and payload in sizes:
                report.payloads += drop(folder.object_name(payload), sizes[payload])

    drop_unreferenced(sizes)
    for _, digest, size, payload in sorted(keys):
        if report.size_bytes <= max_bytes:
            break
        if digest != keep:
            drop(folder.file(digest), size)
            folder.files.sync(f"{KEYS}/{digest[:2]}")  # never a durable key without its payload
            report.removed.append(digest)
            references[payload] -= 1
            drop_unreferenced([payload])
    return report


# ---- all kinds


def _beside(folder: Folder) -> list[Folder]:
    """The caches beside the cache of functions."""
    kinds = () if folder.kind.folder else (MODULES,)  # nothing lies beside an inner cache
    return [Folder(folder.files.root, kind, folder.files.shared, folder.problems) for kind in kinds]


@contextmanager
def _others_of_shared(folder: Folder) -> Iterator[None]:
    """Skip a folder that is refused or of another user, if the cache is shared: it belongs to the first user."""
    try:
        yield
    except PermissionError:
        if not folder.files.shared:
            raise


def verify_beside(folder: Folder, *, remove: bool) -> Iterator[Finding]:
    """Yield the damage of sealed files and linked modules. Damaged files can be removed."""
    for kind in () if folder.kind.folder else SEALED:
        documents = sealed_documents(folder.root, kind, shared=folder.files.shared)
        with _others_of_shared(folder):
            for name in documents.names():
                try:
                    documents.load(name)
                except DamagedError as error:
                    yield Finding(documents.path(name), str(error))
                    if remove:
                        documents.read(name)
                except FileNotFoundError:
                    pass  # removed meanwhile
    for cache in _beside(folder):
        yield from verify(cache, remove=remove).damaged


def sweep(folder: Folder, *places: str) -> GcReport:
    """Remove what killed processes left: temporary files, locks that were not taken for a day, and holders' names."""
    report = GcReport()
    for place in places:
        for name, status in list(below(folder, place)):
            lock, _, suffix = name.rpartition(".")
            if is_leftover(name.rpartition("/")[2], status.st_mtime):
                folder.files.remove(name)
                report.leftovers += 1
                report.freed_bytes += status.st_size
            elif suffix == "holder" or (suffix == "lock" and time.time() - status.st_mtime > DAY_S):
                # a held lock stays, and one without file locking
                with suppressed(OSError), folder.files.lock(f"{lock}.lock", 0.0):
                    folder.files.remove(name)
    return report


def collect_all(folder: Folder, max_bytes: int, cleared: Collection[Kind] = ()) -> GcReport:
    """Collect the cache of functions, what killed processes left of all kinds, and then the caches beside it.

    Args:
        cleared: The kinds that are removed as a whole. Of the other caches, payloads without a key are.
    """
    swept = sweep(folder, *(kind.folder or LAYOUT for kind in KINDS))
    report = collect(folder, -1 if folder.kind in cleared else max_bytes)
    report.include(swept)
    for cache in _beside(folder):
        with _others_of_shared(cache):
            if cache.files.folders(LAYOUT):
                with cache.changing():
                    report.include(collect(cache, -1 if cache.kind in cleared else sys.maxsize))
    for kind in cleared:
        for name, status in list(below(folder, kind.folder)) if kind.part == "facts" else ():
            if not name.endswith((".lock", ".holder")):  # another process may hold it
                folder.files.remove(name)
                report.freed_bytes += status.st_size
    return report
