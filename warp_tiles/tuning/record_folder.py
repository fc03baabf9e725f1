"""Folders of tuning records: ``<subject>/<key digest>.json``, each a document of the store."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from warp_tiles.store.documents import Documents
from warp_tiles.store.kinds import MEASUREMENTS
from warp_tiles.store.paths import is_digest
from warp_tiles.store.report import reason_of
from warp_tiles.store.sealed import FutureSchemaError
from warp_tiles.tuning.record import Record, decode_record, encode_record
from warp_tiles.tuning.tuning_key import TuningKey
from warp_tiles.util.files import read_whole
from warp_tiles.util.trusted_folder import RefusedFolderError
from warp_tiles.util.warn import WarnedTexts, warn

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


def name_of(key: TuningKey) -> str:
    """The name of a key's record."""
    return f"{slug(key.subject) or '-'}/{key.digest}"


class RecordFolder(Documents[Record]):
    """The records of one folder. Its problems are warnings.

    Args:
        root: The folder, or the folder of the cache that contains it; nothing is created until something is written.
        folder: The folder of the records, by name below the root; empty for the root itself.
        shared: Accept a root that other users can write, and let them read and write new files.
    """

    read_only = False

    def __init__(self, root: Path, folder: str = "", *, shared: bool = False) -> None:
        super().__init__(root, replace(MEASUREMENTS, folder=folder), decode_record, encode_record, shared=shared)
        self.root = self.files.path("")

    def names(self, subject_prefix: str = "", suffix: str = MEASUREMENTS.suffix) -> list[str]:
        """The records of subjects that begin with a prefix, in order. Similar subjects may be among them.

        Raises:
            OSError: The folder is refused, or cannot be listed.
        """
        subjects = (name for name in self._listed("") if name.startswith(slug(subject_prefix)) and name[0] != ".")
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
        """See :class:`Documents`."""
        return self.decode(read_whole(self.path(name), self.kind.most_bytes)[0], name)

    def _listed(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(os.listdir(self.root / folder))
        return []

    def _repaired(self, name: str, error: ValueError) -> None:
        warn_once(f"the tuning record {self.path(name)} is damaged and not used: {error}")
