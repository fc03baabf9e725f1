"""Tuning records on disk: the user's own, and those that applications ship.

<root>/<subject>/<key digest>.json  one record
<root>/<subject>/*.damaged          files that could not be read, set aside
<root>/.locks/                      a lock for changes, and one per key that is searched for
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.errors import BundleError, RecordError, RemoteError, suppressed, unless_signalled
from warp_tiles.settings import Settings, current
from warp_tiles.store import ANY_TOOLCHAIN, MEASUREMENTS, RECORDS, SIGNED_BY, absolute, cache_root, is_digest
from warp_tiles.store.documents import Documents, FutureSchemaError, reason_of
from warp_tiles.store.key import CacheKey, Entry, Manifest
from warp_tiles.tuning.record import (
    Environment,
    Record,
    Scalar,
    Timing,
    TuningKey,
    decode_record,
    decode_records,
    encode_record,
    encode_records,
    slug,
)
from warp_tiles.util.files import read_whole
from warp_tiles.util.trusted_folder import RefusedFolderError
from warp_tiles.util.warn import log, warn_once

if TYPE_CHECKING:
    from warp_tiles.store.keys import PublicKey, SigningKey
    from warp_tiles.store.remote import RemoteStore
    from warp_tiles.store.transfer import Transfer

#: Largest export that is read: thousands of records as a search writes them. Any JSON of this size takes 250 MB.
MAX_EXPORT_BYTES = 8 << 20
# records that could not be written, by path; a forked child inherits them
_unwritten: dict[Path, Record] = {}
_unwritten_lock = threading.Lock()
_POLL_S = 0.05


class _Searching(threading.local):
    def __init__(self) -> None:
        self.locks: set[Path] = set()  # of the searches of this thread


_searching = _Searching()


class RecordFolder(Documents[Record]):
    """The records of one folder. Its problems are warnings."""

    read_only = False

    def __init__(self, root: Path, folder: str = "", *, shared: bool = False) -> None:
        super().__init__(root, replace(MEASUREMENTS, folder=folder), decode_record, encode_record, shared=shared)
        self.root = self.files.path("")

    def names(self, subject_prefix: str = "", suffix: str = MEASUREMENTS.suffix) -> list[str]:
        """The records of subjects that begin with a prefix, in order. Similar subjects may be among them."""
        subjects = [name for name in self._listed("") if name.startswith(slug(subject_prefix)) and name[0] != "."]
        files = (Path(subject, file) for subject in subjects for file in self._listed(subject))
        return [str(file.with_suffix("")) for file in files if file.suffix == suffix and is_digest(file.stem)]

    def _listed(self, folder: str) -> list[str]:
        """The names in a folder, in order: of folders in the root, and of files in a folder of a subject."""
        if not folder:
            return self.files.folders()
        return sorted(name.rpartition("/")[2] for name, _ in self.files.files(folder))

    def unusable(self, error: OSError) -> None:
        """Warn once that the folder is not used."""
        reason = reason_of(error)
        if isinstance(error, RefusedFolderError):
            reason = f"{error.path}: {error.reason}; chmod 700 it, or set WARP_TILES_CACHE_SHARED=1"
        warn_once(f"the tuning records in {self.root} are not used: {reason}")

    def _unusable(self, name: str, error: Exception) -> None:
        if isinstance(error, NotADirectoryError):  # there are no records, and the first write says so
            return
        if isinstance(error, RefusedFolderError):
            self.unusable(error)
        else:
            what = "left alone" if isinstance(error, FutureSchemaError) else "not used"
            warn_once(f"the tuning record {self.path(name)} is {what}: {reason_of(error)}")

    def _damaged(self, name: str, error: ValueError, problem: OSError | None = None) -> None:
        what = f"the tuning record {self.path(name)} is damaged ({error})"
        if problem is None:
            warn_once(f"{what}; it was set aside as {Path(name).name}{self.kind.aside}")
        else:
            warn_once(f"{what} and cannot be set aside: {reason_of(problem)}")

    def _unlocked(self, error: OSError) -> None:
        if isinstance(error, TimeoutError):
            raise error
        warn_once(f"records in {self.root} can be lost when several processes tune: {reason_of(error)}")


class ShippedFolder(RecordFolder):
    """A folder that comes with an application. It is never written. Package managers may create links in it."""

    read_only = True

    def load(self, name: str) -> Record:
        return self.decode(read_whole(self.path(name), self.kind.most_bytes)[0], name)

    def _listed(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(os.listdir(self.root / folder))
        return []

    def _repaired(self, name: str, error: ValueError) -> None:
        warn_once(f"the tuning record {self.path(name)} is damaged and not used: {error}")


@dataclass(frozen=True)
class StoredRecord:
    """A record and its file, even if the file could not be written. A shipped one is read-only."""

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
        self._own = RecordFolder(absolute(root), folder, shared=shared)
        self.root = self._own.root
        self._folders = (*(ShippedFolder(absolute(path)) for path in read_only), self._own)

    def load(self, key: TuningKey) -> Record | None:
        """Returns the record of a key, united over all folders; None if there is none.

        If several folders have a timing of one configuration, timings with the key's driver and Warp patch release
        count before others. Of those, finished ones count before unfinished ones. Of those, the first folder's counts.
        """
        *shipped, own = (folder.read(key.file) for folder in self._folders)
        records = [record for record in (*shipped, _unwritten.get(self._own.path(key.file)), own) if record is not None]
        return _united(key, records, key.environment.soft()) if records else None

    def merge(self, key: TuningKey, timings: Sequence[Timing]) -> Record:
        """Add timings to the user's record, in place of older ones. Returns what :meth:`load` then returns.

        A file of a later schema does not change, and the timings then last as long as the process. A configuration
        without a JSON form raises TypeError or ValueError, and nothing is changed.
        """
        name, path = key.file, self._own.path(key.file)
        self._own.encode(Record(key, tuple(timings)))
        try:
            with self._own.changing():
                known = self._own.load_for_change(name) or Record(key)
                early = _unwritten[path].timings if path in _unwritten else ()
                self._own.store(name, replace(known, key=key).merged((*early, *timings)))
                _unwritten.pop(path, None)
        except unless_signalled(OSError) as error:
            with _unwritten_lock:
                _unwritten[path] = replace(_unwritten.get(path, Record(key)), key=key).merged(timings)
            what = f"tuning records cannot be written to {self.root} ({reason_of(error)})"
            warn_once(f"{what}; results last as long as this process")
        return self.load(key) or Record(key).merged(timings)

    @contextmanager
    def single_flight(self, key: TuningKey, timeout_s: float | None = None) -> Iterator[bool]:
        """Let one thread of one process search for a key, while others wait for ``timeout_s``; None for no limit.

        Load the record again in the block in either case: another search may have just ended. It gets True if this
        thread may search, also if nobody can hold a lock. It gets False if another search has ended meanwhile or still
        runs, or if this thread is searching for the key.
        """
        files, name = self._own.files, _lock_of(key)
        lock = files.path(name)
        with ExitStack() as held:
            may_search = not self.searches(key)
            if may_search:
                try:
                    held.enter_context(files.lock(name, 0.0))
                except unless_signalled(TimeoutError):
                    may_search = False
                    wait_s = -1.0 if timeout_s is None else timeout_s
                    waiting = partial(log.warning, "waiting for %s, which searches for the same configuration")
                    with suppressed(OSError), files.lock(name, wait_s, _POLL_S, waiting):
                        pass
                except unless_signalled(OSError) as error:
                    warn_once(f"searches are not coordinated: {self.root} cannot be used ({reason_of(error)})")
            if may_search:
                _searching.locks.add(lock)
                held.callback(_searching.locks.discard, lock)
            yield may_search

    def searches(self, key: TuningKey) -> bool:
        """Returns True if this thread is in the block of :meth:`single_flight` for a key."""
        return self._own.files.path(_lock_of(key)) in _searching.locks

    def records(self, subject_prefix: str = "") -> list[StoredRecord]:
        """The record of each file whose subject begins with a prefix, folder by folder in lookup order."""
        stored_records = []
        for folder in self._folders:
            if folder is self._own:
                early = [
                    (path, record) for path, record in sorted(_unwritten.items()) if path.is_relative_to(self.root)
                ]
                stored_records += [StoredRecord(path, record, read_only=False) for path, record in early]
            try:
                for name in folder.names(subject_prefix):
                    if (record := folder.read(name)) is not None:
                        stored_records.append(StoredRecord(folder.path(name), record, folder.read_only))
            except unless_signalled(OSError) as error:
                folder.unusable(error)
        return [stored for stored in stored_records if stored.record.key.subject.startswith(subject_prefix)]

    def united(self, subject_prefix: str = "", present: Environment | None = None) -> list[Record]:
        """The records of :meth:`records`, united over folders as by :meth:`load`, by their keys in order.

        Timings with the driver and Warp patch release of ``present`` count first. None takes both from the record's key
        in the last folder that has it; the user's own folder is the last one.
        """
        by_key: dict[str, list[Record]] = {}
        for stored in self.records(subject_prefix):
            by_key.setdefault(stored.record.key.digest, []).append(stored.record)
        keyed = [(several[-1].key, several) for _, several in sorted(by_key.items())]
        return [_united(key, several, (present or key.environment).soft()) for key, several in keyed]

    def find(self, digest_prefix: str) -> StoredRecord:
        """The record whose key begins with these hex digits, as :meth:`load` gives it, and its first file.

        Raises RecordError for none or several keys.
        """
        everything = self.records()
        fitting = [
            stored for stored in everything if digest_prefix and stored.record.key.digest.startswith(digest_prefix)
        ]
        keyed = {stored.record.key.digest: stored for stored in reversed(fitting)}
        if len(keyed) == 1:
            return replace(fitting[0], record=self.load(fitting[0].record.key) or fitting[0].record)
        several = f"{len(keyed)} tuning records begin with {digest_prefix!r}: {_named(keyed.values())}"
        none = f"no tuning record begins with {digest_prefix!r}; there are {_named(everything) or 'none'}"
        raise RecordError(*((several, "give more digits") if keyed else (none, "warp-tiles tune list shows every key")))

    def remove(self, digests: Iterable[str] | None = None) -> int:
        """Remove the user's records of some keys, or all and damaged files. Returns the number of keys.

        Raises RecordError if the folder cannot be changed.
        """
        own, wanted = self._own, None if digests is None else set(digests)
        early = [path for path in _unwritten if path.is_relative_to(self.root)]
        removed = {path for path in early if wanted is None or path.stem in wanted}
        for path in removed:
            del _unwritten[path]
        if not os.path.isdir(self.root):
            return len(removed)
        try:
            with own.changing():
                for name in own.names():
                    if wanted is None or Path(name).name in wanted:
                        own.files.remove(own.file(name))
                        removed.add(own.path(name))
                for name in own.names(suffix=own.kind.aside) if wanted is None else ():
                    own.files.remove(f"{name}{own.kind.aside}")
        except unless_signalled(OSError) as error:
            message = f"tuning records in {self.root} cannot be removed: {reason_of(error)}"
            raise RecordError(message, remedy="check that the folder is yours") from error
        return len(removed)

    def export(
        self,
        path: Path,
        records: Iterable[Record] | None = None,
        signer: SigningKey | None = None,
        facts: Mapping[str, object] | None = None,
    ) -> int:
        """Write records, by default all, into a bundle, whole or not at all, and return their number.

        Raises RecordError if the file cannot be written.
        """
        from warp_tiles.store.bundle import write_bundle
        from warp_tiles.store.envelope import pack

        chosen = list(self.united() if records is None else records)
        entry = records_entry(chosen, signer, facts)
        try:
            write_bundle(Path(path), [(RECORDS, entry.key, pack(RECORDS, entry, ANY_TOOLCHAIN, signer))])
        except BundleError as error:
            raise RecordError(f"tuning records cannot be exported: {error.message}", remedy=error.remedy) from error
        return len(chosen)

    def import_(self, path: Path, trusted: Mapping[str, PublicKey] | None = None) -> int:
        """Add the records of an exported file to the user's folder, if all of them are valid. Returns their number.

        Known timings stay. Only timings of configurations that the user's records lack are added. So an import that a
        full disk has cut short can be repeated. A file that is signed needs a key of ``trusted``.

        Raises:
            RecordError: The file cannot be read, is not an export or has a later schema, or cannot be stored.
        """
        return sum(self.import_bytes(entry.payload, path) for entry in read_export(path, trusted))

    def import_bytes(self, data: bytes, path: object) -> int:
        """Add the records of an exported entry, see :meth:`import_`. Errors name ``path``."""
        try:
            if len(data) > MAX_EXPORT_BYTES:
                raise ValueError(f"it has {len(data)} bytes, and at most {MAX_EXPORT_BYTES} are read")
            incoming = decode_records(data)
        except ValueError as error:
            remedy = "give a file that `warp-tiles tune export` of this release or of an earlier one wrote"
            raise RecordError(f"{path} is not imported: {error}", remedy) from error
        records: dict[str, Record] = {}
        try:
            with self._own.changing():
                for record in incoming:
                    name = record.key.file
                    known = records.get(name) or self._own.load_for_change(name)
                    records[name] = record.merged(() if known is None else known.timings)
                for name, record in records.items():
                    self._own.store(name, record)
        except unless_signalled(OSError) as error:
            message = f"{path} is not imported, {self.root} cannot be changed: {reason_of(error)}"
            raise RecordError(message, remedy="check that the folder is yours and has space") from error
        return len(incoming)

    def push(self, remote: RemoteStore) -> Transfer:
        """Write all records to a remote store as one object, and remove older objects of its signer that it contains.

        An object is named by its content and never changes, so machines that push at once lose nothing. Raises
        RecordError if the records cannot be read or stored.
        """
        from warp_tiles.store.transfer import Transfer

        signer = remote.signer
        assert signer is not None
        try:
            objects, _ = _objects(remote, signer.public.key_id)
        except RemoteError:  # the store has no lists
            objects = {}
        records = {record.key.digest: record for record in self.united()}
        replaced = set()
        for key, data in objects.items():
            with suppress(ValueError):  # of a later schema, which stays
                for record in decode_records(data):
                    own = records.get(record.key.digest)
                    records[record.key.digest] = record.merged(() if own is None else own.timings)
                replaced.add(key)
        entry = records_entry([record for _, record in sorted(records.items())], signer)
        result = Transfer(present=len(records))
        if records and entry.key not in objects:
            if not remote.push(RECORDS, entry):
                return Transfer(failed=len(records))
            result = Transfer(moved=len(records), moved_bytes=len(entry.payload))
        for key in replaced - {entry.key}:
            remote.remove(RECORDS, key)
        return result

    def pull(self, remote: RemoteStore) -> Transfer:
        """Add the records of all signers that a remote store trusts. Known timings stay.

        Raises RemoteError if the store does not answer or cannot be listed, and RecordError if records cannot be
        stored.
        """
        objects, result = _objects(remote)
        return replace(result, moved=sum(self.import_bytes(data, remote.url) for data in objects.values()))


def _objects(remote: RemoteStore, signer: str = "") -> tuple[dict[str, bytes], Transfer]:
    """The records of a remote store by their keys, of all signers or of one key id; and what could not be read."""
    from warp_tiles.store.transfer import Transfer

    objects, result = {}, Transfer()
    asked: set[str] = set()
    while fresh := set(remote.keys(RECORDS)) - asked:  # again, because a push replaces objects
        asked |= fresh
        for key in sorted(fresh):
            entry, answered = remote.ask(RECORDS, key)
            if entry is None:
                result += Transfer(skipped=1) if answered else Transfer(failed=1)
            elif signer in ("", entry.manifest.info[SIGNED_BY]):
                objects[key] = entry.payload
                result += Transfer(moved_bytes=len(entry.payload))
    return objects, result


def read_export(path: Path, trusted: Mapping[str, PublicKey] | None = None) -> list[Entry]:
    """The entries of an exported file, whose records are not decoded yet. Raises RecordError if it is not an export."""
    from warp_tiles.store.bundle import Bundle

    try:
        with Bundle(path, trusted or {}, unsigned=True) as bundle:
            return [bundle.read(RECORDS, key, MAX_EXPORT_BYTES) for key in bundle.names(RECORDS)]
    except BundleError as error:
        raise RecordError(f"the tuning records are not imported: {error.message}", error.remedy) from error


def open_store(now: Settings | None = None) -> RecordStore:
    """Returns the store that the settings name: the folders of ``record_paths``, then ``tuning`` in the cache folder.

    Raises SettingError for a wrong environment variable, and BundleError if the bundle of the settings cannot be used.
    """
    now = current() if now is None else now
    if now.bundle is not None:
        return _bundled_records(now.bundle, now.trusted_keys)
    for path in now.record_paths:
        if not os.path.isdir(path):
            warn_once(f"there is no folder {path} of tuning records, although the setting record_paths names it")
    return RecordStore(cache_root(now.cache_dir), now.record_paths, folder=MEASUREMENTS.folder, shared=now.cache_shared)


@cache
def _bundled_records(bundle: Path, given: tuple[str, ...]) -> RecordStore:
    """The records of a deployment bundle, which alone count then. They last as long as the process."""
    from warp_tiles.store.bundle import Bundle
    from warp_tiles.store.keys import trusted_keys

    folder = tempfile.mkdtemp(prefix="warp_tiles_records_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store = RecordStore(Path(folder))
    with Bundle(bundle, trusted_keys(given)) as opened:
        for key in opened.names(RECORDS):
            if (entry := opened.fetch(RECORDS, key, ANY_TOOLCHAIN)) is not None:
                store.import_bytes(entry.payload, bundle)
    return store


def records_key(data: bytes, signer: str) -> CacheKey:
    return CacheKey.of({"kind": "tuning records", "signer": signer, "records": hashlib.sha256(data).hexdigest()})


def records_entry(
    records: Sequence[Record], signer: SigningKey | None = None, facts: Mapping[str, object] | None = None
) -> Entry:
    """Records as the entry of a signer or unsigned, for a bundle or a remote store, with JSON facts by name.

    Raises RecordError if there are more than an import reads.
    """
    data = encode_records(records)
    if len(data) > MAX_EXPORT_BYTES:
        raise RecordError(
            f"{len(records)} tuning records have {len(data)} bytes, and at most {MAX_EXPORT_BYTES} are imported",
            remedy="export some of them by their keys",
        )
    key = records_key(data, signer.public.key_id if signer is not None else "")
    return Entry(data, Manifest.describe(key, data, {**(facts or {}), "records": len(records)}))


def _lock_of(key: TuningKey) -> str:
    return f".locks/{key.digest}.lock"


def _united(key: TuningKey, records: Sequence[Record], present: Mapping[str, Scalar]) -> Record:
    if len(records) == 1:
        return replace(records[0], key=key)
    best: dict[str, Timing] = {}
    for timing in (timing for record in records for timing in record.timings):
        first = best.get(timing.identity, timing)
        best[timing.identity] = max(first, timing, key=lambda known: (known.soft == present, not known.unfinished))
    return Record(key, tuple(best.values()))


def _named(records: Iterable[StoredRecord], limit: int = 8) -> str:
    keys = {stored.record.key.digest: stored.record.key.subject for stored in records}
    names = [f"{digest[:12]} ({subject})" for digest, subject in sorted(keys.items())]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
