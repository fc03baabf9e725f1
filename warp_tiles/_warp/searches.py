"""Internals of Warp that searches use: the active tape, precompiled headers, the parts of value types."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warp_tiles._warp.seams import find, missing
from warp_tiles.errors import SeamError

CPU_HEADERS = "builtin_bd*.pch"  # NVRTC's lie in the same folders

log = logging.getLogger("warp_tiles")


class _Given(threading.local):
    """Names of headers that a thread was given."""

    def __init__(self) -> None:
        self.names: set[str] = set()


_given = _Given()


def _runtime(*names: str) -> Any:
    """Warp's runtime, which has these attributes.

    Raises:
        SeamError: It lacks one, which is named.
    """
    runtime = find("context.runtime")
    for name in names:
        if not hasattr(runtime, name):
            raise missing(f"warp._src.context.runtime.{name}")
    return runtime


@contextlib.contextmanager
def without_tape() -> Iterator[None]:
    """Suspend the active ``wp.Tape`` for copies in the block.

    Raises:
        SeamError: This Warp keeps its tape elsewhere.
    """
    runtime = _runtime("tape")
    tape, runtime.tape = runtime.tape, None
    try:
        yield
    finally:
        runtime.tape = tape


def precompiled_headers() -> dict[str, Path]:
    """What the threads of this process have precompiled for the CPU, by file name; of several the newest.

    Warp gives each thread a folder of its own, and a file there its name when it is whole.

    Raises:
        SeamError: This Warp keeps them elsewhere.
    """
    dated: list[tuple[int, Path]] = []
    for folder in list(_runtime("_pch_dirs")._pch_dirs.values()):
        for header in Path(folder.name).glob(CPU_HEADERS):
            with contextlib.suppress(OSError):  # Warp removes what Clang refuses
                dated.append((header.stat().st_mtime_ns, header))
    return {header.name: header for _, header in sorted(dated)}


def headers_folder() -> Path:
    """Where Warp looks for what this thread has precompiled for the CPU.

    Raises:
        SeamError: This Warp keeps it elsewhere.
    """
    return Path(_runtime("_get_or_create_pch_dir", "_pch_dirs")._get_or_create_pch_dir())


def share_precompiled_headers() -> None:
    """Let this thread use what other threads have precompiled for the CPU; 1.6 s each time otherwise.

    A thread is given each file once: if Clang refuses it, Warp makes another. Where Warp keeps them in another way,
    each thread makes its own.
    """
    try:
        folder, known = headers_folder(), precompiled_headers()
    except (SeamError, OSError) as error:
        log.info("tuning: each thread precompiles its own headers: %s", error)
        return
    for name, header in known.items():
        if name not in _given.names and not (folder / name).exists():
            with contextlib.suppress(OSError):
                _link(header, folder / name)
        _given.names.add(name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def scalar_and_shape(dtype: Any) -> tuple[Any, tuple[int, ...]]:
    """Scalar type and shape of a value of an array's dtype; a scalar has no extents."""
    return getattr(dtype, "_wp_scalar_type_", dtype), tuple(getattr(dtype, "_shape_", ()))
