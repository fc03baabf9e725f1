"""The cache: looks up and stores entries, and builds each key once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from warp_tiles.cache import _bundle, _maintain
from warp_tiles.cache._explain import Explanation, explain_among
from warp_tiles.cache._folder import STORE_LOCK, Folder, lock_problem
from warp_tiles.cache._key import CacheKey
from warp_tiles.cache._manifest import Entry, Manifest
from warp_tiles.cache._paths import is_digest
from warp_tiles.cache._report import Problem, Problems
from warp_tiles.cache._sealed import DamagedError
from warp_tiles.errors import CacheError
from warp_tiles.util.single_flight import Flights, ReentrantFlightError

DEFAULT_MAX_BYTES = 4 * 1024**3
#: An automatic eviction frees a tenth more than needed, so that the next stores need no eviction.
LOW_WATER = 0.9


@dataclass(frozen=True)
class Counters:
    """Counts of the operations of one :class:`Cache` object.

    Attributes:
        hits: Lookups answered from the store or by another thread's build.
        misses: Lookups that found no sound entry.
        builds: Builds started by :meth:`Cache.get_or_build`.
        stores: Entries written.
        failed_stores: Entries that could not be written.
        evictions: Keys removed to keep the bound.
    """

    hits: int = 0
    misses: int = 0
    builds: int = 0
    stores: int = 0
    failed_stores: int = 0
    evictions: int = 0


class Cache:
    """Content-addressed store of compiler output, mostly raw LTO-IR. It is safe for threads and processes.

    The constructor accesses no files. If the folder is missing, full or not writable, only the caching is lost, and
    :attr:`problems` holds the reason. A folder that other users can write is refused at the first use.

    Args:
        root: The cache's folder. The first store creates it.
        max_bytes: Size above which the least recently used keys are removed.
        allow_shared: Accept a folder that others can write. They then choose the code that runs.
        lock_timeout_s: Seconds to wait for another process that builds the same key, before building it here too.
        suffix: Suffix of payload files. Bundles hold only LTO-IR.

    Raises:
        ValueError: ``max_bytes`` is negative.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        allow_shared: bool = False,
        lock_timeout_s: float = 600.0,
        suffix: str = ".ltoir",
    ) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must not be negative, got {max_bytes}")
        self.root = Path(root).absolute()  # a later chdir() must not move the cache
        self.max_bytes = max_bytes
        self._lock_timeout_s = lock_timeout_s
        self._problems = Problems()
        self._folder = Folder(self.root, allow_shared, self._problems, suffix)
        self._flights: Flights[str, tuple[Entry, bool]] = Flights()
        self._counters = Counters()
        self._counting = threading.Lock()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems so far, oldest first."""
        return self._problems.all()

    @property
    def counters(self) -> Counters:
        """Counts of its operations so far."""
        return self._counters

    def check_trust(self) -> None:
        """Refuse a folder that others can write, unless ``allow_shared`` is set. A missing or unreadable one passes.

        Raises:
            CacheError: The folder is refused.
        """
        try:
            self._folder.check_trust()
        except OSError as error:
            self._problems.folder(str(self.root), error)

    def get(self, key: CacheKey | str) -> Entry | None:
        """Look up an entry, verify it and record its use.

        Args:
            key: The key, or its hex digest.

        Returns:
            The entry, or ``None`` if it is missing or damaged.

        Raises:
            CacheError: The folder is refused, or ``key`` is not a digest.
        """
        entry = self._look_up(_digest(key))
        self._count(hits=int(entry is not None), misses=int(entry is None))
        return entry

    def manifest(self, key: CacheKey | str) -> Manifest | None:
        """Look up the manifest of an entry, for display. The payload is not read and the use is not recorded.

        A later :meth:`get` may still miss, because the payload may be missing or damaged.

        Raises:
            CacheError: The folder is refused, or ``key`` is not a digest.
        """
        digest = _digest(key)
        try:
            self._folder.check_trust()
            return self._folder.read_manifest(digest)
        except (FileNotFoundError, DamagedError):
            return None
        except OSError as error:
            self._problems.folder(str(self.root), error)
            return None

    def put(self, key: CacheKey, payload: bytes, info: Mapping[str, object]) -> Entry:
        """Store an entry. It replaces one of the same key.

        Args:
            key: The inputs of the payload.
            payload: Raw bytes, not empty.
            info: JSON to keep beside it: inputs, symbol, sizes, build time, versions.

        Returns:
            The entry. It is valid even if it could not be stored (see :attr:`problems`).

        Raises:
            CacheError: The folder is refused.
            TypeError: The payload is not bytes or ``info`` has no JSON form.
            ValueError: The payload is empty or ``info`` holds a number that is not finite.
        """
        manifest = Manifest.describe(key, payload, info)
        size = len(payload) + len(manifest.encode())
        if size > self.max_bytes:
            self._problems.add(
                Problem(
                    "size",
                    str(self.root),
                    f"an entry of {size} bytes exceeds the cache's bound of {self.max_bytes} bytes",
                    "raise the bound: WARP_TILES_CACHE_MAX_BYTES",
                )
            )
            self._count(failed_stores=1)
            return Entry(key.digest, payload, manifest)
        try:
            self._folder.check_trust()
            with self._store_lock():
                manifest = self._folder.store(manifest, payload)
                self._count(stores=1)
                if self._folder.size_bytes() > self.max_bytes:
                    report = _maintain.collect(self._folder, int(self.max_bytes * LOW_WATER), keep=key.digest)
                    self._count(evictions=len(report.evicted))
        except OSError as error:
            self._problems.folder(str(self.root), error)
            if not manifest.payload_mtime_ns:
                self._count(failed_stores=1)
        return Entry(key.digest, payload, manifest)

    def get_or_build(
        self, key: CacheKey, build: Callable[[], tuple[bytes, Mapping[str, object]]]
    ) -> tuple[Entry, bool]:
        """Look up an entry or build and store it, once across threads and processes.

        Args:
            key: The inputs of the payload.
            build: Returns the payload and its ``info``, see :meth:`put`.

        Returns:
            The entry, and True if this call did not have to build it.

        Raises:
            CacheError: The folder is refused, or the build of a key requested the same key.
            TypeError, ValueError: :meth:`put` does not accept the result of ``build``.
            Exception: The exception of ``build``. Threads that wait for the build get it too.
        """
        entry = self._look_up(key.digest)
        if entry is not None:
            self._count(hits=1)
            return entry, True
        try:
            (entry, hit), led = self._flights.run(key.digest, lambda: self._build(key, build))
        except ReentrantFlightError as error:
            raise CacheError(
                f"the build of key {key.digest} requested its own key from the cache",
                remedy="a build must not depend on its own result",
            ) from error
        if hit or not led:
            self._count(hits=1)
        return entry, hit or not led

    def _build(self, key: CacheKey, build: Callable[[], tuple[bytes, Mapping[str, object]]]) -> tuple[Entry, bool]:
        with self._build_lock(key.digest):
            entry = self._look_up(key.digest)
            if entry is not None:
                return entry, True
            self._count(misses=1, builds=1)
            payload, info = build()
            return self.put(key, payload, info), False

    def _look_up(self, digest: str) -> Entry | None:
        try:
            self._folder.check_trust()
            entry = self._folder.read_entry(digest)
        except OSError as error:
            self._problems.folder(str(self.root), error)
            return None
        if entry is not None:
            self._folder.touch(digest)
        return entry

    @contextmanager
    def _build_lock(self, digest: str) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._folder.lock(digest, self._lock_timeout_s))
            except TimeoutError as error:
                self._problems.add(lock_problem(self.root, error))
            except OSError as error:
                self._problems.folder(str(self.root), error)
            yield

    @contextmanager
    def _store_lock(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._folder.lock(STORE_LOCK, min(60.0, self._lock_timeout_s)))
            except TimeoutError as error:  # without the lock, a store at worst causes a later miss
                self._problems.add(lock_problem(self.root, error))
            yield

    def _count(self, **steps: int) -> None:
        with self._counting:
            self._counters = replace(
                self._counters, **{name: getattr(self._counters, name) + step for name, step in steps.items()}
            )

    @contextmanager
    def _command(self, what: str, *, change: bool = False) -> Iterator[None]:
        """Run a command of the user. An unusable folder is an error here."""
        try:
            self._folder.check_trust()
            with ExitStack() as stack:
                if change and self._folder.base.is_dir():
                    stack.enter_context(self._folder.lock(STORE_LOCK, min(60.0, self._lock_timeout_s)))
                yield
        except OSError as error:
            raise CacheError(
                f"{what} failed for the cache folder {self.root}: {error}",
                remedy="check that the folder exists, is yours and has space",
            ) from error

    def find(self, prefix: str) -> Manifest:
        """The manifest of the one stored key that begins with these hex digits.

        Raises:
            CacheError: No stored key or several have this prefix, or the folder is refused or unreadable.
        """
        with self._command("looking up a key"):
            found = sorted(digest for digest, _ in self._folder.each_key() if digest.startswith(prefix))
            if len(found) == 1:
                for item in _maintain.listing(self._folder, found):
                    return item.manifest
        raise CacheError(
            f"{len(found)} stored keys begin with {prefix!r}", remedy="give more digits, or list the cache for its keys"
        )

    def explain(self, key: CacheKey | str) -> Explanation:
        """Compare a key with the nearest other stored key. Of equally near ones, the most recently used is taken.

        Args:
            key: A key, stored or not, or the first digits of a stored one.

        Raises:
            CacheError: No stored key or several begin with the digits, or the folder is refused or unreadable.
        """
        requested = self.find(key).key if isinstance(key, str) else key
        return explain_among(requested, (item.manifest.key for item in self.entries()))

    def info(self) -> _maintain.CacheInfo:
        """Sizes and counts.

        Raises:
            CacheError: The folder is refused or unreadable.
        """
        with self._command("info"):
            return _maintain.summary(self._folder, self.max_bytes)

    def entries(self) -> tuple[_maintain.EntryInfo, ...]:
        """The stored entries, the most recently used first. Payloads are not read.

        Raises:
            CacheError: The folder is refused or unreadable.
        """
        with self._command("listing"):
            return _maintain.listing(self._folder)

    def verify(self, *, set_aside: bool = False) -> _maintain.VerifyReport:
        """Check every manifest and payload by SHA-256.

        Args:
            set_aside: Also move damaged files to the quarantine.

        Raises:
            CacheError: The folder is refused or unreadable.
        """
        with self._command("verify", change=set_aside):
            return _maintain.verify(self._folder, set_aside=set_aside)

    def gc(self, max_bytes: int | None = None) -> _maintain.GcReport:
        """Remove unreferenced payloads, then the least recently used keys until the size is within a bound.

        Args:
            max_bytes: The bound; ``None`` for the cache's own.

        Raises:
            CacheError: The folder is refused, or cannot be changed.
            ValueError: ``max_bytes`` is negative.
        """
        bound = self.max_bytes if max_bytes is None else max_bytes
        if bound < 0:
            raise ValueError(f"max_bytes must not be negative, got {bound}")
        with self._command("gc", change=True):
            report = _maintain.collect(self._folder, bound)
        self._count(evictions=len(report.evicted))
        return report

    def clear(self) -> _maintain.GcReport:
        """Remove every entry and the quarantine. The folder and its locks stay.

        Raises:
            CacheError: The folder is refused, or cannot be changed.
        """
        with self._command("clear", change=True):
            return _maintain.clear(self._folder)

    def export_bundle(self, path: Path, keys: Iterable[str] | None = None) -> _bundle.BundleReport:
        """Write entries to one file.

        Args:
            path: The bundle. An existing file is replaced.
            keys: Hex digests; ``None`` for every sound entry.

        Raises:
            CacheError: A key is not stored, the folder is refused, or the file cannot be written.
        """
        wanted = None if keys is None else [_digest(key) for key in keys]
        with self._command("export"):
            return _bundle.export(self._folder, Path(path), wanted)

    def import_bundle(self, path: Path) -> _bundle.BundleReport:
        """Add the entries of a bundle. A stored key keeps its entry.

        The whole bundle is verified before the first entry is stored. A bundle is code: import one only from a source
        whose programs you would run.

        Raises:
            BundleError: The bundle is malformed. The cache is unchanged.
            CacheError: The folder is refused, the file cannot be read, or the entries cannot be stored.
        """
        with self._command("import"):
            manifests = _bundle.check(Path(path))
            with self._folder.lock(STORE_LOCK, min(60.0, self._lock_timeout_s)):
                report = _bundle.import_checked(self._folder, Path(path), manifests)
                if self._folder.size_bytes() > self.max_bytes:
                    evicted = _maintain.collect(self._folder, self.max_bytes).evicted
                    self._count(evictions=len(evicted))
        self._count(stores=report.added)
        return report


def _digest(key: CacheKey | str) -> str:
    if isinstance(key, CacheKey):
        return key.digest
    if not is_digest(key):
        raise CacheError(f"{key!r:.80} is not a key digest", remedy="give 64 lower-case hex digits")
    return key
