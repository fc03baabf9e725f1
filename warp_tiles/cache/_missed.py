"""Keys that missed; ``warp-tiles cache explain`` uses them to explain the miss."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.util.files import make_private_folders, write_atomic

if TYPE_CHECKING:
    from warp_tiles.cache import CacheKey

MAX_KEYS = 256


class MissedKeys:
    """Transcripts of missed keys in a folder. If the folder is not writable, a miss has no explanation.

    Args:
        folder: It holds one file per key. The oldest files are removed first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, key: CacheKey) -> None:
        """Store a missed key."""
        path = self._folder / f"{key.digest}.json"
        with contextlib.suppress(OSError):
            if path.exists():
                return
            make_private_folders(self._folder)
            write_atomic(path, json.dumps(key.transcript).encode("utf-8"))
            kept = sorted(self._folder.glob("*.json"), key=lambda other: other.stat().st_mtime_ns)
            for old in kept[:-MAX_KEYS]:
                old.unlink(missing_ok=True)

    def find(self, prefix: str) -> CacheKey | None:
        """The one stored key whose digest has this prefix; None if none or several have it, or its file is damaged."""
        from warp_tiles.cache import CacheKey

        try:
            found = [path for path in self._folder.glob("*.json") if path.name.startswith(prefix)]
            if len(found) != 1:
                return None
            key = CacheKey.from_transcript(json.loads(found[0].read_text("utf-8")))
        except (OSError, ValueError):
            return None
        return key if key.digest == found[0].stem else None
