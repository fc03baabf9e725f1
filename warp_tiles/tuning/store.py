"""Tuning records on disk: the user's own, and those that applications ship.

<root>/<subject>/<key digest>.json  one record
<root>/<subject>/*.damaged          files that could not be read, set aside
<root>/.locks/                      a lock for changes, and one per key that is searched for
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.cache.paths import absolute
from warp_tiles.errors import BundleError, RecordError
from warp_tiles.remote import ANY_TOOLCHAIN, RECORDS
from warp_tiles.tuning.encoding import FutureSchemaError, decode_bundle, encode_bundle, encode_record
from warp_tiles.tuning.folder import MAX_BYTES, RecordFolder, reason_of, slug, warn_once
from warp_tiles.tuning.key import TuningKey
from warp_tiles.tuning.record import Record, Timing
from warp_tiles.util.files import open_input, read_whole
from warp_tiles.util.single_flight import single_flight

if TYPE_CHECKING:
    from warp_tiles.cache.key import CacheKey
    from warp_tiles.cache.manifest import Entry
    from warp_tiles.remote.keys import PublicKey, SigningKey

#: Largest export that is read: thousands of records as a search writes them. Any JSON of this size takes 250 MB.
MAX_EXPORT_BYTES = 8 << 20
# records that could not be written, by path; a forked child inherits them
_unwritten: dict[Path, Record] = {}
_unwritten_lock = threading.Lock()


@dataclass(frozen=True)
class StoredRecord:
    """A record and its place.

    Attributes:
        path: Its file, even if the file could not be written.
        record: The record of this file alone, without those of other folders.
        read_only: True if it was shipped, and is never changed.
    """

    path: Path
    record: Record
    read_only: bool


class RecordStore:
    """The records of read-only folders, then those of one user. Safe for threads and processes.

    Creating a store touches no file. A folder that cannot be used causes one warning, and results then last as long as
    the process. Methods raise only the errors that they list.

    Args:
        root: The user's folder, or the folder of the cache that contains it; created at the first write.
        read_only: Folders that are searched before the user's, in this order. They are never written.
        folder: The user's folder, by name below the root; empty for the root itself.
        shared: Accept a user's folder that others can write.
    """

    def __init__(self, root: Path, read_only: Sequence[Path] = (), *, folder: str = "", shared: bool = False) -> None:
        self._own = RecordFolder(absolute(root), folder, read_only=False, shared=shared)
        self.root = self._own.root
        shipped = (RecordFolder(absolute(path), read_only=True) for path in read_only)
        self._folders = (*shipped, self._own)

    def load(self, key: TuningKey) -> Record | None:
        """Returns the record of a key, united over all folders; None if there is none.

        If several folders have a timing of one configuration, timings with the key's driver and Warp patch release
        count before others. Of those, finished ones count before unfinished ones. Of those, the first folder's counts.
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
        """Add timings to a key's record in the user's folder. They replace older ones of the same configuration.

        A file of a later schema does not change, and the timings then last as long as the process.

        Returns:
            The record that :meth:`load` returns from now on.

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
        with _unwritten_lock:
            _unwritten[path] = replace(_unwritten.get(path, Record(key)), key=key).merged(timings)

    @contextmanager
    def single_flight(self, key: TuningKey, timeout_s: float | None = None) -> Iterator[bool]:
        """Let one thread of one process search for a key, while others wait.

        Load the record again in the block in either case: another search may have just ended.

        Args:
            key: The key.
            timeout_s: Seconds to wait for another search; None for no limit, 0 to not wait.

        Yields:
            True if this thread may search, also after a search that was killed or raised an error. False if another
            search has ended meanwhile or still runs, or if this thread itself is searching for the key already.
        """

        def unusable(error: OSError) -> None:
            warn_once(
                f"searches are not coordinated between processes: {self.root} cannot be used ({reason_of(error)})"
            )

        with single_flight(self._own.trusted, self._own.lock_name(key.digest), timeout_s, unusable) as may_search:
            yield may_search

    def records(self, subject_prefix: str = "") -> list[StoredRecord]:
        """Every stored record whose subject begins with a prefix, folder by folder in lookup order."""
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
                folder.warn_of(error)
        return [stored for stored in found if stored.record.key.subject.startswith(subject_prefix)]

    def find(self, digest_prefix: str) -> StoredRecord:
        """Returns the record whose key begins with these hex digits, from the first folder that has it.

        Raises:
            RecordError: No key or several keys begin with them; the message names the keys.
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
            digests: Keys; None for all records, and for damaged files that were set aside. Records of a later schema
                stay.

        Returns:
            The number of keys that were removed.

        Raises:
            RecordError: The folder cannot be changed.
        """
        wanted = None if digests is None else set(digests)
        removed = set()
        for path in [path for path in _unwritten if path.is_relative_to(self.root)]:
            if wanted is None or path.stem in wanted:
                del _unwritten[path]
                removed.add(path.stem)
        if not os.path.isdir(self.root):
            return len(removed)
        try:
            with self._own.changing():
                for path, _ in list(self._own.files()):
                    if (wanted is None or path.stem in wanted) and not self._is_future(path):
                        self._own.trusted.remove(self._own.name(path))
                        removed.add(path.stem)
                if wanted is None:
                    for name in list(self._own.set_aside()):
                        self._own.trusted.remove(name)
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

    def export(self, path: Path, records: Iterable[Record] | None = None, signer: SigningKey | None = None) -> int:
        """Write records into a bundle, whole or not at all.

        Args:
            path: The file; replaced if it exists.
            records: The records; None for all, united over folders as in :meth:`load`.
            signer: Signs them; None to leave them unsigned.

        Returns:
            The number of records that were written.

        Raises:
            RecordError: The file cannot be written.
        """
        from warp_tiles.remote.bundle import write_bundle
        from warp_tiles.remote.envelope import pack

        entry = self.entry(records, signer)
        try:
            write_bundle(Path(path), [(RECORDS, entry.key, pack(RECORDS, entry, ANY_TOOLCHAIN, signer))])
        except BundleError as error:
            raise RecordError(f"tuning records cannot be exported: {error.message}", remedy=error.remedy) from error
        return count_of(entry)

    def entry(self, records: Iterable[Record] | None = None, signer: SigningKey | None = None) -> Entry:
        """Records as the entry of a signer, for a bundle or a remote store. See :meth:`export`.

        Raises:
            RecordError: They are more than an import reads.
        """
        from warp_tiles.cache.manifest import Entry, Manifest

        if records is None:
            keys = {stored.record.key.digest: stored.record.key for stored in self.records()}
            records = filter(None, (self.load(key) for _, key in sorted(keys.items())))
        chosen = list(records)
        data = encode_bundle(chosen)
        if len(data) > MAX_EXPORT_BYTES:
            raise RecordError(
                f"{len(chosen)} tuning records have {len(data)} bytes, and at most {MAX_EXPORT_BYTES} are imported",
                remedy="export some of them by their keys",
            )
        key = records_key(signer.public.key_id if signer is not None else "")
        return Entry(key.digest, data, Manifest.describe(key, data, {"records": len(chosen)}))

    def import_(self, path: Path, trusted: Mapping[str, PublicKey] | None = None) -> int:
        """Add the records of an exported file to the user's folder: all of them, or none.

        Known timings stay. Only timings of configurations that the user's records lack are added.

        Args:
            path: A bundle, signed by a trusted key or unsigned; or the JSON file that earlier versions exported.
            trusted: The keys whose signatures count, by key id.

        Returns:
            The number of records in the file.

        Raises:
            RecordError: The file cannot be read, is not an export or has a later schema, or cannot be stored.
        """
        from warp_tiles.remote.bundle import Bundle

        try:
            with open_input(path) as stream:
                is_json = stream.read(1) == b"{"
            if is_json:
                return self.import_bytes(read_whole(path, MAX_EXPORT_BYTES)[0], path)
            with Bundle(path, trusted or {}, unsigned=True) as bundle:
                data = [bundle.read(RECORDS, key, MAX_EXPORT_BYTES).payload for key in bundle.names(RECORDS)]
        except OSError as error:
            raise RecordError(f"{path} is not imported: {reason_of(error)}", remedy="check the path") from error
        except BundleError as error:
            raise RecordError(f"the tuning records are not imported: {error.message}", error.remedy) from error
        return sum(self.import_bytes(each, path) for each in data)

    def import_bytes(self, data: bytes, path: object) -> int:
        """Add the records of an :meth:`entry`, see :meth:`import_`. Errors name ``path``."""
        try:
            if len(data) > MAX_EXPORT_BYTES:
                raise ValueError(f"it has {len(data)} bytes, and at most {MAX_EXPORT_BYTES} are read")
            incoming = decode_bundle(data)
        except FutureSchemaError as error:
            raise RecordError(f"{path} is not imported: {error}", remedy="use the release that wrote it") from error
        except ValueError as error:
            raise RecordError(
                f"{path} is not imported: {error}", remedy="give a file that warp-tiles tune export wrote"
            ) from error
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
        files, before = self._own.trusted, dict[str, "bytes | None"]()
        try:
            for record in records:
                name = self._own.name(self._own.path(record.key))
                if name not in before:
                    before[name] = None
                    with suppress(FileNotFoundError):
                        before[name] = files.read(name, MAX_BYTES)[0]
                self._own.write(record)
        except BaseException:
            for name, data in before.items():
                with suppress(OSError):
                    if data is None:
                        files.remove(name)
                    else:
                        files.write(name, data)
            raise

    def fingerprint(self, subject_prefix: str) -> str:
        """SHA-256 over the records of these subjects: name, size, time and inode of each file."""
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


def records_key(signer: str) -> CacheKey:
    """The key of the records of a signer; of unsigned ones if it is empty."""
    from warp_tiles.cache.key import CacheKey

    return CacheKey.of({"kind": "tuning records", "signer": signer})


def count_of(entry: Entry) -> int:
    """The number of records in an entry of :meth:`RecordStore.entry`."""
    return int(str(entry.manifest.info["records"]))


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
