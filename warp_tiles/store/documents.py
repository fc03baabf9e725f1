"""Small sealed JSON files beside the cache, which save time and can be written again: facts about the toolchain, keys
that missed, modules of earlier runs.

A damaged file is reported once and removed. If the folder cannot be used, nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from warp_tiles.store.report import Problems
from warp_tiles.store.sealed import DamagedError, seal, unseal
from warp_tiles.util.files import FileTooLargeError
from warp_tiles.util.threads import raise_if_signalled, suppressed
from warp_tiles.util.trusted_folder import RefusedFolderError, TrustedFolder

MAX_BYTES = 4 << 20
_SUFFIX = ".json"


class Documents:
    """The files of one folder.

    Args:
        folder: The folder of the files, by name below the root.
        shared: Accept a root that others can write.
        most: The largest number of files; the oldest are removed first. 0 for no limit.
        private: The files are for this user alone, also below a shared root.
    """

    def __init__(self, root: Path, folder: str, *, shared: bool = False, most: int = 0, private: bool = True) -> None:
        self.files = TrustedFolder(root, shared=shared, private=private)
        self.folder = folder
        self.problems = Problems()
        self._most = most

    def file(self, name: str) -> str:
        """The name of a document's file below the root."""
        return f"{self.folder}/{name}{_SUFFIX}"

    def read(self, name: str) -> dict[str, object] | None:
        """Returns a document, or None if it is missing, damaged or unreadable."""
        try:
            return self.load(name)
        except DamagedError as error:
            self.problems.damage(self.files.path(self.file(name)), str(error))
            with suppressed(OSError):
                self.files.remove(self.file(name))
        except RefusedFolderError as error:
            self._report(error)
        except OSError as error:  # missing, or the cache itself reports that its folder cannot be used
            raise_if_signalled(error)
        return None

    def load(self, name: str) -> dict[str, object]:
        """Returns a document.

        Raises:
            DamagedError: It is damaged. It stays.
            OSError: It is missing or unreadable, or the folder is refused.
        """
        try:
            data, _ = self.files.read(self.file(name), MAX_BYTES)
        except FileTooLargeError as error:
            raise DamagedError(f"{error.strerror}") from error
        return unseal(data)

    def write(self, name: str, body: Mapping[str, object]) -> None:
        """Store a document, and remove the oldest ones above the limit. Does nothing if the folder cannot be used."""
        try:
            self.files.write(self.file(name), seal(body), durable=False)  # its seal shows a partial file
            if self._most:
                self._remove_oldest()
        except RefusedFolderError as error:
            self._report(error)
        except OSError as error:
            raise_if_signalled(error)

    def _remove_oldest(self) -> None:
        stored = [(status.st_mtime_ns, file) for file, status in self.files.files(self.folder)]
        kept = sorted(item for item in stored if item[1].endswith(_SUFFIX))
        for _, file in kept[: max(0, len(kept) - self._most)]:
            self.files.remove(file)

    def names(self) -> list[str]:
        """The names of the stored documents, in order; none if the folder cannot be used."""
        with suppressed(OSError):
            found = (file.rpartition("/")[2] for file, _ in self.files.files(self.folder))
            return sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))
        return []

    def damage(self) -> list[tuple[Path, str]]:
        """The damaged files, each with the fault. Nothing is changed.

        Raises:
            OSError: The folder cannot be used, or is refused.
        """
        self.files.folders(self.folder)
        found = []
        for name in self.names():
            try:
                self.load(name)
            except DamagedError as error:
                found.append((self.files.path(self.file(name)), str(error)))
            except FileNotFoundError:
                pass  # removed meanwhile
        return found

    def _report(self, error: RefusedFolderError) -> None:
        if not self.files.shared:  # in a shared cache, these folders belong to the first user
            self.problems.folder(self.files.root, error)
