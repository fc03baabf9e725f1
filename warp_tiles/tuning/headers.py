"""Warp's precompiled headers for the CPU, kept between processes: 1.6 s of every search that builds for the CPU.

They lie in a cache of their own, ``headers`` beside the tuning records: an entry for each file that Warp made, under
what it was made from. Clang compares options, and size and time of what was included, and refuses a file that does not
fit; Warp then makes another, which replaces it. Of the contents Clang checks nothing: what is read here becomes code of
the host.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import logging
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

from warp_tiles.cache import Cache, CacheKey, cache_root
from warp_tiles.errors import CacheError, SeamError
from warp_tiles.settings import Settings
from warp_tiles.tuning.environment import instruction_sets, processor
from warp_tiles.util.files import write_atomic

log = logging.getLogger("warp_tiles")

_MAX_BYTES = 64 << 20  # a file has 4.6 MB; Warp makes one for each set of compiler options
_UNUSABLE = (CacheError, SeamError, OSError)
_Fields = Mapping[str, "str | list[str]"]


def headers_made_from(warp_folder: Path, version: str) -> dict[str, str | list[str]]:
    """Return the inputs of the CPU headers that their file names leave out.

    Args:
        warp_folder: Warp's package; files of ``native`` and ``bin`` enter with size and time of change, as Clang
            compares them.
        version: Warp's version.

    Raises:
        OSError: The folder cannot be read.
    """
    files = sorted(path for name in ("native", "bin") for path in (warp_folder / name).rglob("*") if path.is_file())
    states = [(path.relative_to(warp_folder).as_posix(), path.stat()) for path in files]
    return {
        "files": [f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in states],
        "folder": str(warp_folder),
        "instruction_sets": instruction_sets(),
        "kind": "precompiled headers",
        "machine": platform.machine(),
        "processor": processor(),
        "warp": version,
    }


@contextlib.contextmanager
def kept_headers(now: Settings) -> Iterator[None]:
    """Have builds for the CPU in the block find what earlier processes precompiled, and keep what they add.

    Where headers cannot be kept, they are precompiled again, and nothing fails. A cache that is shared with other users
    has none: their files would become code of this process.

    Args:
        now: Says where the cache is.
    """
    import warp as wp

    shelf: Shelf | None = None
    try:
        if not now.cache_shared:
            cache = Cache(cache_root(now) / "headers", max_bytes=_MAX_BYTES, suffix=".pch")
            shelf = Shelf(cache, headers_made_from(Path(wp.__file__).parent, wp.__version__))
            shelf.take()
    except _UNUSABLE as error:
        log.info("tuning: precompiled headers of earlier processes are not used: %s", error)
    try:
        yield
    finally:
        try:
            if shelf is not None:
                shelf.keep()
        except _UNUSABLE as error:
            log.info("tuning: precompiled headers are not kept: %s", error)


class Shelf:
    """The entries of a cache that hold headers for one Warp and processor.

    Args:
        cache: Where they are.
        made_from: Fields of their keys, without the name of the file.
    """

    def __init__(self, cache: Cache, made_from: _Fields) -> None:
        self._cache = cache
        self._made_from = made_from
        self._stored: dict[str, str] = {}

    def take(self) -> None:
        """Give this thread the headers that it does not have; threads of a search take them from it.

        Raises:
            CacheError: The folder is refused.
            SeamError: This Warp keeps headers elsewhere.
            OSError: They cannot be written.
        """
        from warp_tiles._warp.searches import CPU_HEADERS, headers_folder

        folder = headers_folder()
        for listed in self._cache.entries():
            name = next((field.shown for field in listed.manifest.key.fields if field.label == "file"), "")
            safe = fnmatch.fnmatch(name, CPU_HEADERS) and Path(name).name == name
            if not safe or self._key(name).digest != listed.key:
                continue
            self._stored[name] = listed.manifest.payload_sha256
            if not (folder / name).exists() and (entry := self._cache.get(listed.key)) is not None:
                write_atomic(folder / name, entry.payload)

    def keep(self) -> None:
        """Store what this process has precompiled, where that is not what is stored.

        Raises:
            What :meth:`take` raises.
        """
        from warp_tiles._warp.searches import precompiled_headers

        for name, path in precompiled_headers().items():
            data = path.read_bytes()
            if self._stored.get(name) != hashlib.sha256(data).hexdigest():
                self._stored[name] = self._cache.put(self._key(name), data, {"file": name}).manifest.payload_sha256

    def _key(self, name: str) -> CacheKey:
        return CacheKey.of({**self._made_from, "file": name})
