"""Threads that never keep a process alive, and waits that an interrupt always ends: a script ends at once.

CPython runs a signal's handler in the main thread, between two instructions. A signal that arrives right before the
main thread blocks on a lock, or that another thread receives, does not wake it. So the waits wake up regularly. What a
handler raises, such as a time limit, appears wherever the main thread is (:func:`warp_tiles.errors.unless_signalled`).
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warp_tiles.errors import raise_if_signalled, suppressed, unless_signalled

if TYPE_CHECKING:
    AnyLock = threading.Lock | threading.RLock

A = TypeVar("A")
T = TypeVar("T")
_Work = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]
_WAKE_UP_S = 0.2
#: Who waits for a build: a launch, a prefetch or a start list. A lower number comes first.
LAUNCH, PREFETCH, START_LIST = range(3)
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds of CPU time, and of the period


def acquire(lock: AnyLock) -> None:
    """Wait for a lock of this process, and take it."""
    while not lock.acquire(timeout=_WAKE_UP_S):
        pass


@contextmanager
def held(lock: AnyLock) -> Iterator[None]:
    acquire(lock)
    try:
        yield
    finally:
        lock.release()


def wait_result(future: Future[T]) -> T:
    wait_all([future])
    return future.result()


def wait_all(futures: Collection[Future[T]], timeout_s: float | None = None) -> set[Future[T]]:
    """Wait until all futures are done, at most ``timeout_s`` seconds. Returns those that are done."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = _WAKE_UP_S if end is None else min(_WAKE_UP_S, max(0.0, end - time.monotonic()))
        done, running = wait(futures, left_s)
        if not running or (end is not None and time.monotonic() >= end):
            return done


def side_by_side(call: Callable[[A], T], items: Sequence[A], most: int) -> list[T]:
    """Call a function for each item on up to ``most`` daemon threads, and return the results in order.

    What a signal's handler raises ends the wait at once. After an error, calls that have begun are waited for. Raises
    the error of the first item that has one.
    """
    threads = DaemonThreads(max(1, min(most, len(items))), "warp_tiles_side_by_side")
    futures: list[Future[T]] = []
    try:
        for item in items:
            futures.append(threads.submit(call, item))
        for future in futures:
            wait_all([future])
            if future.exception() is not None:
                break
    finally:
        threads.close()
    wait_all(futures)
    return [future.result() for future in futures]


class DaemonThreads:
    """Makes calls on daemon threads. If none can be started, :meth:`submit` makes the call itself.

    ``ThreadPoolExecutor`` takes no call once the main thread has ended, and joins its threads before any exit handler,
    so that an interrupted program would finish every queued build first. Python 3.12 starts no thread in exit handlers.

    Args:
        max_workers: The largest number of threads. Each starts when there is work for it.
        name: Prefix of the threads' names.
    """

    def __init__(self, max_workers: int, name: str) -> None:
        self._max_workers = max_workers
        self._name = name
        self._work: list[tuple[int, int, _Work]] = []  # a heap: by order, and as submitted
        self._count = 0
        self._queue: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True for each piece of work
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, order: int = 0) -> Future[T]:
        """Run a call on one of the threads, after those of a lower order. Raises RuntimeError if it was closed."""
        future: Future[T] = Future()
        work = future, fn, args
        with self._lock:
            if self._closed:
                raise RuntimeError("these threads were closed, and take no call")
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._max_workers:
                thread = threading.Thread(target=self._run, name=f"{self._name}_{len(self._threads)}", daemon=True)
                try:
                    thread.start()
                    self._threads.append(thread)
                except unless_signalled(RuntimeError):  # the interpreter ends, or the process has too many threads
                    pass
            if self._threads:
                self._count += 1
                heappush(self._work, (order, self._count, work))
                self._queue.put(True)
                return future
        _call(*work)
        if (failure := future.exception()) is not None:
            if not isinstance(failure, Exception):  # an interrupt of this thread
                raise failure
            raise_if_signalled(failure)
        return future

    def _run(self) -> None:
        while self._queue.get():
            with self._lock:
                work = heappop(self._work)[-1] if self._work else None
            if work is not None:
                _call(*work)
            del work
            self._idle.release()

    def close(self) -> None:
        """Accept no more calls, and cancel those that have not started. Nobody waits for the others."""
        with self._lock:
            self._closed = True
            waiting, self._work = self._work, []
            for _ in self._threads:
                self._queue.put(False)
        for *_, (future, *_) in waiting:
            if future.cancel():
                future.set_running_or_notify_cancel()  # ends waits for it, which cancel() alone does not


def _call(future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            result = function(*args)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)


def available_cores() -> int:
    """The number of cores that this process may use, at most the quota of its container."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
    with suppressed(OSError, ValueError):  # no cgroup v2, or "max" for no quota
        quota, period = map(int, CPU_QUOTA.read_text().split())
        return min(cores, max(1, -(-quota // period)))
    return cores
