"""Single flight within a process. tests/cache and tests/tuning test its users."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from warp_tiles.util.single_flight import Flights, ReentrantFlightError


def test_one_call_serves_all_concurrent_threads() -> None:
    flights: Flights[str, int] = Flights()
    begun, gate, calls = threading.Event(), threading.Event(), []

    def call() -> int:
        calls.append(1)
        begun.set()
        gate.wait(10)
        return 7

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(flights.run, "key", call)
        assert begun.wait(10)
        others = [threads.submit(flights.run, "key", call) for _ in range(3)]
        assert flights.run("another key", lambda: 8) == (8, True)
        assert len(flights) == 1
        gate.set()
        assert first.result(10) == (7, True)
        results = [other.result(10) for other in others]
    assert all(value == 7 for value, _ in results)
    assert len(calls) == 1 + sum(led for _, led in results)  # a late thread leads again
    assert len(flights) == 0


def test_an_error_is_raised_and_not_stored() -> None:
    flights: Flights[str, int] = Flights()
    with pytest.raises(ZeroDivisionError):
        flights.run("key", lambda: 1 // 0)
    assert flights.run("key", lambda: 1) == (1, True)


def test_a_call_cannot_wait_for_itself() -> None:
    flights: Flights[str, int] = Flights()
    with pytest.raises(ReentrantFlightError):
        flights.run("key", lambda: flights.run("key", lambda: 1)[0])
    assert len(flights) == 0


def test_a_started_future_is_shared_until_it_is_done() -> None:
    flights: Flights[str, int] = Flights()
    work: Future[int] = Future()
    assert flights.start("key", lambda: work) == (work, True)
    assert flights.start("key", Future) == (work, False)
    work.set_result(1)
    assert len(flights) == 0
    later, started = flights.start("key", Future)
    assert started
    assert later is not work


def test_finished_work_is_forgotten_at_once() -> None:
    flights: Flights[str, int] = Flights()
    done: Future[int] = Future()
    done.set_result(1)
    assert flights.start("key", lambda: done) == (done, True)
    assert len(flights) == 0


def test_work_that_fails_to_start_is_forgotten() -> None:
    flights: Flights[str, int] = Flights()

    def submit() -> Future[int]:
        raise RuntimeError("closed")

    with pytest.raises(RuntimeError, match="closed"):
        flights.start("key", submit)
    assert len(flights) == 0
