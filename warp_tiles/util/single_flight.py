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
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from warp_tiles.util.threads import wait_all, wait_result
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


class _Searches(Flights[Path, None]):
    """The :func:`single_flight` blocks of this process by lock file, and those that ended with an exception."""

    def _reset(self) -> None:
        super()._reset()
        self.unfinished: set[Path] = set()


_searches = _Searches()


@contextmanager
def single_flight(
    files: TrustedFolder, name: str, timeout_s: float | None, unusable: Callable[[OSError], None]
) -> Iterator[bool]:
    """Hold a lock for a search, or wait until the thread or process that holds it has ended its search.

    A search leaves a mark beside its lock, and removes it when its block ends without an exception. If a search is
    killed or interrupted, a waiting process sees the mark and searches in its place.

    Args:
        files: The folder of the lock.
        name: The lock's file, which ends in ``.lock``. Its folder is created.
        timeout_s: Seconds to wait; None for no limit, 0 for no waiting.
        unusable: Called with the reason if processes cannot be coordinated. Threads are coordinated in any case.

    Yields:
        True if this thread holds the lock for the block. False if another search has ended meanwhile or still runs, or
        if this thread already searches for the key.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    mark, lock = f"{name.removesuffix('.lock')}.searching", files.path(name)
    with ExitStack() as held:
        waited = _enter_in_process(held, lock, deadline)
        if waited is None:
            yield False
            return
        try:
            waited = _enter_among_processes(held, files, name, deadline) or waited
            interrupted = _exists(files, mark)
        except TimeoutError:
            held.close()
            yield False
            return
        except OSError as error:
            unusable(error)
            interrupted = False
        if waited and not interrupted and lock not in _searches.unfinished:
            held.close()
            yield False
            return
        _searches.unfinished.add(lock)
        with suppress(OSError):
            files.create_empty(mark)
        yield True
        _searches.unfinished.discard(lock)
        with suppress(OSError):
            files.remove(mark)


def _exists(files: TrustedFolder, name: str) -> bool:
    try:
        files.status(name)
    except FileNotFoundError:
        return False
    return True


def _enter_in_process(held: ExitStack, lock: Path, deadline: float | None) -> bool | None:
    """Returns True if this thread waited for another, False if it did not, None if it must not search."""
    waited = False
    while True:
        future, leader = _searches.enter(lock)
        if leader is None:
            held.callback(_leave_in_process, lock, future)
            return waited
        if leader == threading.get_ident():
            return None
        waited = True
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            return None
        wait_all([future], left_s)


def _leave_in_process(lock: Path, future: Future[None]) -> None:
    _searches.leave(lock, future)
    future.set_result(None)


def _enter_among_processes(held: ExitStack, files: TrustedFolder, name: str, deadline: float | None) -> bool:
    """Take the file lock. Returns True if this process waited for another.

    Raises:
        TimeoutError: Another process still holds it.
        OSError: The lock cannot be created.
    """

    def waiting(holder: str) -> None:
        log.warning("waiting for %s, which searches for the same configuration", holder)

    try:
        held.enter_context(files.lock(name, 0.0, waiting=waiting))
    except TimeoutError:
        left_s = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        held.enter_context(files.lock(name, left_s, POLL_S, waiting))
        return True
    return False
