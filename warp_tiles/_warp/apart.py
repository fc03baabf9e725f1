"""Compiles modules by Warp's own compiler in other processes, so that threads compile side by side.

Warp's native library compiles one module of a process at a time. Here the call of its compiler is made in a compiler
process, with the same arguments, so the file has the same bytes. Modules that link LTO-IR or search other folders for
headers are compiled by Warp in this process.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from warp_tiles._warp.internals import find
from warp_tiles.build.engine import Engine
from warp_tiles.compile.compiler import NativeRequest
from warp_tiles.compile.pool import result_of
from warp_tiles.errors import WorkerError
from warp_tiles.settings import current
from warp_tiles.util.warn import warn

log = logging.getLogger("warp_tiles")
COMPILER = "wp_cuda_compile_program"  # the function of Warp's native library


class OtherProcesses:
    """The compiler processes of modules without own code; one instance for each installation of the hooks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = threading.local()
        self._is_installed = False

    @contextmanager
    def compiling(self, replace: Callable[[Any, str, Any], None], keywords: Mapping[str, Any]) -> Iterator[None]:
        """Enter a block in which this thread's calls of Warp's compiler are made in another process.

        Args:
            replace: Replaces an attribute until the hooks are removed.
        """
        linked = keywords.get("ltoirs") or keywords.get("fatbins") or keywords.get("extra_include_dirs")
        if linked or keywords.get("llvm_cuda"):
            yield
            return
        if not self._is_installed:
            self._is_installed = True
            core = find("context.runtime.core")
            replace(core, COMPILER, functools.partial(self._call, getattr(core, COMPILER), core._name))
        self._thread.folder = keywords.get("pch_dir") or ""
        try:
            yield
        finally:
            self._thread.folder = None

    def _call(self, function: Any, library: str, *values: Any) -> int:
        folder = getattr(self._thread, "folder", None)
        if folder is None:
            return int(function(*values))
        own = values.index(folder.encode("utf-8")) if folder else None
        request = NativeRequest(library, COMPILER, _plain(function.argtypes, values), own)
        try:
            return int(result_of(self._engine.build_context(current()).pool.submit(request)).log)
        except WorkerError as error:  # the system may have ended the process because memory is short
            warn(f"{error.message}; Warp compiles the module in this process. Remedy: {error.remedy}")
            return int(function(*values))


def _plain(types: Sequence[Any], values: Sequence[Any]) -> tuple[tuple[str, int | bytes | None], ...]:
    """Arguments as values that can be sent: arrays are empty here, and null pointers stand for them."""
    simple = (ctypes._SimpleCData,)
    return tuple(
        (kind.__name__, value) if issubclass(kind, simple) else ("c_void_p", None) for kind, value in zip(types, values)
    )
