"""Snapshots of measurements, one for each set of settings. Importing this module does not import the tuner."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.cache import cache_root
from warp_tiles.providers.base import Tuned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warp_tiles.build.engine import Engine
    from warp_tiles.gemm.problem import GemmProblem
    from warp_tiles.settings import Settings
    from warp_tiles.toolchain.store import ToolchainStore


class TunedSnapshots:
    """Measurements of GEMM variants, read once at their first use, so that choices are stable within a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[object, Tuned | None] = {}

    def snapshot(self, now: Settings, store: ToolchainStore) -> Tuned | None:
        """Returns the snapshot under some settings; None if nothing was measured, or if records do not count.

        Args:
            now: The settings.
            store: Digests the inputs of candidates.
        """
        if not now.rules.records:
            return None
        root = cache_root(now)
        identity = (root, now.cache_shared, now.record_paths, now.target_gpu, now.record_driver_mismatch)
        with self._lock:
            if identity not in self._known:
                self._known[identity] = _read(now, store) if now.record_paths or _has_records(root) else None
            return self._known[identity]

    def forget(self) -> None:
        """Read records again when they are next needed. The caller must then hash modules again."""
        with self._lock:
            self._known.clear()

    def tune_missing(self, engine: Engine, variants: Sequence[GemmProblem], now: Settings) -> None:
        """See :func:`warp_tiles.tuning.gemm.tune_missing`."""
        from warp_tiles.tuning.gemm import tune_missing

        tune_missing(engine, variants, now)


def _has_records(root: Path) -> bool:
    """Returns True if a cache's folder may have records of GEMM variants. Without records the tuner is not imported."""
    try:
        return stat.S_ISDIR(os.stat(root / "tuning" / "gemm").st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # reading them warns


def _read(now: Settings, store: ToolchainStore) -> Tuned | None:
    from warp_tiles.tuning.gemm_records import snapshot
    from warp_tiles.tuning.open_store import open_store

    return snapshot(open_store(now), store, now)
