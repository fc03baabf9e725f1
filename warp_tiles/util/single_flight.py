"""Single flight: one caller does the work, and the others share its result or wait until it ends.

:class:`Flights` coordinates the threads of a process, by a key:

- :meth:`Flights.run` calls a function on the first thread; the others wait for its result.
- :meth:`Flights.start` starts work that has its own future; later callers get the same future.

:func:`single_flight` also coordinates processes, by a lock file. It shares no result: one thread of one process runs
the block, and the others learn that the work was done meanwhile.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from warp_tiles.util.threads import wait_result
from warp_tiles.util.trusted_folder import TrustedFolder

log = logging.getLogger("warp_tiles")
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
POLL_S = 0.05


class ReentrantFlightError(RuntimeError):
    """The work for a key requested the same key, so it would wait for itself."""


class Flights(Generic[K, T]):
    """The running work of this process, by key. A forked child starts with none, because it has no working threads."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._running: dict[K, tuple[int, Future[T]]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def enter(self, key: K, start: Callable[[], Future[T]] = Future) -> tuple[Future[T], int | None]:
        """Take the lead for a key, unless another call has it.

        Args:
            key: Identifies the work.
            start: Returns the future of the work. It is called under the lock, and only if this call leads.

        Returns:
            The future of the work, and the thread that leads it. The thread is None if this call leads; the caller
            then has to call :meth:`leave`.
        """
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            known = self._running.get(key)
            if known is not None:
                return known[1], known[0]
            future = start()
            self._running[key] = (threading.get_ident(), future)
        return future, None

    def leave(self, key: K, future: Future[T]) -> None:
        """Forget the work, so that the next caller leads."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            known = self._running.get(key)
            if known is not None and known[1] is future:
                del self._running[key]

    def run(self, key: K, call: Callable[[], T]) -> tuple[T, bool]:
        """Run ``call``. If another thread already runs one for this key, wait for its result instead.

        Returns:
            The result, and whether this thread ran the call.

        Raises:
            ReentrantFlightError: The call for a key requested the same key again.
            Exception: The exception of the call, in every thread that waited for it.
        """
        while True:
            future, leader = self.enter(key)
            if leader is None:
                return self._lead(key, future, call), True
            if leader == threading.get_ident():
                raise ReentrantFlightError(f"the work for {key} requested {key} again")
            try:
                return wait_result(future), False
            except Exception:
                raise
            except BaseException:  # if the leading thread was interrupted, the work did not fail: take the lead
                if not future.done() or not _interrupted(future):
                    raise  # this thread itself was interrupted

    def _lead(self, key: K, future: Future[T], call: Callable[[], T]) -> T:
        try:
            result = call()
        except BaseException as error:
            self.leave(key, future)
            future.set_exception(error)
            raise
        self.leave(key, future)
        future.set_result(result)
        return result

    def start(self, key: K, submit: Callable[[], Future[T]]) -> tuple[Future[T], bool]:
        """Start work, unless work for this key already runs.

        Args:
            key: Identifies the work.
            submit: Starts it and returns its future.

        Returns:
            The future, and whether this call started it.
        """
        future, leader = self.enter(key, submit)
        if leader is None:  # outside the lock, because the callback of finished work runs at once
            future.add_done_callback(lambda done: self.leave(key, done))
        return future, leader is None


def _interrupted(future: Future[T]) -> bool:
    error = future.exception()
    return error is not None and not isinstance(error, Exception)


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
            except TimeoutError:
                may_search = False
                with (
                    suppress(TimeoutError, OSError),
                    files.lock(name, -1.0 if timeout_s is None else timeout_s, POLL_S, _say_waiting),
                ):
                    pass
            except OSError as error:
                unusable(error)
        if may_search:
            mine.add(lock)
            held.callback(mine.discard, lock)
        yield may_search


def _say_waiting(holder: str) -> None:
    log.warning("waiting for %s, which searches for the same configuration", holder)
