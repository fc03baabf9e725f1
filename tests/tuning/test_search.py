"""Searches over candidates that are not kernels."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from tests.tuning.fake_stores import MemoryStore
from tests.tuning.tuning_records import key
from warp_tiles import WorkerError, settings
from warp_tiles.errors import ToolchainError
from warp_tiles.tuning.measure import SearchDevice
from warp_tiles.tuning.record import Config, Timing
from warp_tiles.tuning.search import Counters, Question, by_identity

CONFIGS = [{"x": number} for number in range(20)]


class Candidate:
    def __init__(self, config: Config, time_us: float) -> None:
        self.config = config
        self.time_us = time_us
        self.shared_bytes = 1000 + config["x"]
        self.runs = 0

    def prepare(self) -> None:
        if self.config["x"] == 13:
            raise RuntimeError("wrong result")

    def run(self) -> None:
        self.runs += 1

    def restore(self) -> None:
        pass


class Clock:
    def sample_us(self, candidate: Any, runs: int) -> list[float]:
        for _ in range(runs):
            candidate.run()
        return [candidate.time_us * (1 + 0.001 * (run % 3)) for run in range(runs)]


class Builder:
    """Builds in a given time, refuses configuration 7, and counts parallel builds."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.built: list[Candidate] = []

    def __call__(self, config: Config) -> Candidate:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1
        if config["x"] == 7:
            raise RuntimeError("ptxas wants too much")
        candidate = Candidate(config, 100.0 + abs(config["x"] - 11) * 10)
        self.built.append(candidate)
        return candidate


def search(
    configs: Sequence[Config],
    devices: Sequence[SearchDevice],
    finished: Callable[[Sequence[Timing]], Any] = lambda timings: None,
    **options: Any,
) -> tuple[Timing, ...]:
    """The configurations without a stored timing, which are those of transient failures or of no time."""
    names = ("budget_s",) if "budget_s" in options else ()
    how = {name: options.pop(name) for name in names}
    wanted = by_identity(configs)
    question = Question(key(), MemoryStore(), wanted, lambda configs: nullcontext(devices), **options)
    record, _ = question.settle(finished=lambda timings, record: finished(timings), **how)
    stored = {timing.identity for timing in question.record().timings}
    return tuple(timing for timing in record.timings if timing.identity not in stored)


def into(found: dict[Any, Timing]) -> Callable[[Sequence[Timing]], None]:
    """Adds reported timings to a dictionary, by the number of their configuration."""
    return lambda timings: found.update({timing.config["x"]: timing for timing in timings})


def searched(configs: Sequence[Config], devices: Sequence[SearchDevice], **options: Any) -> dict[Any, Timing]:
    """The final timing of each configuration, by its number."""
    found: dict[Any, Timing] = {}
    search(configs, devices, into(found), **options)
    return found


def run(
    configs: Sequence[Config] = CONFIGS, build: Callable[[Config], Any] | None = None, **options: Any
) -> dict[Any, Timing]:
    return searched(configs, [SearchDevice(build or Builder(), Clock())], **options)


def test_every_configuration_gets_a_timing_and_failures_their_reason() -> None:
    counters = Counters()
    by_number = run(counters=counters)
    assert sorted(by_number) == list(range(20))
    assert by_number[7].status == by_number[13].status == "failed"
    assert by_number[7].reason == "RuntimeError: ptxas wants too much"
    assert by_number[13].reason == "RuntimeError: wrong result"
    best = min((timing for timing in by_number.values() if timing.status == "ok"), key=lambda timing: timing.median_us)
    assert best.config == {"x": 11}
    assert best.low_us <= best.median_us <= best.high_us
    assert best.shared_bytes == 1011
    assert {timing.soft["driver"] for timing in by_number.values()} == {"13.0"}
    assert by_number[0].status == "dropped"
    assert (counters.builds, counters.measurements) == (20, 18)


@pytest.mark.parametrize("jobs", [1, 4])
def test_builds_run_in_parallel(jobs: int) -> None:
    builder = Builder(0.02)
    run(CONFIGS[:8], builder, jobs=jobs)
    assert builder.most == jobs


def test_the_budget_ends_a_search_with_its_timings() -> None:
    counters = Counters()
    found = run([{"x": 100 + number} for number in range(200)], Builder(0.05), jobs=2, budget_s=1.0, counters=counters)
    assert 16 <= len(found) < 200
    assert counters.builds < 200
    assert run(CONFIGS, Builder(0.2), jobs=1, budget_s=0.05) == {}, "it ends within the first builds"


def test_each_batch_is_measured_against_the_fastest_of_those_before() -> None:
    many = [{"x": 11}, *({"x": 14} | {"y": number} for number in range(70))]  # 100 us, and 130 us
    found: list[Timing] = []
    search(many, [SearchDevice(Builder(), Clock())], finished=found.extend, jobs=1)
    assert {timing.identity for timing in found if timing.status == "ok"} == {'{"x":11}'}
    assert sum(timing.status == "dropped" for timing in found) == 70


