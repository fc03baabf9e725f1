"""The toolchain and digests of its files, stored beside the cache.

The result of a search is stored with the state of the search path. Later processes reuse it while that state is equal.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from warp_tiles.cache import FileDigests
from warp_tiles.cache._documents import Documents
from warp_tiles.cache._paths import absolute
from warp_tiles.toolchain.packages import search_path
from warp_tiles.toolchain.search import Toolchain, find_toolchain
from warp_tiles.toolchain.sources import DeviceSource, include_closure

_SEARCH_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "MATHDX_HOME", "CONDA_PREFIX", "LD_LIBRARY_PATH")


def _stat(path: str) -> list[int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _files_state(toolchain: Toolchain) -> list[Any]:
    paths = [toolchain.nvrtc, *([toolchain.nvjitlink] if toolchain.nvjitlink else []), *toolchain.include_dirs]
    return [_stat(os.fspath(path)) for path in paths]


def search_state() -> list[Any]:
    """The inputs of the search. They change when a package is installed or removed."""
    # other folders of the path, such as the script's, change for unrelated reasons
    path = search_path()
    packages = [entry for entry in path if os.path.isdir(os.path.join(entry, "nvidia"))]
    packages += [entry for entry in path if entry.endswith(("site-packages", "dist-packages"))]
    folders = [[entry, _stat(entry)] for entry in dict.fromkeys(packages)]
    return [sys.version, [[name, os.environ.get(name)] for name in _SEARCH_VARIABLES], folders]


class ToolchainStore:
    """The toolchain and the digests of its files, cached in a folder.

    If the folder is damaged, stale or not writable, the search is repeated.

    Args:
        root: The folder of the cache.
        folder: The folder of the facts, by name below the root; empty for the root itself.
        shared: Accept a root that others can write. The facts themselves are for this user alone.
    """

    def __init__(self, root: Path, folder: str = "", *, shared: bool = False) -> None:
        self._documents = Documents(absolute(root), folder, shared=shared)
        self.digests = FileDigests(root, folder, allow_shared=shared)
        self._toolchain: Toolchain | None = None
        self._closures: dict[DeviceSource, dict[str, str]] = {}

    def toolchain(self) -> Toolchain:
        """The toolchain of this environment.

        Raises:
            ToolchainError: See :func:`find_toolchain`.
        """
        if self._toolchain is None:  # several threads may search at once; each stores a complete result
            found = self._remembered_toolchain()
            if found is None:
                found = find_toolchain()
                value = {"toolchain": found.to_json(), "files": _files_state(found)}
                if found.missing_headers is None:  # a toolkit can add them without changing the state
                    self._write("toolchain", search_state(), value)
            self._toolchain = found
        return self._toolchain

    def _remembered_toolchain(self) -> Toolchain | None:
        remembered: Any = self._read("toolchain", search_state())
        try:
            toolchain = Toolchain.from_json(remembered["toolchain"])
            # replacing or removing a toolkit in place changes no folder of packages
            return toolchain if remembered["files"] == _files_state(toolchain) else None
        except (LookupError, TypeError, ValueError):
            return None

    def take_digests(self, sources: Iterable[DeviceSource]) -> None:
        """Digest the compiler and the linker while the includes of device sources are searched; all is stored.

        Hashing a library releases Python's lock, so at the first use on a machine the two overlap.

        Raises:
            ToolchainError: There is no compiler.
            OSError: A file cannot be read.
        """
        toolchain = self.toolchain()
        with ThreadPoolExecutor(2) as threads:
            pending = [threads.submit(self.compiler_digest)]
            if toolchain.nvjitlink is not None:
                pending.append(threads.submit(self.linker_digest))
            for source in sources:
                self.source_digest(source)
            for future in pending:
                future.result()

    def compiler_digest(self) -> str:
        """SHA-256 over the compiler's library files.

        Raises:
            ToolchainError: There is no compiler.
        """
        return self.digests.digest_many(self.toolchain().libraries)

    def linker_digest(self) -> str:
        """SHA-256 of the linker's library; empty if there is none.

        Raises:
            ToolchainError: There is no toolchain.
        """
        found = self.toolchain().nvjitlink
        return self.digests.digest(found) if found is not None else ""

    def source_digest(self, source: DeviceSource) -> str:
        """SHA-256 over a device source and every header that it can include."""
        return self.digests.digest_many(self._closure(source))

    def closure(self, source: DeviceSource) -> dict[str, Path]:
        """:func:`~warp_tiles.toolchain.sources.include_closure` of a device source; the result is stored."""
        return {label: Path(path) for label, path in self._closure(source).items()}

    def _closure(self, source: DeviceSource) -> dict[str, str]:
        """The closure with paths as text, because Path objects of hundreds of headers would take time."""
        known = self._closures.get(source)
        if known is not None:
            return known
        folders = [os.fspath(folder) for folder in source.include_dirs]
        own = sorted(str(path) for path in source.folder.rglob("*") if path.is_file())
        state = [search_state(), [[path, _stat(path)] for path in (*folders, *own)]]
        name = "closure-" + hashlib.sha256(str(source.path).encode()).hexdigest()[:16]
        remembered = self._read(name, state)
        try:
            closure = {str(label): os.fspath(path) for label, path in remembered.items()}  # type: ignore[union-attr]
        except (AttributeError, TypeError):
            closure = {label: str(path) for label, path in include_closure(source.path, source.include_dirs).items()}
            self._write(name, state, closure)
        self._closures[source] = closure
        return closure

    def _file(self, name: str) -> str:
        """A name for this Python environment, because several environments share the folder."""
        environment = hashlib.sha256(os.fsencode(sys.prefix)).hexdigest()[:8]
        return f"{name}-{environment}"

    def _read(self, name: str, state: object) -> Any | None:
        stored = self._documents.read(self._file(name))
        return stored.get("value") if stored is not None and stored.get("state") == state else None

    def _write(self, name: str, state: object, value: object) -> None:
        self._documents.write(self._file(name), {"state": state, "value": value})
