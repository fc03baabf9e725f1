"""Snapshots of measurements, one for each set of settings. Importing this module does not import the tuner."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.errors import unless_signalled
from warp_tiles.providers.base import Tuned
from warp_tiles.store import MEASUREMENTS, cache_root

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine
    from warp_tiles.compile.toolchain import ToolchainFacts
    from warp_tiles.settings import Settings

_FOLDERS = ("loop", "function")  # of records that count for builds


class TunedSnapshots:
    """Measurements, read once at their first use, so that choices are stable within a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[object, Tuned | None] = {}

    def snapshot(self, now: Settings, facts: ToolchainFacts) -> Tuned | None:
        """Returns the snapshot under some settings; None if nothing was measured, or if records do not count."""
        if not now.rules.records:
            return None
        from warp_tiles.tuning.record import SHIPPED_RECORDS

        root = cache_root(now.cache_dir)
        identity = (root, now.cache_shared, now.record_paths, now.target_gpu, now.record_driver_mismatch, now.forced)
        with self._lock:
            if identity not in self._known:
                stored = _has_records(root / MEASUREMENTS.folder) or _has_records(SHIPPED_RECORDS)
                may_have_records = now.record_paths or now.forced or stored
                self._known[identity] = _read(now, facts) if may_have_records else None
            return self._known[identity]

    def forget(self) -> None:
        """Read records again when they are next needed. The caller must then hash modules again."""
        with self._lock:
            self._known.clear()

    def tune_launch(self, engine: Engine, now: Settings) -> None:
        from warp_tiles.tuning.in_kernels import tune_launch

        tune_launch(engine, now)


def _has_records(root: Path) -> bool:
    """Returns True if a folder may have records for builds. Without records the tuner is not imported."""
    for name in _FOLDERS:
        try:
            if stat.S_ISDIR(os.stat(root / name).st_mode):
                return True
        except (FileNotFoundError, NotADirectoryError):
            continue
        except unless_signalled(OSError):
            return True  # reading them warns
    return False


def _read(now: Settings, facts: ToolchainFacts) -> Tuned | None:
    from warp_tiles.tuning.store import open_store
    from warp_tiles.tuning.tasks import snapshot

    return snapshot(open_store(now), facts, now)
