"""One folder of tuning records: ``<root>/<subject>/<key digest>.json``, and locks under ``<root>/.locks``."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from warp_tiles.store.kinds import MEASUREMENTS
from warp_tiles.store.paths import is_digest
from warp_tiles.store.sealed import read_bounded
from warp_tiles.tuning.record import FutureSchemaError, Record, decode_record, encode_record
from warp_tiles.tuning.tuning_key import TuningKey
from warp_tiles.util.files import read_whole
from warp_tiles.util.threads import suppressed, unless_signalled
from warp_tiles.util.trusted_folder import NoLocksError, RefusedFolderError, TrustedFolder, store_lock
from warp_tiles.util.warn import WarnedTexts, warn

DAMAGED_SUFFIX = ".damaged"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_SLUG_LENGTH = 100

_warned = WarnedTexts()


def warn_once(text: str) -> None:
    """Warn of a problem with tuning records, once per process."""
    warn(text, _warned)


def slug(subject: str) -> str:
    """Returns the folder name of a subject. A prefix of the subject gives a prefix of the name."""
    text = _UNSAFE.sub("-", subject)[:_SLUG_LENGTH]
    return f"-{text[1:]}" if text.startswith(".") else text


def lock_name(what: str) -> str:
    """The lock of a folder's changes (``store``), or of a search for a key, by name below the root."""
    return f".locks/{what}.lock"


class RecordFolder:
    """The files of one folder.

    Args:
        root: The folder, or the folder of the cache that contains it; nothing is created until something is written.
        folder: The folder of the records, by name below the root; empty for the root itself.
        read_only: True for a shipped folder, which is never written.
        shared: Accept a root that other users can write, and let them read and write new files.
    """

    def __init__(self, root: Path, folder: str = "", *, read_only: bool, shared: bool = False) -> None:
        self.root = root / folder
        self.trusted = TrustedFolder(root, folder, shared=shared)
        self.read_only = read_only

    def path(self, key: TuningKey) -> Path:
        """The file of a key's record."""
        return self.root / (slug(key.subject) or "-") / f"{key.digest}.json"

    def name(self, path: Path) -> str:
        """The name of a file below the root."""
        return path.relative_to(self.root).as_posix()

    def files(self, subject_prefix: str = "", suffix: str = ".json") -> Iterator[Path]:
        """Yield the files of subjects that begin with a prefix, sorted by name. Similar subjects may be among them.

        Raises:
            OSError: The folder is refused, or cannot be listed.
        """
        wanted = slug(subject_prefix)
        for subject in self._names(""):
            if subject.startswith(wanted) and not subject.startswith("."):
                for path in (self.root / subject / name for name in self._names(subject)):
                    if path.suffix == suffix and is_digest(path.stem):
                        yield path

    def _names(self, folder: str) -> list[str]:
        """The names in a folder. In a shipped folder, package managers may create links, which are followed."""
        if self.read_only:
            with suppress(FileNotFoundError, NotADirectoryError):
                return sorted(os.listdir(self.root / folder))
            return []
        if not folder:
            return self.trusted.folders()
        return sorted(name.rpartition("/")[2] for name, _ in self.trusted.files(folder))

    def read(self, path: Path) -> Record | None:
        """Returns the record of a file; None if there is no readable record.

        A damaged file causes a warning and is set aside, unless the folder is read-only. A file of a later schema
        causes a warning and stays.
        """
        try:
            return self._decode(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except FutureSchemaError as error:
            warn_once(f"the tuning record {path} is left alone: {error}")
        except ValueError as error:
            if self.read_only:
                warn_once(f"the tuning record {path} is damaged and not used: {error}")
                return None
            try:
                with self.changing():
                    return self.read_for_change(path)
            except unless_signalled(OSError) as problem:
                reason = reason_of(problem)
                warn_once(f"the tuning record {path} is damaged ({error}) and cannot be set aside: {reason}")
        except RefusedFolderError as error:
            self.warn_of(error)
        except unless_signalled(OSError) as error:
            warn_once(f"the tuning record {path} is not used: {reason_of(error)}")
        return None

    def warn_of(self, error: OSError) -> None:
        """Warn once that the folder is not used."""
        reason = reason_of(error)
        if isinstance(error, RefusedFolderError):
            reason = f"{error.path}: {error.reason}; chmod 700 it, or set WARP_TILES_CACHE_SHARED=1"
        warn_once(f"the tuning records in {self.root} are not used: {reason}")

    def _decode(self, path: Path) -> Record:
        if self.read_only:
            data, _ = read_whole(path, MEASUREMENTS.most_bytes)
        else:
            data, _ = read_bounded(self.trusted, self.name(path), MEASUREMENTS.most_bytes)
        return decode_record(data, path.stem)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the folder's lock. If the file system has no locks, warn and make the change without one.

        Raises:
            OSError: The folder cannot be used, or another process locks it for too long.
        """
        with ExitStack() as held:
            try:
                held.enter_context(store_lock(self.trusted, lock_name("store")))
            except NoLocksError as error:
                warn_once(f"records in {self.root} can be lost when several processes tune: {reason_of(error)}")
            yield

    def read_for_change(self, path: Path) -> Record | None:
        """Returns the record of a file, or None. A damaged file is set aside, so the caller must hold the lock.

        Raises:
            OSError: The file has a later schema, or cannot be read or set aside.
        """
        try:
            return self._decode(path)
        except FileNotFoundError:
            return None
        except FutureSchemaError as error:
            raise OSError(errno.EPERM, f"{path} is left alone: {error}") from error
        except ValueError as error:
            aside = path.with_suffix(DAMAGED_SUFFIX)
            self.trusted.move(self.name(path), self.name(aside))
            warn_once(f"the tuning record {path} is damaged ({error}); it was set aside as {aside.name}")
            return None

    def write(self, record: Record) -> None:
        """Write a record's file, unless it has that content already. The caller must hold the lock.

        Raises:
            OSError: The file cannot be written.
            TypeError, ValueError: A configuration has no JSON form.
        """
        name, data = self.name(self.path(record.key)), encode_record(record)
        if len(data) > MEASUREMENTS.most_bytes:
            reason = f"the record has {len(data)} bytes, and at most {MEASUREMENTS.most_bytes} are read"
            raise OSError(errno.EFBIG, reason)
        with suppressed(OSError):
            if self.trusted.read(name, len(data))[0] == data:  # a new file would change fingerprints
                return
        self.trusted.write(name, data)


def reason_of(error: OSError) -> str:
    """The message of the operating system, without path and number."""
    return error.strerror or str(error) or type(error).__name__
