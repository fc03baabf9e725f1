"""What a search needs of Warp that has no public name; found through the one module that knows Warp's internals."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from warp_tiles.errors import SeamError


@contextlib.contextmanager
def without_tape() -> Iterator[None]:
    """Have no ``wp.Tape`` record what the block copies."""
    from warp_tiles._warp import find

    runtime = find("context.runtime")
    tape, runtime.tape = runtime.tape, None
    try:
        yield
    finally:
        runtime.tape = tape


def share_precompiled_headers() -> None:
    """Let this thread use what other threads have precompiled for the CPU; 1.5 s each time otherwise.

    Warp keeps a folder of precompiled headers for each thread. Where it does so in another way, nothing happens.
    """
    from warp_tiles._warp import find

    try:
        runtime = find("context.runtime")
        own = Path(find("context.Runtime._get_or_create_pch_dir")(runtime))
        folders = [Path(folder.name) for folder in list(runtime._pch_dirs.values())]
    except (SeamError, AttributeError, OSError):
        return
    for folder in folders:
        with contextlib.suppress(OSError):
            for header in folder.glob("*.pch"):
                if not (own / header.name).exists():
                    _link(header, own / header.name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
