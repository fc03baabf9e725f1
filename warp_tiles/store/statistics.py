"""Counts of what all processes have asked of a cache, for ``warp-tiles cache stats``.

A process adds its counts to one sealed file, after each build and at its end. If it is killed, or if the file cannot be
locked, read or written, its counts are lost and nothing else. A damaged file stays until the user resets the counts.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warp_tiles.errors import CacheError
from warp_tiles.store.paths import LOCKS, STATISTICS
from warp_tiles.store.sealed import DamagedError, Documents, seal
from warp_tiles.util.threads import suppressed

#: Results of lookups, and seconds of builds. A lookup that finds nothing ends as ``built`` or ``failed``.
COUNTED = ("found", "fetched", "built", "failed", "evicted", "build_seconds")
FOUND, FETCHED, BUILT, FAILED, EVICTED, BUILD_SECONDS = COUNTED
#: Seconds for which the end of a process waits for others that add their counts.
WAIT_AT_END_S = 0.2
_NAME, _LOCK = "counts", f"{LOCKS}/{STATISTICS}.lock"


class Statistics:
    """The counts below one root.

    Args:
        root: The folder of all caches.
        kind: The cache that this process counts, e.g. ``functions``.
        shared: Accept a root that others can write. All of its users then share the counts.
    """

    def __init__(self, root: Path, kind: str, *, shared: bool = False) -> None:
        self._documents = Documents(root, STATISTICS, shared=shared, private=False)
        self._kind = kind
        self._pending: deque[tuple[int, str, float]] = deque()  # with its process, because a forked child inherits it

    def count(self, name: str, amount: float = 1) -> None:
        """Count an event. Threads may do so at the same time."""
        self._pending.append((os.getpid(), f"{self._kind} {name}", amount))

    @contextmanager
    def building(self) -> Iterator[None]:
        """Count the block as a build, or as a failure if it raises, and add the counts to the file."""
        started, result = time.perf_counter(), FAILED
        try:
            yield
            result = BUILT
        finally:
            self.count(result)
            self.count(BUILD_SECONDS, time.perf_counter() - started)
            self.save()

    def save(self, wait_s: float = 0.0) -> None:
        """Add the counts of this process to the file. They are kept for the next time if another process holds it."""
        files = self._documents.files
        if not self._pending or not os.path.isdir(files.root):  # a cache that was removed is not made again
            return
        with suppressed(OSError, DamagedError), files.lock(_LOCK, wait_s):
            since_ns, counts = self._read()
            while self._pending:
                process, name, amount = self._pending.popleft()
                counts[name] = counts.get(name, 0) + (amount if process == os.getpid() else 0)
            self._write(since_ns or time.time_ns(), counts)

    def read(self) -> tuple[int, dict[str, float]]:
        """The time since which is counted, in nanoseconds since 1970 (UTC) or 0, and the counts by kind and name.

        Raises:
            CacheError: The file is damaged.
            OSError: It cannot be read, or its folder is refused.
        """
        try:
            return self._read()
        except DamagedError as error:
            path = self._documents.files.path(self._documents.file(_NAME))
            raise CacheError(
                f"the counts of this cache are damaged, and no process adds to them: {path}: {error}",
                remedy="`warp-tiles cache stats --zero` begins anew",
            ) from error

    def reset(self) -> None:
        """Begin to count anew. Raises OSError if the file cannot be written, or is held by another process."""
        with self._documents.files.lock(_LOCK, WAIT_AT_END_S):
            self._write(time.time_ns(), {})

    def _read(self) -> tuple[int, dict[str, float]]:
        try:
            body = self._documents.load(_NAME)
        except FileNotFoundError:
            return 0, {}
        since_ns, counts = body.get("since_ns"), body.get("counts")
        if not isinstance(since_ns, int) or not isinstance(counts, dict):
            raise DamagedError("it has no counts")
        if not all(isinstance(amount, (int, float)) for amount in counts.values()):
            raise DamagedError("a count is not a number")
        return since_ns, counts

    def _write(self, since_ns: int, counts: dict[str, float]) -> None:
        body = {"since_ns": since_ns, "counts": counts}
        self._documents.files.write(self._documents.file(_NAME), seal(body), durable=False)
