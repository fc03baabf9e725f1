"""Keys that missed; ``warp-tiles cache explain`` uses them to explain the miss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.cache._documents import Documents
from warp_tiles.cache._paths import is_digest

if TYPE_CHECKING:
    from warp_tiles.cache import CacheKey

FOLDER = "asked"  # below the cache
MAX_KEYS = 256


class MissedKeys:
    """Transcripts of missed keys. If their folder cannot be used, a miss has no explanation.

    Args:
        root: The folder of the cache. It holds one file per key; the oldest are removed first.
        shared: Accept a root that others can write.
    """

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        self._documents = Documents(root, FOLDER, shared=shared, most=MAX_KEYS)

    def add(self, key: CacheKey) -> None:
        """Store a missed key."""
        if self._documents.read(key.digest) is None:
            self._documents.write(key.digest, {"transcript": key.transcript})

    def find(self, prefix: str) -> CacheKey | None:
        """The one stored key whose digest has this prefix; None if none or several have it, or its file is damaged."""
        from warp_tiles.cache import CacheKey

        found = [name for name in self._documents.names() if is_digest(name) and name.startswith(prefix)]
        document = self._documents.read(found[0]) if len(found) == 1 else None
        if document is None:
            return None
        try:
            key = CacheKey.from_transcript(document.get("transcript"))
        except ValueError:
            return None
        return key if key.digest == found[0] else None
