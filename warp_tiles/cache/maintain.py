"""Maintenance of a cache: sizes, listing, verification, eviction, clearing."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from warp_tiles.cache.documents import Documents
from warp_tiles.cache.folder import KEYS, OBJECTS, Folder
from warp_tiles.cache.manifest import Manifest
from warp_tiles.cache.paths import HEADERS_FOR_CPU, HEADERS_FOR_GPU, HEADERS_SUFFIX, LAYOUT, MODULES, MODULES_SUFFIX
from warp_tiles.cache.sealed import DamagedError
from warp_tiles.util.processes import is_leftover
from warp_tiles.util.trusted_folder import TrustedFolder

DAY_S = 86400.0
QUARANTINE_DAYS = 7
DOCUMENTS = ("toolchain", f"toolchain/{LAYOUT}", "asked", "statistics")
LOCKS_OF_SEARCHES = "tuning/.locks"


@dataclass(frozen=True)
class CacheInfo:
    """Sizes and counts of a cache.

    Attributes:
        exists: True if the folder has been used as a cache.
        entries: Number of stored keys.
        payloads: Number of stored payloads; keys with the same payload share one.
        size_bytes: Size of everything that counts towards the bound.
        quarantined: Number of damaged files in the quarantine.
    """

    root: Path
    exists: bool
    entries: int
    payloads: int
    payload_bytes: int
    size_bytes: int
    max_bytes: int
    quarantined: int


@dataclass(frozen=True)
class EntryInfo:
    """A stored entry without its payload.

    Attributes:
        key: Hex digest of the key.
        used_at_ns: Last use, nanoseconds since 1970 (UTC).
    """

    key: str
    manifest: Manifest
    used_at_ns: int


@dataclass(frozen=True)
class Finding:
    """One fault that verification found."""

    path: Path
    reason: str


@dataclass(frozen=True)
class VerifyReport:
    """Outcome of a verification.

    Attributes:
        checked: Number of keys examined.
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


@dataclass(frozen=True)
class GcReport:
    """The result of a collection.

    Attributes:
        evicted: Removed keys, in the order of eviction.
        payloads: Number of removed payloads.
        leftovers: Number of removed temporary and quarantined files.
        freed_bytes: Size of all removed files.
        size_bytes: Size of the remaining files.
    """

    evicted: tuple[str, ...]
    payloads: int
    leftovers: int
    freed_bytes: int
    size_bytes: int


def summary(folder: Folder, max_bytes: int) -> CacheInfo:
    """Sizes and counts."""
    objects = [status.st_size for _, status in folder.each_object()]
    return CacheInfo(
        root=folder.root,
        exists=os.path.isdir(folder.root / LAYOUT),
        entries=sum(1 for _ in folder.each_key()),
        payloads=len(objects),
        payload_bytes=sum(objects),
        size_bytes=folder.size_bytes(),
        max_bytes=max_bytes,
        quarantined=sum(1 for _ in folder.each_quarantined()),
    )


def listing(folder: Folder, only: Iterable[str] | None = None) -> tuple[EntryInfo, ...]:
    """The entries with a sound manifest, the most recently used first."""
    wanted = None if only is None else set(only)
    items = []
    for digest, status in folder.each_key():
        if wanted is None or digest in wanted:
            with suppress(DamagedError, FileNotFoundError):  # verify reports the damage
                items.append(EntryInfo(digest, folder.read_manifest(digest), status.st_mtime_ns))
    return tuple(sorted(items, key=lambda item: (-item.used_at_ns, item.key)))


