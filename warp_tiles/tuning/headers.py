"""Warp's precompiled headers for the CPU, kept between processes: 1.7 s of every search that builds for the CPU.

They lie in a cache of their own, ``headers`` beside the tuning records: one entry for each Warp, processor and state of
Warp's headers, with the files that Warp has made so far. Clang refuses a file that does not fit its compilation, and
Warp then builds without it, so that a wrong one costs time and no result.
"""

from __future__ import annotations

import contextlib
import io
import logging
import platform
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from warp_tiles.cache import Cache, CacheKey, default_root
from warp_tiles.errors import CacheError, SeamError
from warp_tiles.files import write_atomic
from warp_tiles.settings import Settings
from warp_tiles.tuning.environment import instruction_sets, processor

log = logging.getLogger("warp_tiles")

_MAX_BYTES = 128 << 20  # a file has 4.6 MB, and Warp makes one for each optimization level
_UNUSABLE = (CacheError, SeamError, OSError)


def headers_key(warp_folder: Path, version: str) -> CacheKey:
    """What headers for the CPU are made from.

    Args:
        warp_folder: Warp's package; files of ``native`` and ``bin`` enter with size and time of change, as Clang
            compares them.
        version: Warp's version.

    Raises:
        OSError: The folder cannot be read.
    """
    files = sorted(path for name in ("native", "bin") for path in (warp_folder / name).rglob("*") if path.is_file())
    states = [(path.relative_to(warp_folder).as_posix(), path.stat()) for path in files]
    return CacheKey.of(
        {
            "files": [f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in states],
            "folder": str(warp_folder),
            "instruction_sets": instruction_sets(),
            "kind": "precompiled headers",
            "machine": platform.machine(),
            "processor": processor(),
            "warp": version,
        }
    )


@contextlib.contextmanager
def kept_headers(now: Settings) -> Iterator[None]:
    """Have builds for the CPU in the block find what earlier processes precompiled, and keep what they add.

    Where headers cannot be kept, they are precompiled again, and nothing fails.

    Args:
        now: Says where the cache is.
    """
    import warp as wp

    shelf: Shelf | None = None
    try:
        root = (now.cache_dir or default_root()) / "headers"
        cache = Cache(root, max_bytes=_MAX_BYTES, allow_shared=now.cache_shared, suffix=".zip")
        shelf = Shelf(cache, headers_key(Path(wp.__file__).parent, wp.__version__))
        shelf.take()
    except _UNUSABLE as error:
        log.info("tuning: precompiled headers of earlier processes are not used: %s", error)
    try:
        yield
    finally:
        if shelf is not None:
            try:
                shelf.keep()
            except _UNUSABLE as error:
                log.info("tuning: precompiled headers are not kept: %s", error)


class Shelf:
    """The entry of the cache that holds headers, as a zip archive.

    Args:
        cache: Where it is.
        key: What they are made from.
    """

    def __init__(self, cache: Cache, key: CacheKey) -> None:
        self._cache = cache
        self._key = key
        self._stored: frozenset[str] = frozenset()

    def take(self) -> None:
        """Give this thread the headers that it does not have; threads of a search take them from it.

        Raises:
            CacheError: The folder is refused.
            SeamError: This Warp keeps headers elsewhere.
            OSError: They cannot be written.
        """
        from warp_tiles._warp.searches import headers_folder

        stored = self._read()
        self._stored = frozenset(stored)
        folder = headers_folder()
        for name, data in stored.items():
            if not (folder / name).exists():
                write_atomic(folder / name, data)

    def keep(self) -> None:
        """Add what this process has precompiled to the entry, if there is anything new.

        Raises:
            What :meth:`take` raises.
        """
        from warp_tiles._warp.searches import precompiled_headers

        made = {name: path for name, path in precompiled_headers().items() if name not in self._stored}
        if not made:
            return
        stored = self._read() | {name: path.read_bytes() for name, path in made.items()}
        self._cache.put(self._key, _archive(stored), {"headers": sorted(stored)})
        self._stored = frozenset(stored)

    def _read(self) -> dict[str, bytes]:
        entry = self._cache.get(self._key)
        if entry is None:
            return {}
        try:
            with zipfile.ZipFile(io.BytesIO(entry.payload)) as archive:
                return {Path(name).name: archive.read(name) for name in archive.namelist()}
        except zipfile.BadZipFile as error:
            log.info("tuning: kept headers are not used: %s", error)
            return {}


def _archive(files: Mapping[str, bytes]) -> bytes:
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), data)
    return result.getvalue()
