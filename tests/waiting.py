"""Waits for what other threads and processes do, and calls in several threads at once."""

import threading
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until a condition holds. Returns its value."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "timed out"
        time.sleep(0.005)
    return found


def in_threads(count: int, call: Callable[[], object]) -> list[object]:
    """The results of a call in several threads that begin at once, or the exceptions that it raised."""
    results: list[object] = []
    barrier = threading.Barrier(count)

    def run() -> None:
        barrier.wait()
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return results
