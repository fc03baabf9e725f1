"""Waits that an interrupt always ends.

CPython runs a signal's handler in the main thread, between two instructions. A signal that arrives right before the
main thread blocks on a lock, or that another thread receives, does not wake it. These waits therefore wake up
regularly.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Collection
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")
_WAKE_UP_S = 0.2


def wait_result(future: Future[T]) -> T:
    """Wait for a future. Returns its result or raises its error."""
    wait_all([future])
    return future.result()


def wait_all(futures: Collection[Future[T]], timeout_s: float | None = None) -> set[Future[T]]:
    """Wait until all futures are done.

    Args:
        futures: The futures.
        timeout_s: The longest wait in seconds; None for no limit.

    Returns:
        Those that are done.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = _WAKE_UP_S if end is None else min(_WAKE_UP_S, max(0.0, end - time.monotonic()))
        done, running = wait(futures, left_s)
        if not running or (end is not None and time.monotonic() >= end):
            return done


def wait_item(items: queue.SimpleQueue[T]) -> T:
    """Wait for the next item of a queue."""
    while True:
        try:
            return items.get(timeout=_WAKE_UP_S)
        except queue.Empty:
            continue
