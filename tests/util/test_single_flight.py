"""Single flight within a process. tests/store and tests/tuning test its users."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from warp_tiles.util.single_flight import Flights


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
