"""Problems of the cache. Each is logged once and kept for later queries; none is raised."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from warp_tiles.util.warn import WarnedTexts, printable

logger = logging.getLogger("warp_tiles.cache")

#: The kinds of problems: what each says about a reason, and what to do.
_TEXTS = {
    "folder": (
        "the cache folder cannot be used ({}), so nothing is cached there",
        "free space, fix the permissions, or choose another cache folder",
    ),
    "lock": (
        "builds are not coordinated between processes ({})",
        "check whether another process hangs, or choose a cache folder on a local file system",
    ),
    "damage": ("damaged file removed: {}", "none needed, it is made again"),
    "size": ("{}", "raise the bound: WARP_TILES_CACHE_MAX_BYTES"),
}
_logged = WarnedTexts()


def reason_of(error: Exception) -> str:
    """The message of the operating system, without path and number; of another error, its text."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@dataclass(frozen=True)
class Problem:
    """A problem that prevented caching, but not the build; ``kind`` is ``folder``, ``damage``, ``lock`` or ``size``."""

    kind: str
    path: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.reason}. Remedy: {self.remedy}", lines=True)


class Problems:
    """The problems of one cache. Each is kept once, and logged once per process."""

    def __init__(self) -> None:
        self._kept: dict[Problem, None] = {}
        self._lock = threading.Lock()

    def add(self, kind: str, path: Path, reason: str | OSError) -> None:
        """Keep a problem, and log a warning unless this process has already logged it."""
        text, remedy = _TEXTS[kind]
        reason = reason if isinstance(reason, str) else reason_of(reason)
        problem = Problem(kind, str(path), text.format(reason), remedy)
        with self._lock:
            self._kept.setdefault(problem)
        if _logged.add(str(problem)):
            logger.warning("%s", problem)

    def all(self) -> tuple[Problem, ...]:
        """The problems so far, oldest first."""
        with self._lock:
            return tuple(self._kept)
