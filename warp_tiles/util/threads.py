"""Threads that never keep a process alive: an interrupted script ends at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from warp_tiles.util.waiting import wait_result

A = TypeVar("A")
T = TypeVar("T")
_Work = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def side_by_side(call: Callable[[A], T], items: Sequence[A], most: int) -> list[T]:
    """Call a function for each item on up to ``most`` daemon threads, and return the results in order.

    An interrupt is raised at once. After an error, calls that have begun are waited for.

    Raises:
        Exception: The error of the first item that has one.
    """
    threads = DaemonThreads(max(1, min(most, len(items))), "warp_tiles_side_by_side")
    futures = [threads.submit(call, item) for item in items]
    try:
        return [wait_result(future) for future in futures]
    except Exception:
        threads.shutdown(wait=True, cancel_futures=True)
        raise
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


class DaemonThreads(Executor):
    """An executor on daemon threads.

    ``ThreadPoolExecutor`` joins its threads when the interpreter ends, before any exit handler. An
    interrupted program would therefore finish every queued build first.

    Args:
        max_workers: The largest number of threads. Each starts when there is work for it.
        name: Prefix of the threads' names.
    """

    def __init__(self, max_workers: int, name: str) -> None:
        self._max_workers = max_workers
        self._name = name
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a call on one of the threads.

        Raises:
            RuntimeError: The executor was shut down.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._queue.put((future, fn, args, kwargs))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._max_workers:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            future, function, args, kwargs = item
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args, **kwargs)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del item, future
            self._idle.release()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. Optionally cancel those that have not started, and wait for the rest."""
        with self._lock:
            self._closed = True
            if cancel_futures:
                while True:
                    try:
                        item = self._queue.get_nowait()
                    except queue.Empty:
                        break
                    if item is not None:
                        item[0].cancel()
            for _ in self._threads:
                self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()