def verify(folder: Folder, *, set_aside: bool) -> VerifyReport:
    """Check every manifest and payload by SHA-256."""
    missing: list[Finding] = []
    referenced: set[str] = set()
    checked = sound = 0
    state: dict[str, str | None] = {}
    for digest, _ in folder.each_object():
        with suppress(FileNotFoundError):  # removed meanwhile
            state[digest] = _payload_damage(folder, digest)
    aside = {folder.object_name(name): reason for name, reason in state.items() if reason}
    for digest, _ in folder.each_key():
        try:
            manifest = folder.read_manifest(digest)
        except FileNotFoundError:
            continue  # removed meanwhile
        except DamagedError as error:
            checked += 1
            aside[folder.key_name(digest)] = str(error)
            continue
        checked += 1
        name = manifest.payload_sha256
        referenced.add(name)
        try:
            if name not in state:  # stored meanwhile, or missing
                state[name] = _payload_damage(folder, name)
        except FileNotFoundError:
            missing.append(Finding(folder.key_path(digest), f"its payload {name} is not stored"))
            continue
        if state[name] is None:
            sound += 1
    if set_aside:
        for name, reason in aside.items():
            folder.set_aside(name, reason)
    return VerifyReport(
        checked=checked,
        sound=sound,
        damaged=tuple(Finding(folder.files.path(name), reason) for name, reason in aside.items()),
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


class _Sweep:
    """Counts the files that one collection removes."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.size_bytes = folder.size_bytes()
        self.freed_bytes = 0
        self.evicted: list[str] = []
        self.payloads = 0
        self.leftovers = 0

    def drop(self, name: str, size: int) -> None:
        self.folder.files.remove(name)
        self.size_bytes -= size
        self.freed_bytes += size

    def report(self) -> GcReport:
        return GcReport(tuple(self.evicted), self.payloads, self.leftovers, self.freed_bytes, self.size_bytes)


def collect(folder: Folder, max_bytes: int, keep: str | None = None) -> GcReport:
    """Remove leftovers and unreferenced payloads, then the least recently used keys. The caller holds the store lock.

    Args:
        folder: The cache's files.
        max_bytes: Keys are removed until the size is at most this.
        keep: A key that stays in any case.
    """
    sweep = _Sweep(folder)
    now = time.time()
    for name, status in list(folder.each_temporary()):
        if is_leftover(name.rpartition("/")[2], status.st_mtime):
            sweep.drop(name, status.st_size)
            sweep.leftovers += 1
    for name, status in list(folder.each_quarantined()):
        if now - status.st_mtime > QUARANTINE_DAYS * DAY_S or sweep.size_bytes > max_bytes:
            sweep.drop(name, status.st_size)
            sweep.leftovers += 1
    drop_idle_locks(folder.files, folder.each_lock(), now)

    keys: list[tuple[int, str, int, str]] = []  # used_at_ns, key, size of its manifest, payload
    complete = True
    for digest, status in folder.each_key():
        try:
            manifest = folder.read_manifest(digest)
        except FileNotFoundError:
            continue
        except DamagedError as error:
            folder.set_aside(folder.key_name(digest), str(error))
            continue
        except OSError:
            complete = False  # this key may refer to any payload
            continue
        keys.append((status.st_mtime_ns, digest, status.st_size, manifest.payload_sha256))
    references = Counter(payload for *_, payload in keys)
    sizes = {digest: status.st_size for digest, status in folder.each_object()}
    if complete:
        for payload, size in sizes.items():
            if not references[payload]:
                sweep.drop(folder.object_name(payload), size)
                sweep.payloads += 1
    for _, digest, size, payload in sorted(keys):
        if sweep.size_bytes <= max_bytes:
            break
        if digest == keep:
            continue
        sweep.drop(folder.key_name(digest), size)
        folder.files.sync(f"{KEYS}/{digest[:2]}")  # never a durable key without its payload
        sweep.evicted.append(digest)
        references[payload] -= 1
        if complete and not references[payload] and payload in sizes:
            sweep.drop(folder.object_name(payload), sizes[payload])
            sweep.payloads += 1
    return sweep.report()


def drop_idle_locks(files: TrustedFolder, found: Iterable[tuple[str, os.stat_result]], now: float) -> None:
    """Remove the files of locks that were not taken for a day, and the names of killed holders."""
    for name, status in list(found):
        # a held lock stays, and one without file locking
        lock, is_lock = f"{name.rpartition('.')[0]}.lock", name.endswith(".lock")
        if not is_lock or now - status.st_mtime > DAY_S:
            with suppress(OSError), files.lock(lock, 0.0):
                files.remove(name)


def clear(folder: Folder) -> GcReport:
    """Remove every entry and leftover. The caller holds the store lock."""
    sweep = _Sweep(folder)
    for digest, status in list(folder.each_key()):
        sweep.drop(folder.key_name(digest), status.st_size)
        sweep.evicted.append(digest)
    for digest, status in list(folder.each_object()):
        sweep.drop(folder.object_name(digest), status.st_size)
        sweep.payloads += 1
    old = time.time() - 60.0
    quarantined = list(folder.each_quarantined())
    # a young temporary file may belong to a writer that runs without the lock
    for name, status in [*(item for item in folder.each_temporary() if item[1].st_mtime < old), *quarantined]:
        sweep.drop(name, status.st_size)
        sweep.leftovers += 1
    for place in (KEYS, OBJECTS):
        for shard in folder.files.folders(place):
            folder.files.sync(shard)
    return sweep.report()


# ---- what lies beside the store: sealed files, precompiled headers, and leftovers of killed processes


def verify_beside(folder: Folder, *, set_aside: bool) -> Iterator[Finding]:
    """Yield the damage of sealed files and precompiled headers. Damaged files can be removed or set aside.

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
    for cache in _caches_beside(folder):
        yield from verify(cache, set_aside=set_aside).damaged


def _caches_beside(folder: Folder) -> Iterator[Folder]:
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
            clear(modules)


def sweep_beside(folder: Folder) -> int:
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
    drop_idle_locks(folder.files, folder.files.files(LOCKS_OF_SEARCHES), time.time())
    for cache in _caches_beside(folder):
        try:
            if cache.files.folders(LAYOUT):
                with cache.changing():
                    report = collect(cache, max_bytes=sys.maxsize)
                removed += report.payloads + report.leftovers
        except PermissionError:
            if not folder.files.shared:
                raise
    return removed
