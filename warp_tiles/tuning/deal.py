"""Deals work out to GPUs: one thread each; what a GPU that fails had begun goes to another one.

It knows neither what the work is nor what a GPU is.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from warp_tiles.errors import ToolchainError, WorkerError
from warp_tiles.util.threads import DaemonThreads

_MOST_FAILURES = 2  # of GPUs that had begun with one item, which is then the likely cause

_P = TypeVar("_P")
_I = TypeVar("_I")
_R = TypeVar("_R")

Report = Callable[[Callable[[], None]], None]


def deal(
    items: Sequence[_I],
    places: Sequence[_P],
    work: Callable[[_P, _I, float, Report], _R],
    *,
    end: float = math.inf,
    lost: Callable[[_P, ToolchainError], None] = lambda place, error: None,
) -> list[_R | ToolchainError]:
    """Do every item at one of the places, in order; time that an item does not use goes to the next ones.

    With several places, each has a thread. One that fails gets no more items. Its item is tried at another place, and
    fails once two places failed after some progress with it, or none is left. A single place uses the calling thread.

    Args:
        items: What is done.
        places: Where; at least one.
        work: Does an item at a place, until a deadline by ``time.monotonic()``. Its last argument has calls made by the
            thread that waits for everything; once that thread has given up, it raises, which ends the work.
        end: When all of it ends, by ``time.monotonic()``.
        lost: Called, in the calling thread, for each of several places that failed.

    Returns:
        For each item its result, or the error that no place was left to recover from.

    Raises:
        ToolchainError: The only place failed.
        WorkerError: A compiler process died, which says nothing about the place.
    """
    if len(places) == 1:
        return [
            work(places[0], item, _share(end, len(items) - number, 1), lambda call: call())
            for number, item in enumerate(items)
        ]
    return _Deal(items, places, work, end, lost).run()


def _share(end: float, waiting: int, places: int) -> float:
    """Deadline of the next of the items that wait: an equal part of what is left for each that a place still does."""
    if end == math.inf:
        return end
    now = time.monotonic()
    return now + max(0.0, end - now) / math.ceil(waiting / places)


class _StoppedError(Exception):
    """The calling thread has given up."""


class _Deal(Generic[_P, _I, _R]):
    def __init__(
        self,
        items: Sequence[_I],
        places: Sequence[_P],
        work: Callable[[_P, _I, float, Report], _R],
        end: float,
        lost: Callable[[_P, ToolchainError], None],
    ) -> None:
        self._items, self._places, self._work, self._end, self._lost = items, places, work, end, lost
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._changed = threading.Condition()  # guards what follows
        self._waiting = deque(range(len(items)))
        self._under_way = 0
        self._live = len(places)
        self._failures: Counter[int] = Counter()
        self._results: dict[int, _R | ToolchainError] = {}
        self._stopped = False
        self._running = 0  # threads; of the calling thread alone

    def run(self) -> list[_R | ToolchainError]:
        threads = DaemonThreads(len(self._places), "warp_tiles_gpu")
        self._running = len(self._places)
        try:
            for place in self._places:
                future = threads.submit(self._serve, place)
                future.add_done_callback(lambda done: self._calls.put(partial(self._ended, done)))
            while self._running:
                self._calls.get()()
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            threads.shutdown(wait=False)
        return [self._results[number] for number in range(len(self._items))]

    def _ended(self, thread: Future[None]) -> None:
        self._running -= 1
        thread.result()

    def _serve(self, place: _P) -> None:
        """Do items until there are none, or the place fails."""
        while (taken := self._take()) is not None:
            number, deadline = taken
            progress = _Progress(self)
            try:
                result = self._work(place, self._items[number], deadline, progress)
            except WorkerError:
                raise
            except ToolchainError as error:
                self._give_up(number, error, progress.anything)
                self._calls.put(partial(self._lost, place, error))
                return
            except _StoppedError:
                return
            with self._changed:
                self._results[number] = result
                self._under_way -= 1
                self._changed.notify_all()

    def _take(self) -> tuple[int, float] | None:
        with self._changed:
            while not self._waiting and self._under_way and not self._stopped:
                self._changed.wait()  # another place may fail and leave its item
            if self._stopped or not self._waiting:
                return None
            deadline = _share(self._end, len(self._waiting), self._live)
            self._under_way += 1
            return self._waiting.popleft(), deadline

    def _give_up(self, number: int, error: ToolchainError, had_begun: bool) -> None:
        with self._changed:
            self._live -= 1
            self._under_way -= 1
            self._failures[number] += had_begun
            if self._failures[number] < _MOST_FAILURES:
                self._waiting.appendleft(number)
            else:
                self._results[number] = error
            if not self._live:
                self._results.update(dict.fromkeys(self._waiting, error))
                self._waiting.clear()
            self._changed.notify_all()

    def put(self, call: Callable[[], None]) -> None:
        """Have the calling thread make a call."""
        if self._stopped:
            raise _StoppedError
        self._calls.put(call)


class _Progress:
    """Passes calls on, and notes that there were some."""

    def __init__(self, deal: _Deal[Any, Any, Any]) -> None:
        self._deal = deal
        self.anything = False

    def __call__(self, call: Callable[[], None]) -> None:
        self.anything = True
        self._deal.put(call)
