"""A cache whose payloads are files for other programs."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

from warp_tiles.cache._key import CacheKey
from warp_tiles.cache._sealed import DamagedError
from warp_tiles.cache._store import Cache


class FileCache(Cache):
    """A cache whose payloads are read by path."""

    def verified_path(self, key: CacheKey, digest: Callable[[Path], str]) -> Path | None:
        """Look up the file of an entry, verify it by SHA-256 and record its use. A damaged file is set aside.

        The file exists until the entry is removed, which another process can do at any time.

        Args:
            key: The key.
            digest: Returns the SHA-256 of a file. It may remember digests, as :class:`FileDigests` does.

        Returns:
            The file, or None if it is missing or damaged, or if the folder cannot be used.
        """
        try:
            manifest = self._folder.read_manifest(key.digest)
            name = self._folder.object_name(manifest.payload_sha256)
            path = self._folder.files.path(name)
            if stat.S_ISREG(self._folder.files.status(name).st_mode) and digest(path) == manifest.payload_sha256:
                self._folder.touch(key.digest)
                return path
        except FileNotFoundError:
            return None
        except (DamagedError, OSError):
            pass
        self.get(key)  # sets damaged files aside, and reports them
        return None

    def temporary_path(self) -> Path:
        """A path for a file that its writer removes. If the writer is killed, :meth:`gc` removes it after a day.

        Raises:
            OSError: The folder cannot be created, or is refused.
        """
        return self._folder.temporary_path()

    def mark(self, name: str, most: int) -> bool:
        """Leave a mark beside the entries.

        Args:
            name: A name of letters and digits.
            most: The largest number of marks. The oldest are removed first.

        Returns:
            True if the mark existed.

        Raises:
            OSError: The mark cannot be left, or the folder is refused.
        """
        return self._folder.mark(name, most)
