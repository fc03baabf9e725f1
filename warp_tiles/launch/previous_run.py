"""The modules that a script loaded in its last run, so that the next run compiles them side by side from the start.

One sealed JSON file per script holds names and nothing that could be executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from warp_tiles import settings
from warp_tiles._warp import require_hooks
from warp_tiles.cache import cache_root
from warp_tiles.cache._documents import Documents
from warp_tiles.plan.planning import LoadedModule

FOLDER = "runs"  # below the cache
MAX_SCRIPTS = 256
_FORMAT = 1


class PreviousRuns:
    """The last run of each script. If their folder cannot be used, nothing is remembered.

    Args:
        root: The folder of the cache.
        shared: Accept a root that others can write.
    """

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        self._documents = Documents(root, FOLDER, shared=shared, most=MAX_SCRIPTS)

    def read(self, script: Path) -> tuple[LoadedModule, ...]:
        """The modules that a script loaded; none if they are not known."""
        stored: dict[str, Any] = self._documents.read(_name(script)) or {}
        try:
            if stored.get("format") != _FORMAT:
                return ()
            return tuple(
                LoadedModule(str(name), tuple(map(str, kernels)), int(block_dim), str(device))
                for name, kernels, block_dim, device in stored["modules"]
            )
        except (ValueError, LookupError, TypeError, OverflowError):
            return ()

    def write(self, script: Path, modules: Iterable[LoadedModule]) -> None:
        """Store the modules that a script loaded."""
        rows = [[module.name, list(module.kernels), module.block_dim, module.device] for module in modules]
        self._documents.write(_name(script), {"format": _FORMAT, "script": str(script.resolve()), "modules": rows})


def _name(script: Path) -> str:
    """The name of a script's document. A script is identified by its resolved path."""
    return hashlib.sha256(os.fsencode(script.resolve())).hexdigest()[:32]


@contextlib.contextmanager
def prefetched(script: Path) -> Iterator[None]:
    """Prefetch the modules of the script's last run, and store the names of this run's, unless the setting is off.

    Raises:
        PlanError: warp_tiles is not enabled.
    """
    prefetches = require_hooks("prefetched()").reloads.prefetches
    now = settings.current()
    if not now.prefetch:
        yield
        return
    runs = PreviousRuns(cache_root(now), shared=now.cache_shared)
    prefetches.expect(runs.read(script))
    try:
        yield
    finally:
        if prefetches.loaded:
            runs.write(script, tuple(prefetches.loaded))
