"""One folder of tuning records: ``<root>/<subject>/<key digest>.json``, and locks under ``<root>/.locks``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from warp_tiles.cache._paths import foreign_writers, is_digest, modes_in
from warp_tiles.tuning.encoding import FutureSchemaError, decode_record, encode_record
from warp_tiles.tuning.key import TuningKey
from warp_tiles.tuning.record import Record
from warp_tiles.util.files import make_private_folders, read_whole, write_atomic
from warp_tiles.util.locks import NoLocksError, file_lock
from warp_tiles.util.warn import WarnedTexts, warn

LOCK_TIMEOUT_S = 60.0  # a change of the folder takes milliseconds
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


class RecordFolder:
    """The files of one folder.

    Args:
        root: The folder; nothing is created until something is written.
        read_only: True for a shipped folder, which is never written.
        shared: Accept a folder that other users can write, and let them read and write new files.
    """

    def __init__(self, root: Path, *, read_only: bool, shared: bool = False) -> None:
        self.root = root
        self.read_only = read_only
        self.shared = shared

    def path(self, key: TuningKey) -> Path:
        """The file of a key's record."""
        return self.root / (slug(key.subject) or "-") / f"{key.digest}.json"

    def lock_path(self, digest: str) -> Path:
        """The lock file of a search for a key."""
        return self.root / ".locks" / f"{digest}.lock"

    def modes(self) -> tuple[int, int]:
        """Permissions of new folders and files. They follow the root, or its parent if there is no root yet.

        Raises:
            OSError: See :meth:`check_trust`.
        """
        self.check_trust()
        return modes_in(self.root if self.root.exists() else self.root.parent, self.shared)

    def check_trust(self) -> None:
        """Refuse a folder that others can write; a missing one passes.

        Raises:
            PermissionError: Others can write it, and that was not allowed.
            OSError: The folder cannot be examined.
        """
        if self.shared or self.read_only:
            return
        try:
            reason = foreign_writers(self.root)
        except (FileNotFoundError, NotADirectoryError):
            return
        if reason is not None:
            raise PermissionError(f"{reason}; chmod 700 it, or set WARP_TILES_CACHE_SHARED=1")

    def files(self, subject_prefix: str = "") -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files of subjects that begin with a prefix, sorted by name. Similar subjects may be among them.

        Raises:
            OSError: The folder cannot be listed.
        """
        self.check_trust()
        wanted = slug(subject_prefix)
        for subject in _entries(self.root):
            if subject.name.startswith(wanted) and not subject.name.startswith(".") and subject.is_dir():
                for file in _entries(subject.path):
                    if file.name.endswith(".json") and is_digest(file.name[:-5]):
                        with suppress(FileNotFoundError):
                            yield Path(file.path), file.stat(follow_symlinks=self.read_only)

    def read(self, path: Path) -> Record | None:
        """Returns the record of a file; None if there is no readable record.

        A damaged file causes a warning and is set aside, unless the folder is read-only. A file of a later schema
        causes a warning and stays.
        """
        try:
            self.check_trust()
        except OSError as error:
            warn_once(f"the tuning records in {self.root} are not used: {reason_of(error)}")
            return None
        try:
            return self._decode(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except FutureSchemaError as error:
            warn_once(f"the tuning record {path} is left alone: {error}")
        except ValueError as error:
            if self.read_only:
                warn_once(f"the tuning record {path} is damaged and not used: {error}")
            else:
                return self._set_aside(path, error)
        except OSError as error:
            warn_once(f"the tuning record {path} is not used: {reason_of(error)}")
        return None

    def _decode(self, path: Path) -> Record:
        # links are followed only in shipped folders, where package managers create them
        data, _ = read_whole(os.path.realpath(path) if self.read_only else path)
        return decode_record(data, path.stem)

    def _set_aside(self, path: Path, error: ValueError) -> Record | None:
        try:
            with self.changing():
                return self.read_for_change(path)
        except FutureSchemaError:
            return None
        except OSError as problem:
            warn_once(f"the tuning record {path} is damaged ({error}) and cannot be set aside: {reason_of(problem)}")
            return None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the folder's lock. If the file system has no locks, warn and make the change without one.

        Raises:
            OSError: The folder cannot be used, or another process locks it for too long.
        """
        folder_mode, file_mode = self.modes()
        lock = self.root / ".locks" / "store.lock"
        make_private_folders(lock.parent, folder_mode)
        with ExitStack() as held:
            try:
                held.enter_context(file_lock(lock, LOCK_TIMEOUT_S, file_mode))
            except NoLocksError as error:
                warn_once(f"records in {self.root} can be lost when several processes tune: {reason_of(error)}")
            yield

    def read_for_change(self, path: Path) -> Record | None:
        """Returns the record of a file, or None. A damaged file is set aside, so the caller must hold the lock.

        Raises:
            FutureSchemaError: The file has a later schema.
            OSError: The file cannot be read or set aside.
        """
        try:
            return self._decode(path)
        except FileNotFoundError:
            return None
        except FutureSchemaError:
            raise
        except ValueError as error:
            aside = path.with_suffix(DAMAGED_SUFFIX)
            os.replace(path, aside)
            warn_once(f"the tuning record {path} is damaged ({error}); it was set aside as {aside.name}")
            return None

    def write(self, record: Record) -> None:
        """Write a record's file, unless it has that content already. The caller must hold the lock.

        Raises:
            OSError: The file cannot be written.
            TypeError, ValueError: A configuration has no JSON form.
        """
        path, data = self.path(record.key), encode_record(record)
        with suppress(OSError):
            if read_whole(path)[0] == data:  # a new file would change fingerprints
                return
        folder_mode, file_mode = self.modes()
        make_private_folders(path.parent, folder_mode)
        write_atomic(path, data, file_mode)


def reason_of(error: OSError) -> str:
    """The message of the operating system, without path and number."""
    return error.strerror or str(error) or type(error).__name__


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
