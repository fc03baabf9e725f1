"""Keeps Warp's precompiled headers for the CPU between processes, which saves 1.6 s of every search that builds for it.

They are in their own cache, ``headers`` beside the tuning records, with one entry for each file that Warp made.
The key of an entry holds the inputs of the file. Clang compares the options, and the size and time of each included
file, and rejects a file that does not match. Warp then makes a new one, which replaces it. Clang does not check the
contents, so the files that are read here become code of this process.
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
from warp_tiles.cache._paths import HEADERS_FOR_CPU, HEADERS_SUFFIX
from warp_tiles.errors import CacheError, SeamError
from warp_tiles.settings import Settings
from warp_tiles.tuning.environment import instruction_sets, processor
from warp_tiles.util.files import write_atomic

log = logging.getLogger("warp_tiles")

_MAX_BYTES = 64 << 20  # a file has 4.6 MB; Warp makes one for each set of compiler options
_UNUSABLE = (CacheError, SeamError, OSError)
_Fields = Mapping[str, "str | list[str]"]


def header_inputs(warp_folder: Path, version: str) -> dict[str, str | list[str]]:
    """Returns the inputs of the CPU headers that are not in their file names.

    Args:
        warp_folder: Warp's package; files of ``native`` and ``bin`` count by size and modification time, as in
            Clang.
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
def cached_headers(now: Settings) -> Iterator[None]:
    """Give CPU builds in the block the headers that earlier processes precompiled, and cache new ones.

    If headers cannot be cached, they are precompiled again, and nothing fails. A cache that is shared with other users
    holds no headers, because their files would become code of this process.

    Args:
        now: Settings, which name the cache.
    """
    import warp as wp

    headers: HeaderCache | None = None
    try:
        if not now.cache_shared:
            cache = Cache(cache_root(now), HEADERS_FOR_CPU, max_bytes=_MAX_BYTES, suffix=HEADERS_SUFFIX)
            headers = HeaderCache(cache, header_inputs(Path(wp.__file__).parent, wp.__version__))
            headers.load()
    except _UNUSABLE as error:
        log.info("tuning: precompiled headers of earlier processes are not used: %s", error)
    try:
        yield
    finally:
        try:
            if headers is not None:
                headers.save()
        except _UNUSABLE as error:
            log.info("tuning: precompiled headers are not kept: %s", error)


class HeaderCache:
    """The entries of a cache that hold headers for one Warp and processor.

    Args:
        cache: The cache.
        inputs: Fields of the entries' keys, without the name of the file.
    """

    def __init__(self, cache: Cache, inputs: _Fields) -> None:
        self._cache = cache
        self._inputs = inputs
        self._stored: dict[str, str] = {}

    def load(self) -> None:
        """Copy the headers that this thread lacks into its folder. Threads of a search take them from there.

        Raises:
            CacheError: The cache folder is refused.
            SeamError: This Warp keeps headers in another place.
            OSError: The headers cannot be written.
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
                write_atomic(folder / name, entry.payload, 0o600)

    def save(self) -> None:
        """Store the headers that this process has precompiled, unless they are stored already.

        Raises:
            CacheError, SeamError, OSError: See :meth:`load`.
        """
        from warp_tiles._warp.searches import precompiled_headers

        for name, path in precompiled_headers().items():
            data = path.read_bytes()
            if self._stored.get(name) != hashlib.sha256(data).hexdigest():
                self._stored[name] = self._cache.put(self._key(name), data, {"file": name}).manifest.payload_sha256

    def _key(self, name: str) -> CacheKey:
        return CacheKey.of({**self._inputs, "file": name})
