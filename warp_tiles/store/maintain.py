"""Maintenance of a cache: sizes, listing, verification, eviction, clearing.

The functions raise ``OSError`` if a folder is refused, or cannot be read or changed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from warp_tiles.store.folder import Folder
from warp_tiles.store.manifest import Manifest
from warp_tiles.store.paths import (
    ASKED_HEADERS,
    HEADERS,
    HEADERS_SUFFIX,
    KEYS,
    LAYOUT,
    MODULES,
    MODULES_SUFFIX,
    STARTS,
)
from warp_tiles.store.sealed import DamagedError, Documents
from warp_tiles.util.processes import DAY_S, TEMP_PREFIX, is_leftover
from warp_tiles.util.threads import raise_if_signalled, suppressed
from warp_tiles.util.trusted_folder import TrustedFolder

DOCUMENTS = ("toolchain", f"toolchain/{LAYOUT}", "asked", ASKED_HEADERS)
#: Everything below the root of all caches, in the user's words.
PARTS = {
    "functions": (LAYOUT,),
    "linked_modules": (MODULES,),
    "precompiled_headers": (HEADERS,),
    "tuning_records": ("tuning",),
    "facts": (FACTS := ("toolchain", "asked", "failed", "stats", STARTS)),
}
LOCKS_OF_SEARCHES = "tuning/.locks"


@dataclass(frozen=True)
class CacheInfo:
    """Sizes and counts of a cache.

    Attributes:
        exists: True if the folder has been used as a cache.
        payloads: Number of stored payloads; keys with the same payload share one.
        size_bytes: Size of the functions, which count towards the bound.
        parts: The bytes of everything below the root, by the parts in :data:`PARTS`; empty for an inner cache.
        total_bytes: Their sum.
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
        """Hex digest of the key."""
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
        leftovers: Number of removed temporary files.
        size_bytes: Size of the remaining functions.
        total_bytes: Size of everything that remains below the root.
    """

    evicted: list[str] = field(default_factory=list)
    payloads: int = 0
    leftovers: int = 0
    freed_bytes: int = 0
    size_bytes: int = 0
    total_bytes: int = 0

    def include(self, other: GcReport) -> None:
        """Count what was removed from another cache."""
        self.evicted += other.evicted
        self.payloads += other.payloads
        self.leftovers += other.leftovers
        self.freed_bytes += other.freed_bytes


def below(folder: Folder, place: str) -> Iterator[tuple[str, os.stat_result]]:
    """All files below a folder, without those that a shared cache keeps from this user."""
    with _others_of_shared(folder):
        yield from folder.files.files(place)
        for inner in folder.files.folders(place):
            yield from below(folder, inner)


def verify(folder: Folder, *, remove: bool) -> VerifyReport:
    """Check every manifest and payload by SHA-256."""
    missing: list[Finding] = []
    referenced: set[str] = set()
    damaged: dict[str, str] = {}  # the faults, by name of the file
    state: dict[str, str | None] = {}
    checked = sound = 0
    for digest, _ in folder.each_object():
        with suppress(FileNotFoundError):  # removed meanwhile
            state[digest] = _payload_damage(folder, digest)
    for digest, _ in folder.each_key():
        try:
            payload = folder.read_manifest(digest).payload_sha256
        except FileNotFoundError:
            continue  # removed meanwhile
        except DamagedError as error:
            checked += 1
            damaged[folder.key_name(digest)] = str(error)
            continue
        checked += 1
        referenced.add(payload)
        try:
            if payload not in state:  # stored meanwhile, or missing
                state[payload] = _payload_damage(folder, payload)
            sound += state[payload] is None
        except FileNotFoundError:
            place = folder.files.path(folder.key_name(digest))
            missing.append(Finding(place, f"its payload {payload} is not stored"))
    damaged |= {folder.object_name(payload): reason for payload, reason in state.items() if reason}
    if remove:
        for name, reason in damaged.items():
            folder.remove_damaged(name, reason)
    return VerifyReport(
        checked=checked,
        sound=sound,
        damaged=tuple(Finding(folder.files.path(name), reason) for name, reason in damaged.items()),
        missing=tuple(missing),
        unreferenced=len(set(state) - referenced),
        unfinished=sum(1 for _ in folder.each_temporary()),
    )


def _payload_damage(folder: Folder, sha256: str) -> str | None:
    try:
        payload, _ = folder.read_object(sha256)
    except DamagedError as error:
        return str(error)
    return None if hashlib.sha256(payload).hexdigest() == sha256 else "payload does not match its SHA-256"


def collect(folder: Folder, max_bytes: int, keep: str | None = None) -> GcReport:
    """Remove leftovers and unreferenced payloads, then the least recently used keys. The caller holds the store lock.

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

    for name, status in list(folder.each_temporary()):
        if is_leftover(name.rpartition("/")[2], status.st_mtime):
            report.leftovers += drop(name, status.st_size)
    drop_idle_locks(folder.files, folder.each_lock())

    keys: list[tuple[int, str, int, str]] = []  # used_at_ns, key, size of its manifest, payload
    complete = True
    for digest, status in folder.each_key():
        payload = ""
        try:
            payload = folder.read_manifest(digest).payload_sha256
        except FileNotFoundError:
            continue
        except DamagedError as error:
            folder.remove_damaged(folder.key_name(digest), str(error))
            continue
        except OSError as error:
            raise_if_signalled(error)
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
            drop(folder.key_name(digest), size)
            folder.files.sync(f"{KEYS}/{digest[:2]}")  # never a durable key without its payload
            report.evicted.append(digest)
            references[payload] -= 1
            drop_unreferenced([payload])
    return report


