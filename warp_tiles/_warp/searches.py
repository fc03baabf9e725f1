"""What a search needs below Warp's public names: the active tape, precompiled headers, the parts of value types."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warp_tiles._warp.seams import find, missing
from warp_tiles.errors import SeamError

log = logging.getLogger("warp_tiles")


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
    """Have no ``wp.Tape`` record what the block copies.

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
    """What the threads of this process have precompiled for the CPU, by file name.

    Warp gives each thread a folder of its own, and a file there its name when it is whole.

    Raises:
        SeamError: This Warp keeps them elsewhere.
    """
    folders = list(_runtime("_pch_dirs")._pch_dirs.values())
    return {header.name: header for folder in folders for header in Path(folder.name).glob("*.pch")}


def headers_folder() -> Path:
    """Where Warp looks for what this thread has precompiled for the CPU.

    Raises:
        SeamError: This Warp keeps it elsewhere.
    """
    return Path(_runtime("_get_or_create_pch_dir", "_pch_dirs")._get_or_create_pch_dir())


def share_precompiled_headers() -> None:
    """Let this thread use what other threads have precompiled for the CPU; 1.7 s each time otherwise.

    Where Warp keeps it in another way, each thread makes its own.
    """
    try:
        folder = headers_folder()
        for name, header in precompiled_headers().items():
            if not (folder / name).exists():
                _link(header, folder / name)
    except (SeamError, OSError) as error:
        log.info("tuning: each thread precompiles its own headers: %s", error)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def scalar_and_shape(dtype: Any) -> tuple[Any, tuple[int, ...]]:
    """Scalar type and shape of a value of an array's dtype; a scalar has no extents."""
    return getattr(dtype, "_wp_scalar_type_", dtype), tuple(getattr(dtype, "_shape_", ()))
