"""Maintenance of a cache: list, verify, explain, collect, clear, export and import."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from warp_tiles.cache import _beside, _maintain
from warp_tiles.cache._explain import Explanation, explain_among
from warp_tiles.cache._folder import Folder, refused
from warp_tiles.cache._key import CacheKey
from warp_tiles.cache._manifest import Entry, Manifest
from warp_tiles.cache._paths import LAYOUT, is_digest
from warp_tiles.errors import CacheError
from warp_tiles.util.trusted_folder import RefusedFolderError


class Commands(ABC):
    """The commands of a cache. An unusable folder is an error of a command, and never of a lookup or a store."""

    root: Path
    max_bytes: int
    _folder: Folder

    @abstractmethod
    def _count(self, **steps: int) -> None:
        """Add to the counts of operations."""

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
        """Check every manifest and payload by SHA-256, and the sealed files and the other caches beside them.

        Args:
            set_aside: Also move damaged files to the quarantine.

        Raises:
            CacheError: The folder is refused or unreadable.
        """
        with self._command("verify", change=set_aside):
            found = _maintain.verify(self._folder, set_aside=set_aside)
            return replace(found, damaged=(*found.damaged, *_beside.verify(self._folder, set_aside=set_aside)))

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
            report = replace(report, leftovers=report.leftovers + _beside.sweep(self._folder))
        self._count(evictions=len(report.evicted))
        return report

    def clear(self) -> _maintain.GcReport:
        """Remove every entry and the quarantine, and every linked module. The folder and its locks stay.

        Raises:
            CacheError: The folder is refused, or cannot be changed.
        """
        with self._command("clear", change=True):
            _beside.clear_modules(self._folder)
            return _maintain.clear(self._folder)

    def read_verified(self, key: str) -> Entry | None:
        """An entry for another machine, verified by SHA-256. The use is not recorded.

        Args:
            key: Hex digest.

        Returns:
            The entry; None if it is missing, or damaged and set aside.

        Raises:
            CacheError: The folder is refused or unreadable.
        """
        with self._command("reading"):
            found = self._folder.read_entry(digest_of(key), full=True)
            return found and replace(found, manifest=replace(found.manifest, payload_mtime_ns=0))

    def add_entries(self, entries: Iterable[Entry]) -> tuple[int, int, int]:
        """Add entries of another machine. A stored key keeps its entry.

        Args:
            entries: Verified entries. Entries are code: take them only from a source whose programs you would run.

        Returns:
            The numbers of entries that were added and that were there, and the bytes of the added payloads.

        Raises:
            CacheError: The folder is refused, or an entry cannot be stored. The entries before it are stored.
        """
        added = present = size = 0
        with self._command("import"), self._folder.changing():
            for entry in entries:
                if self._folder.read_entry(entry.key) is not None:
                    present += 1
                    continue
                self._folder.store(entry.manifest, entry.payload)
                added += 1
                size += len(entry.payload)
            if added and self._folder.size_bytes() > self.max_bytes:
                self._count(evictions=len(_maintain.collect(self._folder, self.max_bytes).evicted))
        self._count(stores=added)
        return added, present, size


def digest_of(key: CacheKey | str) -> str:
    """The hex digest of a key, or of a text that is one.

    Raises:
        CacheError: The text is not a digest.
    """
    if isinstance(key, CacheKey):
        return key.digest
    if not is_digest(key):
        raise CacheError(f"{key!r:.80} is not a key digest", remedy="give 64 lower-case hex digits")
    return key
