"""The cache: looks up and stores entries, and builds each key once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.errors import CacheError, suppressed, unless_signalled
from warp_tiles.store import AHEAD, FORMER, FUNCTIONS, KINDS, LAYOUT, MEASUREMENTS, MODULES, Kind, absolute
from warp_tiles.store.documents import DamagedError, Fault, Faults, logger
from warp_tiles.store.folder import CacheInfo, EntryInfo, Folder, GcReport, VerifyReport, refused
from warp_tiles.store.key import CacheKey, Entry, Manifest
from warp_tiles.util.files import described, this_process
from warp_tiles.util.trusted_folder import RefusedFolderError

if TYPE_CHECKING:
    from warp_tiles.store.packages import Packaged

DEFAULT_MAX_BYTES = 4 * 1024**3
#: An automatic eviction frees a tenth more than needed, so that the next stores need no eviction.
LOW_WATER = 0.9
#: The part of the free bytes that a process may store before it measures the cache again.
UNMEASURED = 1 / 16


@dataclass(frozen=True)
class Upstream:
    """The reply of another store: its verified entry, or what receives one that is built here, if it wants it."""

    found: Entry | None = None
    push: Callable[[Entry], object] | None = None


#: Asks another place for an entry.
AskUpstream = Callable[[], Upstream]


@dataclass(frozen=True)
class BuildLease:
    """The lookup of one key, during which no other process builds it.

    Without ``found`` the entry has to be built and given to ``keep``, with its ``info``.
    """

    found: Entry | None
    keep: Callable[[bytes, Mapping[str, object]], Entry]


class Cache:
    """Content-addressed store of compiler output, mostly raw LTO-IR. It is safe for threads and processes.

    The constructor accesses no files. If the folder is missing, full or not writable, or is refused because other users
    can write it, only the caching is lost, and :attr:`faults` holds the reason. Commands of the user (:meth:`info`
    and those after it) raise a ``CacheError`` then.

    Args:
        root: The folder of all caches. The first store creates it.
        kind: What it holds.
        max_bytes: Size above which the least recently used keys are removed.
        allow_shared: Accept a folder that others can write. They then choose the code that runs.
        build_wait_s: Seconds to wait for another process that builds the same key, before building it here too.
        packaged: What an installed kernel package has for a key. It is asked where the folder lacks an entry, and what
            it has is not stored here.
    """

    def __init__(
        self,
        root: Path,
        kind: Kind = FUNCTIONS,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        allow_shared: bool = False,
        build_wait_s: float = 120.0,
        packaged: Callable[[CacheKey], Packaged | None] = lambda key: None,
    ) -> None:
        self.max_bytes = max_bytes
        self._packaged = packaged
        self._build_wait_s = build_wait_s
        self._faults = Faults()
        self._unmeasured_bytes = 0.0  # that this process may store before it measures the cache again
        # a later chdir() must not move the cache
        self._folder = Folder(absolute(root), kind, allow_shared, self._faults)
        self.root = self._folder.root
        self.object = kind.object  # as what its entries leave this machine

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults so far, oldest first."""
        return self._faults.all()

    @property
    def shared(self) -> bool:
        """True if the folder may be one that others can write."""
        return self._folder.files.shared

    @functools.cached_property
    def had_entries(self) -> bool:
        """True if there was an entry when this was first asked."""
        with self._usable():
            return any(True for _ in self._folder.each_key())
        return False

    def check_trust(self) -> None:
        """Raise a CacheError if others can write the folder, unless ``allow_shared`` is set. A missing one passes."""
        with self._usable():
            try:
                self._folder.check_trust()
            except RefusedFolderError as error:
                raise refused(error) from error

    def get(self, key: CacheKey | str) -> Entry | None:
        """Look up an entry, verify it and note its use. None if it is missing or damaged."""
        digest, entry = _digest_of(key), None
        with self._usable():
            entry = self._folder.read_entry(digest)
        if entry is not None:
            self._folder.touch(digest)
        elif (packaged := self._in_package(key)) is not None:
            entry = packaged.entry()
        return entry

    def _in_package(self, key: CacheKey | str) -> Packaged | None:
        return None if isinstance(key, str) else self._packaged(key)

    def manifest(self, key: CacheKey | str) -> Manifest | None:
        """The manifest of an entry, for display. The payload is not read, and may be missing or damaged."""
        manifest = None
        with self._usable():
            manifest = self._folder.read(_digest_of(key))
        if manifest is None and (packaged := self._in_package(key)) is not None:
            manifest = packaged.manifest
        return manifest

    def put(self, key: CacheKey, payload: bytes, info: Mapping[str, object]) -> Entry:
        """Store an entry, which replaces one of the same key. It is valid even if it could not be stored.

        Raises what :meth:`Manifest.describe` raises.
        """
        return self.add(Entry(payload, Manifest.describe(key, payload, info)))

    def add(self, entry: Entry) -> Entry:
        """Store a verified entry, e.g. of another machine; see :meth:`put`."""
        size = len(entry.payload) + len(entry.manifest.encode())
        if size > self.max_bytes:
            reason = f"an entry of {size} bytes exceeds the cache's bound of {self.max_bytes} bytes"
            self._faults.add("size", self.root, reason)
            return entry
        with self._usable(), self._folder.changing():
            entry = replace(entry, manifest=self._folder.store_entry(entry.manifest, entry.payload))
            self._keep_bound(size, entry.key)
        return entry

    def _keep_bound(self, size: int, key: str) -> None:
        """Evict old entries if those of this size may exceed the bound.

        Measuring a cache takes as long as dozens of stores. So it is measured only after this process has stored a part
        of the free bytes.
        """
        self._unmeasured_bytes -= size
        if self._unmeasured_bytes >= 0:
            return
        used = self._folder.size_bytes()
        if used > self.max_bytes:
            self._folder.sweep(LAYOUT)
            used = self._folder.collect(int(self.max_bytes * LOW_WATER), keep=key).size_bytes
        self._unmeasured_bytes = (self.max_bytes - used) * UNMEASURED

    @contextmanager
    def lease(self, key: CacheKey, upstream: AskUpstream | None = None, *, builds: bool = True) -> Iterator[BuildLease]:
        """Look up an entry. If it is missing, keep other threads and processes from building it while the caller does.

        ``upstream`` asks another place if the entry is not stored here. With ``builds=False`` the caller builds under
        another key, and no process waits for this one.
        """
        push: Callable[[Entry], object] | None = None

        def keep(payload: bytes, info: Mapping[str, object]) -> Entry:
            entry = self.put(key, payload, info)
            if push is not None:
                push(entry)
            return entry

        def waiting(holder: str) -> None:
            if holder == described(this_process()):
                logger.info("waiting for another thread of this process, which builds the same")
                return
            text = "waiting for %s, which builds the same; it is built here too after %g s"
            logger.warning(text, holder, self._build_wait_s)

        known = self.get(key)
        with ExitStack() as stack:
            if known is None and builds:
                with self._usable():
                    try:
                        stack.enter_context(self._folder.lock(key.digest, self._build_wait_s, waiting))
                    except unless_signalled(TimeoutError) as error:
                        self._faults.add("lock", self.root, error)
                known = self.get(key)
            if known is None and upstream is not None:
                remote = upstream()
                known, push = remote.found and self.add(remote.found), remote.push
            yield BuildLease(known, keep)

    def vouch(self, entry: Entry) -> None:
        """Note that a launch has generated the source of an entry, if the folder can be written."""
        info = {name: value for name, value in entry.manifest.info.items() if name != AHEAD}
        with suppressed(OSError):
            self._folder.files.write(self._folder.file(entry.key), replace(entry.manifest, info=info).encode())

    def is_locked(self, key: CacheKey) -> bool:
        """True if another thread or process holds the lease of a key at this moment."""
        try:
            with self._folder.lock(key.digest, 0.0):
                return False
        except unless_signalled(OSError) as error:  # without locks, nobody holds it
            return isinstance(error, TimeoutError)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """End the block without an error if the folder cannot be used, and report that."""
        try:
            yield
        except unless_signalled(OSError) as error:
            # one message for all caches of a root, unless the cause lies in this one
            root = self._folder.files.root
            inner = isinstance(error, PermissionError) and root / (error.filename or root) not in (root, *root.parents)
            self._faults.add("folder", self.root if inner else root, error)

    # ---- commands of a user, for which an unusable folder is an error

    @contextmanager
    def _command(self, what: str, *, change: bool = False) -> Iterator[None]:
        """Run a command of the user. An unusable folder is an error here."""
        try:
            self._folder.check_trust()
            with ExitStack() as stack:
                if change and self._folder.files.folders(LAYOUT):
                    stack.enter_context(self._folder.changing())
                yield
        except RefusedFolderError as error:
            raise refused(error) from error
        except unless_signalled(OSError) as error:
            raise CacheError(
                f"{what} failed for the cache folder {self.root}: {error}",
                remedy="check that the folder exists, is yours and has space",
            ) from error

    def info(self) -> CacheInfo:
        """Sizes and counts, and the bytes of everything below the root, by part."""
        with self._command("info"):
            objects = [status.st_size for _, status in self._folder.each_object()]
            parts = self._folder.sizes()
            return CacheInfo(
                root=self.root,
                exists=(self.root / LAYOUT).is_dir(),
                entries=sum(1 for _ in self._folder.each_key()),
                payloads=len(objects),
                payload_bytes=sum(objects),
                size_bytes=self._folder.size_bytes(),
                max_bytes=self.max_bytes,
                parts=parts,
                total_bytes=sum(parts.values()),
            )

    def entries(self) -> tuple[EntryInfo, ...]:
        """The entries with a sound manifest, the most recently used first. Payloads are not read."""
        items = []
        with self._command("listing"):
            for digest, status in self._folder.each_key():
                with suppress(DamagedError, FileNotFoundError):  # verify reports the damage
                    items.append(EntryInfo(self._folder.load(digest), status.st_mtime_ns))
        return tuple(sorted(items, key=lambda item: (-item.used_at_ns, item.key)))

    def verify(self, *, remove: bool = False) -> VerifyReport:
        """Check every manifest and payload by SHA-256, and the sealed files and the other caches beside them."""
        with self._command("verify", change=remove):
            report = self._folder.verify(remove=remove)
            return replace(report, damaged=(*report.damaged, *self._folder.verify_beside(remove=remove)))

    def gc(self, max_bytes: int | None = None) -> GcReport:
        """Remove what former versions left, unreferenced payloads, and the least recently used keys above a bound.

        By default, the bound is the cache's own.
        """
        return self._collected("gc", self.max_bytes if max_bytes is None else max_bytes, FORMER)

    def clear(self, *, everything: bool = False) -> GcReport:
        """Remove every entry and every linked module, or ``everything`` but the tuning records. Locks stay."""
        kinds = [kind for kind in KINDS if kind is not MEASUREMENTS] if everything else [self._folder.kind, MODULES]
        return self._collected("clear", 0, kinds)

    def _collected(self, what: str, max_bytes: int, cleared: Collection[Kind]) -> GcReport:
        with self._command(what, change=True):
            report = self._folder.collect_all(max_bytes, cleared)
        report.total_bytes = self.info().total_bytes  # without the name of the lock's holder
        return report

    def read_verified(self, key: str) -> Entry | None:
        """An entry for another machine, verified by SHA-256; None without a sound one. The use is not recorded."""
        with self._command("reading"):
            return self._folder.read_entry(key, full=True)


def find(caches: Iterable[Cache], prefix: str) -> tuple[Cache, Manifest]:
    """The one stored key that begins with these hex digits: its cache and its manifest.

    Raises a CacheError if no stored key or several have this prefix, or a folder is refused or unreadable.
    """
    stored = ((cache, item.manifest) for cache in caches for item in cache.entries())
    matches = [(cache, manifest) for cache, manifest in stored if manifest.key.digest.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    remedy = "give more digits" if matches else "take a key of `warp-tiles cache list` or `plan`"
    raise CacheError(
        f"{len(matches) or 'no'} stored key{'s' * bool(matches)} begin{'s' * (not matches)} with {prefix!r}", remedy
    )


def _digest_of(key: CacheKey | str) -> str:
    return key if isinstance(key, str) else key.digest
