"""Tuning records on disk: the user's own, and those that were shipped with applications.

<root>/<subject>/<key digest>.json  one record
<root>/<subject>/*.damaged          files that could not be read, set aside
<root>/.locks/                      a lock for changes, and one per key that is searched for
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from warp_tiles.cache import cache_root
from warp_tiles.errors import RecordError
from warp_tiles.settings import Settings, current
from warp_tiles.tuning.encoding import FutureSchemaError, decode_bundle, encode_bundle, encode_record
from warp_tiles.tuning.folder import DAMAGED_SUFFIX, RecordFolder, reason_of, slug, warn_once
from warp_tiles.tuning.key import TuningKey
from warp_tiles.tuning.record import Record, Timing
from warp_tiles.util.files import read_whole, write_atomic
from warp_tiles.util.single_flight import single_flight

# what could not be written, by the file's path; in a forked child as well
_unwritten: dict[Path, Record] = {}
_keeping = threading.Lock()


@dataclass(frozen=True)
class StoredRecord:
    """A record and its place.

    Attributes:
        path: Its file; where it could not be written, the one that it would have.
        record: What the file holds, not united with other folders'.
        read_only: It was shipped, and is never changed.
    """

    path: Path
    record: Record
    read_only: bool


class RecordStore:
    """Records of one user, behind those of read-only folders. Safe for threads and processes.

    Making a store touches nothing. A folder that cannot be used causes one warning, and costs only the
    remembering: results then live as long as the process. Methods raise nothing but what they name.

    Args:
        root: The user's folder, created at the first write.
        read_only: Folders that are looked into before the user's, in this order, and never written.
        shared: Accept a user's folder that others can write.
    """

    def __init__(self, root: Path, read_only: Sequence[Path] = (), *, shared: bool = False) -> None:
        self.root = Path(root).absolute()
        self._own = RecordFolder(self.root, read_only=False, shared=shared)
        shipped = (RecordFolder(Path(path).absolute(), read_only=True) for path in read_only)
        self._folders = (*shipped, self._own)

    def load(self, key: TuningKey) -> Record | None:
        """Everything that is known for a key, from all folders; None if nothing is.

        Of several timings of one configuration that of the first folder counts, unless a later folder's was measured
        with the key's driver and Warp patch release and the first one's was not.
        """
        found = []
        for folder in self._folders:
            path = folder.path(key)
            if folder is self._own and path in _unwritten:
                found.append(_unwritten[path])
            record = folder.read(path)
            if record is not None:
                found.append(record)
        return _united(key, found) if found else None

    def merge(self, key: TuningKey, timings: Sequence[Timing]) -> Record:
        """Add timings to a key's record in the user's folder, in place of older ones of the same configuration.

        A file of a later schema is left as it is, and the record lives as long as the process.

        Returns:
            What :meth:`load` gives from now on.

        Raises:
            TypeError, ValueError: A configuration has no JSON form; nothing is changed.
        """
        path = self._own.path(key)
        encode_record(Record(key, tuple(timings)))
        try:
            with self._own.changing():
                known = self._own.read_for_change(path) or Record(key)
                early = _unwritten[path].timings if path in _unwritten else ()
                self._own.write(replace(known, key=key).merged((*early, *timings)))
                _unwritten.pop(path, None)
        except FutureSchemaError as error:
            self._keep(key, timings)
            warn_once(f"nothing is written to the tuning record {path}: {error}; results last as long as this process")
        except OSError as error:
            self._keep(key, timings)
            warn_once(
                f"tuning records cannot be written to {self.root} ({reason_of(error)}); "
                "results last as long as this process"
            )
        return self.load(key) or Record(key).merged(timings)

    def _keep(self, key: TuningKey, timings: Sequence[Timing]) -> None:
        path = self._own.path(key)
        with _keeping:
            _unwritten[path] = replace(_unwritten.get(path, Record(key)), key=key).merged(timings)

    @contextmanager
    def single_flight(self, key: TuningKey, timeout_s: float | None = None) -> Iterator[bool]:
        """Let one thread of one process search for a key, while others wait.

        Load the record again in the block, whichever it gives: another search may have ended just before.

        Args:
            key: What is searched for.
            timeout_s: How long to wait for another search; None for as long as it takes, 0 for not at all.

        Yields:
            True if this thread may search, also after one that was killed or raised; False if another has searched
            meanwhile or still does, or if this very thread is searching for the key already.
        """

        def unusable(error: OSError) -> None:
            warn_once(
                f"searches are not coordinated between processes: {self.root} cannot be used ({reason_of(error)})"
            )

        with single_flight(self._own.lock_path(key.digest), timeout_s, self._own.modes, unusable) as may_search:
            yield may_search

    def records(self, subject_prefix: str = "") -> list[StoredRecord]:
        """Every stored record whose subject begins so, folder by folder in the order of looking up."""
        found = []
        for folder in self._folders:
            if folder is self._own:
                for path, record in sorted(_unwritten.items()):
                    if path.is_relative_to(self.root):
                        found.append(StoredRecord(path, record, read_only=False))
            try:
                for path, _ in folder.files(subject_prefix):
                    record_there = folder.read(path)
                    if record_there is not None:
                        found.append(StoredRecord(path, record_there, folder.read_only))
            except OSError as error:
                warn_once(f"the tuning records in {folder.root} are not used: {reason_of(error)}")
        return [stored for stored in found if stored.record.key.subject.startswith(subject_prefix)]

    def find(self, digest_prefix: str) -> StoredRecord:
        """The record whose key begins with these hex digits; if several folders have it, the first one's.

        Raises:
            RecordError: No key or several begin so; those are named.
        """
        found: dict[str, StoredRecord] = {}
        everything = self.records()
        for stored in everything:
            if digest_prefix and stored.record.key.digest.startswith(digest_prefix):
                found.setdefault(stored.record.key.digest, stored)
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            raise RecordError(
                f"{len(found)} tuning records begin with {digest_prefix!r}: {_named(found.values())}",
                remedy="give more digits",
            )
        raise RecordError(
            f"no tuning record begins with {digest_prefix!r}; there are {_named(everything) or 'none'}",
            remedy="warp-tiles tune list shows every key",
        )

    def remove(self, digests: Iterable[str] | None = None) -> int:
        """Remove records from the user's folder.

        Args:
            digests: Keys; None for all, and for what was set aside. Records of a later schema stay.

        Returns:
            How many keys were removed.

        Raises:
            RecordError: The folder cannot be changed.
        """
        wanted = None if digests is None else set(digests)
        removed = set()
        for path in [path for path in _unwritten if path.is_relative_to(self.root)]:
            if wanted is None or path.stem in wanted:
                del _unwritten[path]
                removed.add(path.stem)
        if not self.root.is_dir():
            return len(removed)
        try:
            with self._own.changing():
                for path, _ in list(self._own.files()):
                    if (wanted is None or path.stem in wanted) and not self._is_future(path):
                        path.unlink()
                        removed.add(path.stem)
                if wanted is None:
                    for path in self.root.glob(f"*/*{DAMAGED_SUFFIX}"):
                        path.unlink()
        except OSError as error:
            raise RecordError(
                f"tuning records in {self.root} cannot be removed: {reason_of(error)}",
                remedy="check that the folder is yours",
            ) from error
        return len(removed)

    def _is_future(self, path: Path) -> bool:
        try:
            self._own.read_for_change(path)
        except FutureSchemaError as error:
            warn_once(f"the tuning record {path} is left alone: {error}")
            return True
        return False

    def export(self, path: Path, records: Iterable[Record] | None = None) -> int:
        """Write records into one file, whole or not at all.

        Args:
            path: The file; replaced if it exists.
            records: None for all, those of one key united as :meth:`load` does.

        Returns:
            How many were written.

        Raises:
            RecordError: The file cannot be written.
        """
        if records is None:
            keys = {stored.record.key.digest: stored.record.key for stored in self.records()}
            records = filter(None, (self.load(key) for _, key in sorted(keys.items())))
        chosen = list(records)
        try:
            write_atomic(Path(path).absolute(), encode_bundle(chosen), 0o644)
        except OSError as error:
            raise RecordError(
                f"tuning records cannot be exported to {path}: {reason_of(error)}",
                remedy="name a file in a folder that is there and that you may write",
            ) from error
        return len(chosen)

    def import_(self, path: Path) -> int:
        """Add the records of an exported file to the user's folder: all of them, or none.

        What is known of a configuration stays; configurations that the user's records lack are added.

        Returns:
            How many records the file has.

        Raises:
            RecordError: The file cannot be read, is no export or of a later schema, or the records cannot be stored.
        """
        try:
            incoming = decode_bundle(Path(path).read_bytes())
        except FutureSchemaError as error:
            raise RecordError(f"{path} is not imported: {error}", remedy="use the release that wrote it") from error
        except ValueError as error:
            raise RecordError(
                f"{path} is not imported: {error}", remedy="give a file that warp-tiles tune export wrote"
            ) from error
        except OSError as error:
            raise RecordError(f"{path} is not imported: {reason_of(error)}", remedy="check the path") from error
        try:
            with self._own.changing():
                self._write_all([self._with_known(record) for record in _one_per_key(incoming)])
        except FutureSchemaError as error:
            raise RecordError(
                f"{path} is not imported, a record of its keys in {self.root} would be overwritten: {error}",
                remedy="use the release that wrote that record, or remove it",
            ) from error
        except OSError as error:
            raise RecordError(
                f"{path} is not imported, {self.root} cannot be changed: {reason_of(error)}",
                remedy="check that the folder is yours and has space",
            ) from error
        return len(incoming)

    def _with_known(self, record: Record) -> Record:
        known = self._own.read_for_change(self._own.path(record.key))
        return record.merged(() if known is None else known.timings)

    def _write_all(self, records: Sequence[Record]) -> None:
        before: dict[Path, bytes | None] = {}
        try:
            for record in records:
                path = self._own.path(record.key)
                before.setdefault(path, read_whole(path)[0] if path.exists() else None)
                self._own.write(record)
        except BaseException:
            for path, data in before.items():
                with suppress(OSError):
                    if data is None:
                        path.unlink(missing_ok=True)
                    else:
                        write_atomic(path, data, self._own.modes()[1])
            raise

    def fingerprint(self, subject_prefix: str) -> str:
        """SHA-256 over which records of these subjects there are, by name, size, time and inode of their files."""
        digest = hashlib.sha256()
        for place, folder in enumerate(self._folders):
            with suppress(OSError):
                for path, status in folder.files(subject_prefix):
                    identity = f"{path.parent.name}/{path.name} {status.st_size} {status.st_mtime_ns} {status.st_ino}"
                    digest.update(f"{place} {identity}\n".encode())
        for path, record in sorted(_unwritten.items()):
            if path.is_relative_to(self.root) and path.parent.name.startswith(slug(subject_prefix)):
                digest.update(encode_record(record))
        return digest.hexdigest()


def open_store(now: Settings | None = None) -> RecordStore:
    """The records that the settings name: ``tuning`` in the cache's folder, behind those of ``record_paths``.

    Args:
        now: The settings; None for those in force.

    Raises:
        SettingError: An environment variable is unknown or has an unknown value.
    """
    now = current() if now is None else now
    for path in now.record_paths:
        if not path.is_dir():
            warn_once(f"there is no folder {path} of tuning records, which the setting record_paths names")
    return RecordStore(cache_root(now) / "tuning", now.record_paths, shared=now.cache_shared)


def _united(key: TuningKey, records: Sequence[Record]) -> Record:
    if len(records) == 1:
        return replace(records[0], key=key)
    present = key.environment.soft()
    best: dict[str, Timing] = {}
    for record in records:
        for timing in record.timings:
            known = best.get(timing.identity)
            if known is None or (timing.soft == present, not timing.unfinished) > (
                known.soft == present,
                not known.unfinished,
            ):
                best[timing.identity] = timing
    return Record(key, tuple(best.values()))


def _one_per_key(records: Iterable[Record]) -> list[Record]:
    found: dict[str, Record] = {}
    for record in records:
        known = found.get(record.key.digest)
        found[record.key.digest] = record if known is None else record.merged(known.timings)
    return list(found.values())


def _named(records: Iterable[StoredRecord], limit: int = 8) -> str:
    keys = {stored.record.key.digest: stored.record.key.subject for stored in records}
    names = [f"{digest[:12]} ({subject})" for digest, subject in sorted(keys.items())]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
