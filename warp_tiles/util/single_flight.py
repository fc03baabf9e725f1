"""Single flight: one caller does the work, and the others share its future, or wait until it has ended.

:class:`Flights` shares the futures of one process. :func:`single_flight` coordinates threads and processes by a lock
file. It shares no result: one thread of one process runs the block, and the others learn that it was run.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from warp_tiles.util.signals import raise_if_signalled
from warp_tiles.util.trusted_folder import TrustedFolder

log = logging.getLogger("warp_tiles")
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
POLL_S = 0.05


class Flights(Generic[K, T]):
    """The running work of this process, by key. A forked child starts with none, because it has no working threads."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # submit() may do the work itself
        self._running: dict[K, Future[T]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, key: K, submit: Callable[[], Future[T]]) -> tuple[Future[T], bool]:
        """Start work, unless work for this key already runs.

        Args:
            key: Identifies the work.
            submit: Starts it and returns its future. It is called under a lock.

        Returns:
            The future, and whether this call started it.
        """
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            known = self._running.get(key)
            if known is not None:
                return known, False
            future = self._running[key] = submit()
        future.add_done_callback(lambda _: self._leave(key, future))  # outside the lock: it may be called at once
        return future, True

    def _leave(self, key: K, future: Future[T]) -> None:
        with self._lock:
            if self._running.get(key) is future:
                del self._running[key]


_searching = threading.local()  # the locks of the searches of this thread


@contextmanager
def single_flight(
    files: TrustedFolder, name: str, timeout_s: float | None, unusable: Callable[[OSError], None]
) -> Iterator[bool]:
    """Hold a lock for a search, or wait until the thread or process that holds it has ended its search.

    Args:
        files: The folder of the lock.
        name: The lock's file, which ends in ``.lock``. Its folder is created.
        timeout_s: Seconds to wait; None for no limit, 0 for no waiting.
        unusable: Called with the reason if searches cannot be coordinated.

    Yields:
        True if this thread holds the lock for the block, or nobody can. False if another search has ended meanwhile or
        still runs, or if this thread already searches for the key.
    """
    mine: set[Path] = vars(_searching).setdefault("mine", set())
    lock = files.path(name)
    with ExitStack() as held:
        may_search = lock not in mine
        if may_search:
            try:
                held.enter_context(files.lock(name, 0.0))
            except TimeoutError as busy:
                raise_if_signalled(busy)
                may_search = False
                try:
                    with files.lock(name, -1.0 if timeout_s is None else timeout_s, POLL_S, _say_waiting):
                        pass
                except OSError as error:
                    raise_if_signalled(error)
            except OSError as error:
                raise_if_signalled(error)
                unusable(error)
        if may_search:
            mine.add(lock)
            held.callback(mine.discard, lock)
        yield may_search


def _say_waiting(holder: str) -> None:
    log.warning("waiting for %s, which searches for the same configuration", holder)
