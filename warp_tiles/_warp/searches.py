"""Internals of Warp that searches use: the active tape, precompiled headers, and the scalar types of arrays."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warp_tiles._warp.internals import find, missing
from warp_tiles.errors import SeamError

CPU_HEADERS = "builtin_bd*.pch"  # the same folders also contain NVRTC's precompiled headers

log = logging.getLogger("warp_tiles")


class _Shared(threading.local):
    """The names of the precompiled headers that this thread already got from other threads."""

    def __init__(self) -> None:
        self.names: set[str] = set()


_shared = _Shared()


def _runtime(*names: str) -> Any:
    """Returns Warp's runtime after a check that it has these attributes.

    Raises:
        SeamError: An attribute is missing; the message names it.
    """
    runtime = find("context.runtime")
    for name in names:
        if not hasattr(runtime, name):
            raise missing(f"warp._src.context.runtime.{name}")
    return runtime


@contextlib.contextmanager
def without_tape() -> Iterator[None]:
    """Suspends the active ``wp.Tape`` within the block.

    Raises:
        SeamError: This Warp keeps its active tape in another place.
    """
    runtime = _runtime("tape")
    tape, runtime.tape = runtime.tape, None
    try:
        yield
    finally:
        runtime.tape = tape


def precompiled_headers() -> dict[str, Path]:
    """Returns the precompiled CPU headers of all threads of this process, by file name.

    Each thread has its own folder. If several folders contain a file of one name, the newest is returned. Every file is
    complete, because Warp gives it its name last.

    Raises:
        SeamError: This Warp keeps them in another place.
    """
    dated: list[tuple[int, Path]] = []
    for folder in list(_runtime("_pch_dirs")._pch_dirs.values()):
        for header in Path(folder.name).glob(CPU_HEADERS):
            with contextlib.suppress(OSError):  # Warp removes files that Clang rejects
                dated.append((header.stat().st_mtime_ns, header))
    return {header.name: header for _, header in sorted(dated)}


def headers_folder() -> Path:
    """Returns the folder in which Warp looks for this thread's precompiled CPU headers.

    Raises:
        SeamError: This Warp keeps them in another place.
    """
    return Path(_runtime("_get_or_create_pch_dir", "_pch_dirs")._get_or_create_pch_dir())


def share_precompiled_headers() -> None:
    """Links the precompiled CPU headers of other threads into this thread's folder. Each saves 1.6 s of compilation.

    A thread gets each file only once: if Clang rejects it, Warp precompiles the header again. If this Warp stores the
    headers elsewhere, each thread precompiles its own.
    """
    try:
        folder, known = headers_folder(), precompiled_headers()
    except (SeamError, OSError) as error:
        log.info("tuning: each thread precompiles its own headers: %s", error)
        return
    for name, header in known.items():
        if name not in _shared.names and not (folder / name).exists():
            with contextlib.suppress(OSError):
                _link(header, folder / name)
        _shared.names.add(name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def scalar_and_shape(dtype: Any) -> tuple[Any, tuple[int, ...]]:
    """Returns the scalar type and shape of an array's dtype. The shape of a scalar is ``()``."""
    return getattr(dtype, "_wp_scalar_type_", dtype), tuple(getattr(dtype, "_shape_", ()))
