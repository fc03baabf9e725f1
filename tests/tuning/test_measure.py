"""Candidates with known times against a fake clock."""

import itertools
import math
import random
import statistics as standard
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import warp as wp
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles import TuningError
from warp_tiles.tuning import measure
from warp_tiles.tuning.measure import Effort, EventClock, Runner, WallClock, describe_error, race, statistics


class Fake:
    """A candidate with given times that logs its calls."""

    def __init__(self, time_us: Callable[[], float], log: list[str] | None = None, name: str = "") -> None:
        self.time_us = time_us
        self.log = log if log is not None else []
        self.name = name

    def prepare(self) -> None:
        self.log.append(f"prepare {self.name}")

    def run(self) -> None:
        self.log.append(f"run {self.name}")

    def restore(self) -> None:
        self.log.append(f"restore {self.name}")


class FakeClock:
    """Returns the times of each candidate, and advances by them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.order: list[str] = []

    def monotonic(self) -> float:
        return self.now_s

    def sample_us(self, candidate: Fake, runs: int) -> list[float]:
        self.order.append(candidate.name)
        samples = []
        for _ in range(runs):
            candidate.restore()
            candidate.run()
            samples.append(candidate.time_us())
            self.now_s += samples[-1] / 1e6
        return samples


def noisy(median_us: float, share: float = 0.01, seed: int = 0) -> Callable[[], float]:
    source = random.Random(f"{median_us} {seed}")
    return lambda: median_us * (1 + source.uniform(-share, share))


def contest(times: dict[str, Callable[[], float]], **options: object) -> tuple[dict[str, Runner], FakeClock]:
    clock = FakeClock()
    runners = {name: Runner(name, Fake(time, name=name)) for name, time in times.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "time", clock)
        race(list(runners.values()), clock, **options)  # type: ignore[arg-type]
    return runners, clock


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60))
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    found = statistics(samples)
    assert found.median_us == pytest.approx(standard.median(samples))
    assert min(samples) <= found.low_us <= found.median_us * (1 + 1e-12)
    assert found.median_us <= found.high_us * (1 + 1e-12) <= max(samples) * (1 + 1e-9)
    assert found.samples == len(samples)


@pytest.mark.parametrize("count", [6, 7, 10, 25, 60])
def test_the_interval_is_the_narrowest_of_95_percent(count: int) -> None:
    found = statistics(list(range(count)))
    rank = int(found.low_us)

    def covered(rank: int) -> float:
        return 1 - 2 * sum(math.comb(count, below) for below in range(rank + 1)) / 2**count

    assert covered(rank) >= 0.95
    assert rank + 1 > (count - 1) // 2 or covered(rank + 1) < 0.95
    assert found.high_us == count - 1 - rank


def test_the_fastest_is_measured_to_the_end_and_slow_ones_are_dropped_early() -> None:
    runners, _ = contest({"slow": noisy(900), "fast": noisy(100), "near": noisy(101), "slower": noisy(120)})
    assert [runners[name].status for name in ("fast", "near", "slow", "slower")] == ["ok", "ok", "dropped", "dropped"]
    assert len(runners["slow"].samples_us) == 5
    assert "times the best after 5 runs" in runners["slow"].reason
    assert len(runners["slower"].samples_us) >= 6, "once the intervals are apart"
    assert len(runners["fast"].samples_us) >= 10


def test_candidates_alternate_in_a_changing_order() -> None:
    _, clock = contest({name: noisy(100, seed=seed) for seed, name in enumerate("abc")})
    order = clock.order[3:]  # after the warm-up
    iterations = [order[start : start + 3] for start in range(0, len(order), 3)]
    assert len(iterations) == 10
    assert all(sorted(iteration) == ["a", "b", "c"] for iteration in iterations)
    assert {iteration[0] for iteration in iterations} == {"a", "b", "c"}


def test_each_run_is_preceded_by_restoring() -> None:
    log: list[str] = []
    clock = FakeClock()
    race([Runner("x", Fake(noisy(5), log))], clock, Effort(warmup=2, runs=3, iterations=2))
    assert log[0] == "prepare "
    assert all(pair == ("restore ", "run ") for pair in itertools.zip_longest(log[1::2], log[2::2]))


def test_a_failed_candidate_does_not_stop_the_others_and_is_described_in_a_line() -> None:
    def broken() -> float:
        raise RuntimeError("illegal\n  address")

    runners, _ = contest({"broken": broken, "fine": noisy(10)})
    assert (runners["broken"].status, runners["broken"].reason) == ("failed", "RuntimeError: illegal address")
    assert runners["fine"].status == "ok"
    assert describe_error(KeyError()) == "KeyError: no message"
    assert len(describe_error(ValueError("x" * 5000))) < 500


def test_the_deadline_stops_the_race_and_keeps_its_samples() -> None:
    runners, clock = contest({name: noisy(1e6, seed=seed) for seed, name in enumerate("abcd")}, deadline=12.0)
    assert clock.now_s < 12 + 6
    assert {runner.status for runner in runners.values()} == {"ok", "running"}
    assert all(bool(runner.samples_us) == (runner.status == "ok") for runner in runners.values())
    assert all(runner.unfinished == (runner.status == "ok") for runner in runners.values())


def test_long_launches_get_fewer_runs() -> None:
    runners, _ = contest({"long": noisy(400_000), "longer": noisy(401_000)}, effort=Effort(candidate_s=1.0))
    assert all(len(runner.samples_us) == 10 for runner in runners.values())


def test_a_leader_of_an_earlier_race_keeps_its_samples() -> None:
    leader = Runner("leader", Fake(noisy(50)), samples_us=[50.0] * 10, status="ok")
    clock = FakeClock()
    race([leader, Runner("new", Fake(noisy(200)))], clock)
    assert leader.status == "ok"
    assert len(leader.samples_us) > 10
    assert not any(entry.startswith("prepare") for entry in leader.candidate.log)  # type: ignore[attr-defined]


def test_wall_time_covers_the_run_alone_and_restores_before_each() -> None:
    class Slow(Fake):
        def restore(self) -> None:
            super().restore()
            time.sleep(0.02)

    log: list[str] = []
    begin = time.perf_counter()
    samples = WallClock().sample_us(Slow(lambda: 0.0, log), 3)
    assert len(samples) == 3
    assert sum(samples) / 1e6 < time.perf_counter() - begin - 3 * 0.02
    assert [entry.strip() for entry in log] == ["restore", "run"] * 3


class FakeStream:
    """A device that reaches the first run at once, or after a given number of fills of its buffer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host_needs_fills: Sequence[int]) -> None:
        self.needs = iter(host_needs_fills)
        self.fills: list[int] = [0]  # of each attempt
        self.memory = True
        monkeypatch.setattr(wp, "get_device", lambda device: SimpleNamespace(stream=self))
        monkeypatch.setattr(wp, "empty", self._empty)
        monkeypatch.setattr(wp, "Event", lambda **options: SimpleNamespace(is_complete=False))
        monkeypatch.setattr(wp, "synchronize_event", lambda event: None)
        monkeypatch.setattr(wp, "get_event_elapsed_time", lambda start, end, synchronize: 0.5)

    def _empty(self, *args: Any, **options: Any) -> Any:
        if not self.memory:
            raise RuntimeError("Failed to allocate")
        return SimpleNamespace(zero_=self._fill)

    def _fill(self) -> None:
        self.fills[-1] += 1

    def record_event(self, event: Any) -> None:
        if self.fills[-1]:  # the first event of an attempt
            event.is_complete = self.fills[-1] < next(self.needs)
            self.fills.append(0)