def drop_idle_locks(files: TrustedFolder, found: Iterable[tuple[str, os.stat_result]]) -> None:
    """Remove the files of locks that were not taken for a day, and the names of killed holders."""
    for name, status in list(found):
        if name.rpartition("/")[2].startswith(TEMP_PREFIX):  # a name that is being written
            continue
        # a held lock stays, and one without file locking
        lock, is_lock = f"{name.rpartition('.')[0]}.lock", name.endswith(".lock")
        if not is_lock or time.time() - status.st_mtime > DAY_S:
            with suppressed(OSError), files.lock(lock, 0.0):
                files.remove(name)


# ---- what lies beside the store: sealed files, precompiled headers, and leftovers of killed processes


def _beside(folder: Folder) -> list[Folder]:
    """The caches beside the cache of functions: linked modules, and precompiled headers, which are never shared."""
    beside = [(MODULES, MODULES_SUFFIX), *([] if folder.files.shared else [(HEADERS, HEADERS_SUFFIX)])]
    return [
        Folder(folder.files.root, folder.files.shared, folder.problems, suffix, name)
        for name, suffix in beside
        if not folder.files.folder  # nothing lies beside an inner cache
    ]


@contextmanager
def _others_of_shared(folder: Folder) -> Iterator[None]:
    """Skip a folder that is refused or of another user, if the cache is shared: it belongs to the first user."""
    try:
        yield
    except PermissionError:
        if not folder.files.shared:
            raise


def verify_beside(folder: Folder, *, remove: bool) -> Iterator[Finding]:
    """Yield the damage of sealed files, linked modules and precompiled headers. Damaged files can be removed."""
    for name in () if folder.files.folder else DOCUMENTS:
        documents = Documents(folder.root, name, shared=folder.files.shared)
        with _others_of_shared(folder):
            for path, reason in documents.damage():
                if remove:
                    documents.read(path.stem)
                yield Finding(path, reason)
    for cache in _beside(folder):
        yield from verify(cache, remove=remove).damaged


def clear_beside(folder: Folder, report: GcReport, *, everything: bool) -> None:
    """Remove every linked module, and with ``everything`` all but the tuning records."""
    for cache in _beside(folder)[: None if everything else 1]:
        _collect_beside(cache, report, -1)
    for place in FACTS if everything and not folder.files.folder else ():
        for name, status in list(below(folder, place)):
            folder.files.remove(name)
            report.freed_bytes += status.st_size


def _collect_beside(cache: Folder, report: GcReport, max_bytes: int) -> None:
    with _others_of_shared(cache):
        if cache.files.folders(LAYOUT):
            with cache.changing():
                report.include(collect(cache, max_bytes))


def sweep_beside(folder: Folder, report: GcReport) -> None:
    """Remove what killed processes left beside the store: temporary files, payloads without a key, names of holders."""
    for place in () if folder.files.folder else (*FACTS, "tuning"):
        for name, status in list(below(folder, place)):
            if is_leftover(name.rpartition("/")[2], status.st_mtime):
                folder.files.remove(name)
                report.leftovers += 1
                report.freed_bytes += status.st_size
    drop_idle_locks(folder.files, folder.files.files(LOCKS_OF_SEARCHES))
    for cache in _beside(folder):
        _collect_beside(cache, report, sys.maxsize)
