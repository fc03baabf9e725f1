"""Keys that missed, so that ``warp-tiles cache explain`` can say why."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.util.files import make_private_folders, write_atomic

if TYPE_CHECKING:
    from warp_tiles.cache import CacheKey

MAX_KEYS = 256


class AskedKeys:
    """Transcripts of missed keys in a folder; if it is not writable, a miss has no explanation.

    Args:
        folder: One file per key; the oldest go first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, key: CacheKey) -> None:
        """Remember a missed key."""
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
        """The one remembered key whose digest begins so; None if none or several do, or its file is damaged."""
        from warp_tiles.cache import CacheKey

        try:
            found = [path for path in self._folder.glob("*.json") if path.name.startswith(prefix)]
            if len(found) != 1:
                return None
            key = CacheKey.from_transcript(json.loads(found[0].read_text("utf-8")))
        except (OSError, ValueError):
            return None
        return key if key.digest == found[0].stem else None