def test_several_devices_share_the_configurations() -> None:
    builders = [Builder(), Builder()]
    assert len(searched(CONFIGS, [SearchDevice(builder, Clock()) for builder in builders])) == 20
    numbers = [sorted(candidate.config["x"] for candidate in builder.built) for builder in builders]
    finals = {10, 11, 12, 13, 9}  # run once more on the first device
    assert 11 in numbers[0], "it was built for the second one first"
    assert sorted(set(numbers[0]) - finals) == [number for number in range(0, 20, 2) if number not in finals]
    assert set(numbers[0]) - finals == set(range(20)) - finals - set(numbers[1]) - {7}


def test_progress_shows_the_best_so_far_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    with settings.override(progress="auto"):
        run(what="gemm")
    assert capsys.readouterr().err == ""
    with settings.override(progress="on"):
        run(what="gemm")
    shown = capsys.readouterr().err
    assert "tuning gemm" in shown
    assert "20/20" in shown


@pytest.mark.parametrize(
    ("cause", "transient"),
    [
        (OSError(28, "No space left on device"), True),
        (MemoryError(), True),
        (WorkerError("it was killed"), True),
        (OSError(36, "File name too long"), False),
    ],
)
def test_a_transient_failure_is_returned_and_not_reported(cause: Exception, transient: bool) -> None:
    def build(config: Config) -> Candidate:
        if config["x"] == 3:
            raise cause
        return Candidate(config, 100.0)

    reported: list[Timing] = []
    failed = search(CONFIGS[:5], [SearchDevice(build, Clock())], finished=reported.extend)
    assert [timing.config["x"] for timing in failed] == [3] * transient
    assert all(type(cause).__name__ in timing.reason for timing in failed)
    assert sorted(timing.config["x"] for timing in reported) == [0, 1, 2, *[3] * (not transient), 4]


def test_an_interruption_or_the_budget_reports_unfinished_timings() -> None:
    class Interrupting(Clock):
        samplings = 0

        def sample_us(self, candidate: Any, runs: int) -> list[float]:
            self.samplings += 1
            if self.samplings == 30:
                raise KeyboardInterrupt
            return super().sample_us(candidate, runs)

    class Slow(Clock):
        def sample_us(self, candidate: Any, runs: int) -> list[float]:
            time.sleep(0.02)
            return [100.0 + run for run in range(runs)]

    reported: dict[int, Timing] = {}
    with pytest.raises(KeyboardInterrupt):
        search(CONFIGS, [SearchDevice(Builder(), Interrupting())], into(reported))
    assert {timing.unfinished for timing in reported.values() if timing.status == "ok"} == {True}
    assert not any(timing.unfinished for timing in reported.values() if timing.status != "ok")
    for budget_s, unfinished in ((0.15, True), (0.0, False)):
        found = searched([{"x": 1}, {"x": 2}], [SearchDevice(Builder(), Slow())], budget_s=budget_s)
        assert [timing.unfinished for timing in found.values()] == [unfinished] * 2


class Breakable:
    """A device that configuration 3 breaks."""

    def __init__(self, breaks: bool = True) -> None:
        self.breaks = breaks
        self.lost = False
        self.builder = Builder()

    def sample_us(self, candidate: Any, runs: int) -> list[float]:
        self.lost = self.lost or (self.breaks and candidate.config["x"] == 3)
        if self.lost:
            raise RuntimeError("an illegal memory access")
        return Clock().sample_us(candidate, runs)

    @property
    def device(self) -> SearchDevice:
        return SearchDevice(self.builder, self, "cuda:0", lambda: not self.lost)


def test_another_device_continues_the_work_of_a_lost_one() -> None:
    broken, other = Breakable(), Breakable(breaks=False)
    configs = [{"x": number} for number in (3, 4, 5, 6, 8, 9)]
    with pytest.warns(RuntimeWarning, match="cuda:0 is no longer used for tuning"):
        by_number = searched(configs, [broken.device, other.device])
    assert by_number.keys() == {3, 4, 5, 6, 8, 9}
    assert by_number[3].status == "failed"
    assert "cannot be used any more" in by_number[3].reason
    assert {by_number[number].status for number in (4, 5, 6, 8)} <= {"ok", "dropped"}, "they are innocent"


def test_the_loss_of_the_last_device_is_an_error_and_keeps_the_timings() -> None:
    kept: dict[int, Timing] = {}
    many = [{"x": number} for number in range(100, 140)]
    with pytest.raises(ToolchainError, match=r"cannot be used any more since it ran \{'x': 3\}") as caught:
        search([*many, {"x": 3}, {"x": 141}], [Breakable().device], into(kept), jobs=1)
    assert "run the same command again" in caught.value.remedy
    assert kept[3].status == "failed"
    assert 141 not in kept
    assert len(kept) >= 32


def test_the_fastest_run_once_more_beside_the_default() -> None:
    class Counting(Clock):
        def __init__(self) -> None:
            self.counts: dict[int, int] = {}

        def sample_us(self, candidate: Any, runs: int) -> list[float]:
            self.counts[candidate.config["x"]] = self.counts.get(candidate.config["x"], 0) + runs
            return super().sample_us(candidate, runs)

    plain, final = Counting(), Counting()
    search(CONFIGS, [SearchDevice(Builder(), plain)])
    by_number = searched(CONFIGS, [SearchDevice(Builder(), final)], default=CONFIGS[0])
    assert final.counts[11] > plain.counts[11]
    assert final.counts[0] > plain.counts[0], "the default runs again although it is slow"
    assert final.counts[1] == plain.counts[1]
    assert by_number[0].median_us > by_number[11].median_us
