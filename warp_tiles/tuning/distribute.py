"""Distributes work over GPUs, one thread each. If a GPU fails, another one retries its item.

The module depends neither on the kind of work nor on GPUs: both are opaque values.
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
from warp_tiles.util.threads import DaemonThreads, wait_item

_MAX_FAILURES = 2  # devices that may fail after progress with one item; then the item is the likely cause

_D = TypeVar("_D")
_I = TypeVar("_I")
_R = TypeVar("_R")

Report = Callable[[Callable[[], None]], None]


def distribute(
    items: Sequence[_I],
    devices: Sequence[_D],
    work: Callable[[_D, _I, float, Report], _R],
    *,
    end: float = math.inf,
    lost: Callable[[_D, ToolchainError], None] = lambda device, error: None,
) -> list[_R | ToolchainError]:
    """Do each item on one of the devices, in order. Time that an item does not use goes to the next ones.

    With several devices, each has a thread. A device that fails gets no more items, and another one retries its item.
    An item fails once two devices failed after some progress with it, or once no device is left. A single device uses
    the calling thread.

    Args:
        items: The items of work.
        devices: The devices; at least one.
        work: Does an item on a device, until a deadline by ``time.monotonic()``. Its last argument runs a call in the
            calling thread. It raises once that thread has given up, which ends the work.
        end: When all work ends, by ``time.monotonic()``.
        lost: Called in the calling thread for each of several devices that failed.

    Returns:
        For each item its result, or the error after which it was given up.

    Raises:
        ToolchainError: The only device failed.
        WorkerError: A compiler process died. This says nothing about the device.
    """
    if len(devices) == 1:
        return [
            work(devices[0], item, _deadline(end, len(items) - number, 1), lambda call: call())
            for number, item in enumerate(items)
        ]
    return _Distribution(items, devices, work, end, lost).run()


def _deadline(end: float, waiting: int, devices: int) -> float:
    """Returns the deadline of the next item: the time left, divided by the items that each device still has to do."""
    if end == math.inf:
        return end
    now = time.monotonic()
    return now + max(0.0, end - now) / math.ceil(waiting / devices)


class _StoppedError(Exception):
    """The calling thread has given up."""


class _Distribution(Generic[_D, _I, _R]):
    def __init__(
        self,
        items: Sequence[_I],
        devices: Sequence[_D],
        work: Callable[[_D, _I, float, Report], _R],
        end: float,
        lost: Callable[[_D, ToolchainError], None],
    ) -> None:
        self._items, self._devices, self._work, self._end, self._lost = items, devices, work, end, lost
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._changed = threading.Condition()  # guards the fields below
        self._waiting = deque(range(len(items)))
        self._under_way = 0
        self._live = len(devices)
        self._failures: Counter[int] = Counter()
        self._results: dict[int, _R | ToolchainError] = {}
        self._stopped = False
        self._running_threads = 0  # only the calling thread uses this

    def run(self) -> list[_R | ToolchainError]:
        threads = DaemonThreads(len(self._devices), "warp_tiles_gpu")
        self._running_threads = len(self._devices)
        try:
            for device in self._devices:
                future = threads.submit(self._serve, device)
                future.add_done_callback(lambda done: self._calls.put(partial(self._ended, done)))
            while self._running_threads:
                wait_item(self._calls)()
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            threads.shutdown(wait=False)
        return [self._results[number] for number in range(len(self._items))]

    def _ended(self, thread: Future[None]) -> None:
        self._running_threads -= 1
        thread.result()

    def _serve(self, device: _D) -> None:
        """Do items until none are left or the device fails."""
        while (taken := self._take()) is not None:
            number, deadline = taken
            progress = _Progress(self)
            try:
                result = self._work(device, self._items[number], deadline, progress)
            except WorkerError:
                raise
            except ToolchainError as error:
                self._give_up(number, error, progress.has_begun)
                self._calls.put(partial(self._lost, device, error))
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
                self._changed.wait()  # another device may fail and leave its item
            if self._stopped or not self._waiting:
                return None
            deadline = _deadline(self._end, len(self._waiting), self._live)
            self._under_way += 1
            return self._waiting.popleft(), deadline

    def _give_up(self, number: int, error: ToolchainError, had_begun: bool) -> None:
        with self._changed:
            self._live -= 1
            self._under_way -= 1
            self._failures[number] += had_begun
            if self._failures[number] < _MAX_FAILURES:
                self._waiting.appendleft(number)
            else:
                self._results[number] = error
            if not self._live:
                self._results.update(dict.fromkeys(self._waiting, error))
                self._waiting.clear()
            self._changed.notify_all()

    def put(self, call: Callable[[], None]) -> None:
        """Run a call in the calling thread."""
        if self._stopped:
            raise _StoppedError
        self._calls.put(call)


class _Progress:
    """Forwards calls, and remembers whether there was one."""

    def __init__(self, distribution: _Distribution[Any, Any, Any]) -> None:
        self._distribution = distribution
        self.has_begun = False

    def __call__(self, call: Callable[[], None]) -> None:
        self.has_begun = True
        self._distribution.put(call)
