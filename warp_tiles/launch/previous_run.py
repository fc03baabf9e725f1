"""The modules that a script loaded in its last run, so that the next run compiles them side by side from the start.

One JSON file per script holds names and nothing that could be executed. A damaged file counts as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from warp_tiles import settings
from warp_tiles._warp.installed import require_hooks
from warp_tiles.cache import cache_root
from warp_tiles.plan.loads import LoadedModule
from warp_tiles.util.files import make_private_folders, write_atomic

FOLDER = "runs"  # below the cache
MAX_SCRIPTS = 256
_FORMAT = 1


def record_path(root: Path, script: Path) -> Path:
    """The record of a script, which is identified by its resolved path."""
    return root / FOLDER / f"{hashlib.sha256(os.fsencode(script.resolve())).hexdigest()[:32]}.json"


def read(path: Path) -> tuple[LoadedModule, ...]:
    """The modules in a record; none if it is missing or damaged."""
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["format"] != _FORMAT:
            return ()
        return tuple(
            LoadedModule(str(name), tuple(map(str, kernels)), int(block_dim), str(device))
            for name, kernels, block_dim, device in stored["modules"]
        )
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return ()


def write(path: Path, script: Path, modules: Iterable[LoadedModule]) -> None:
    """Store a record, and remove the oldest ones of other scripts. Does nothing if the folder is not writable."""
    rows = [[module.name, list(module.kernels), module.block_dim, module.device] for module in modules]
    text = json.dumps({"format": _FORMAT, "script": str(script.resolve()), "modules": rows})
    with contextlib.suppress(OSError):
        make_private_folders(path.parent)
        write_atomic(path, text.encode("utf-8"))
        kept = sorted(path.parent.glob("*.json"), key=lambda other: other.stat().st_mtime_ns)
        for old in kept[:-MAX_SCRIPTS]:
            old.unlink(missing_ok=True)


@contextlib.contextmanager
def prefetched(script: Path) -> Iterator[None]:
    """Prefetch what the script's last run loaded, and store what this one loads, unless the setting is off.

    Raises:
        PlanError: warp_tiles is not enabled.
    """
    prefetches = require_hooks("prefetched()").reloads.prefetches
    now = settings.current()
    if not now.prefetch:
        yield
        return
    path = record_path(cache_root(now), script)
    prefetches.expect(read(path))
    try:
        yield
    finally:
        if prefetches.loaded:
            write(path, script, tuple(prefetches.loaded))