def test_runs_that_the_host_was_too_late_for_are_repeated_behind_more_work(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = FakeStream(monkeypatch, [8, 8, 8])
    clock, log = EventClock("cuda:0"), []
    candidate = Fake(lambda: 0.0, log)
    assert clock.sample_us(candidate, 3) == [500.0] * 3
    assert stream.fills == [4, 8, 0]
    assert log.count("run ") == 2 * (1 + 3), "one run of each attempt is not timed"
    assert [entry.strip() for entry in log] == ["restore", "run"] * 2 * (1 + 3)
    clock.sample_us(candidate, 3)
    assert stream.fills == [4, 8, 8, 0], "the number of fills is remembered"


def test_a_host_that_is_always_late_and_a_device_without_memory_hold_up_no_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = FakeStream(monkeypatch, [1000] * 10)
    assert len(EventClock("cuda:0").sample_us(Fake(lambda: 0.0), 2)) == 2
    assert stream.fills == [4, 8, 16, 16, 0]
    stream.memory = False
    with pytest.raises(RuntimeError, match="Failed to allocate"):
        EventClock("cuda:0")


@pytest.mark.parametrize("wrong", [{"runs": 0}, {"iterations": 0}, {"warmup": -1}, {"runs": 1.5}])
def test_an_effort_that_measures_nothing_is_refused(wrong: dict[str, Any]) -> None:
    Effort(warmup=0, runs=1, iterations=1)
    with pytest.raises(TuningError, match="warmup, runs and iterations are"):
        Effort(**wrong)
