"""NVRTC's precompiled headers of modules, in a cache beside the LTO-IR.

Every module begins with Warp's headers. Their parse takes most of the time in which NVRTC compiles a module. A file of
precompiled headers has 76 MB and holds for one architecture, block size and set of options. So it is only written when
a second module needs the same headers. Its key is the digest of all that decides about it, since NVRTC itself examines
neither the headers nor the content of the file.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.compile.compiler import FIRST_VERSION, Compiled, CompileRequest, HeaderFile
from warp_tiles.errors import CacheError, ToolchainError
from warp_tiles.store.cache import FileCache
from warp_tiles.store.documents import sealed_documents
from warp_tiles.store.key import CacheKey
from warp_tiles.store.kinds import ASKED_HEADERS, HEADERS
from warp_tiles.util.threads import suppressed, unless_signalled

if TYPE_CHECKING:
    from warp_tiles.compile.toolchain import ToolchainStore

MAX_BYTES = 400 << 20


class ModuleHeaders:
    """The precompiled headers below one root.

    Args:
        root: Folder of the cache of LTO-IR.
        store: The toolchain and digests.
        later: Runs a function on a background thread.
    """

    def __init__(self, root: Path, store: ToolchainStore, later: Callable[[Callable[[], None]], object]) -> None:
        self._cache = FileCache(root, HEADERS, max_bytes=MAX_BYTES)
        self._asked = sealed_documents(root, ASKED_HEADERS)
        self._store = store
        self._later = later
        self._writing: set[str] = set()
        self._lock = threading.Lock()

    def compile(
        self, submit: Callable[[CompileRequest], Future[Compiled]], request: CompileRequest
    ) -> Future[Compiled]:
        """Compile a module with precompiled headers if there are any, and write them if another module needed them too.

        Args:
            submit: Starts a request on a compiler process of this machine.
        """
        key = self._key(request)
        header = self._header(key) if key is not None else None
        future = submit(replace(request, header=header))
        if key is not None and header is not None and header.create:
            future.add_done_callback(lambda done: self._later(lambda: self._keep(key, header, done)))
        return future

    def _key(self, request: CompileRequest) -> CacheKey | None:
        """The key of a module's headers; None if they cannot be precompiled."""
        if sys.platform != "linux" or len(request.include_dirs) != 1:  # of the user's headers nothing is known
            return None
        (native,) = request.include_dirs
        try:
            toolchain = self._store.toolchain()
            if toolchain.nvrtc_version < FIRST_VERSION:
                return None
            return CacheKey.of({
                "compiler": self._store.compiler_digest(),
                "headers": self._store.digests.digest_folder(Path(native), "*.h"),
                "headers_folder": native,
                "kind": "precompiled headers of CUDA modules",
                "options": request.all_flags,
                "prefix": request.source[: request.prefix],
            })  # fmt: skip
        except unless_signalled(OSError, ToolchainError):
            return None

    def _header(self, key: CacheKey) -> HeaderFile | None:
        """The file to read, or to write; None for a compilation without."""
        try:
            stored = self._cache.verified_path(key, self._store.digests.digest)
            if stored is not None:
                return HeaderFile(os.fspath(stored))
            with self._lock:
                if key.digest in self._writing:
                    return None
                if self._asked.read(key.digest) is None:  # the first module that needs them
                    self._asked.store(key.digest, {})
                    return None
                self._writing.add(key.digest)
            return HeaderFile(os.fspath(self._cache.temporary_path()), create=True)
        except unless_signalled(OSError) as error:
            # a module without functions writes nothing else that could report it
            if not self._cache.problems:
                self._asked.problems.folder(self._asked.files.root, error)
        except unless_signalled(CacheError):
            pass
        return None

    def _keep(self, key: CacheKey, header: HeaderFile, done: Future[Compiled]) -> None:
        path = Path(header.path)
        try:
            if not done.cancelled() and done.exception() is None and done.result().header_written:
                self._cache.put_file(key, path, {"compiler": done.result().compiler})
        except unless_signalled(CacheError, OSError):  # the next process writes it
            pass
        finally:
            with suppressed(OSError):
                path.unlink()
