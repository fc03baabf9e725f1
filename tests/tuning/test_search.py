"""Searches over candidates that are not kernels."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tuning.fake_stores import MemoryStore
from tests.tuning.tuning_records import key, timing
from warp_tiles import WorkerError, settings
from warp_tiles.errors import ToolchainError
from warp_tiles.tuning.measure import Effort, SearchDevice
from warp_tiles.tuning.record import Config, Record, Timing
from warp_tiles.tuning.search import Counters, Search, by_identity

CONFIGS = [{"x": number} for number in range(20)]


@dataclass
class Candidate:
    config: Config
    time_us: float

    @property
    def shared_bytes(self) -> int:
        return 1000 + int(self.config["x"])

    def prepare(self) -> None:
        if self.config["x"] == 13:
            raise RuntimeError("wrong result")


@dataclass
class Device:
    """Builds in a given time, refuses configuration 7, and counts parallel builds. Configuration 3 may break it.

    Attributes:
        runs: The number of runs of each configuration.
    """

    seconds: float = 0.0
    breaks: bool = False
    lost: bool = False
    now: int = 0
    most: int = 0
    built: list[int] = field(default_factory=list)
    runs: Counter[int] = field(default_factory=Counter)
    lock: Any = field(default_factory=threading.Lock)

    def build(self, config: Config) -> Candidate:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1
        if config["x"] == 7:
            raise RuntimeError("ptxas wants too much")
        self.built.append(config["x"])
        return Candidate(config, 100.0 + abs(config["x"] - 11) * 10)

    def sample_us(self, candidate: Any, runs: int) -> list[float]:
        self.runs[candidate.config["x"]] += runs
        self.lost = self.lost or (self.breaks and candidate.config["x"] == 3)
        if self.lost:
            raise RuntimeError("an illegal memory access")
        return [candidate.time_us * (1 + 0.001 * (run % 3)) for run in range(runs)]

    def of_search(self) -> SearchDevice:
        return SearchDevice(self.build, self, "cuda:0", lambda: not self.lost)  # type: ignore[arg-type]


def search(
    configs: Sequence[Config],
    devices: Sequence[Device],
    finished: Callable[[Sequence[Timing]], Any] = lambda timings: None,
    budget_s: float = 0.0,
    **options: Any,
) -> tuple[Timing, ...]:
    """The configurations without a stored timing, which are those of transient failures."""
    found = [device.of_search() for device in devices]
    wanted = by_identity(configs)
    search = Search(key(), MemoryStore(), wanted, lambda configs: nullcontext(found), **options)  # type: ignore[arg-type]
    record, _ = search.settle(budget_s, finished=lambda timings, record: finished(timings))
    stored = {timing.identity for timing in search.record().timings}
    return tuple(timing for timing in record.timings if timing.identity not in stored)


def into(found: dict[Any, Timing]) -> Callable[[Sequence[Timing]], None]:
    """Adds reported timings to a dictionary, by the number of their configuration."""
    return lambda timings: found.update({timing.config["x"]: timing for timing in timings})


def searched(configs: Sequence[Config], *devices: Device, **options: Any) -> dict[Any, Timing]:
    """The final timing of each configuration, by its number."""
    found: dict[Any, Timing] = {}
    search(configs, devices or [Device()], into(found), **options)
    return found


def test_every_configuration_gets_a_timing_and_failures_their_reason() -> None:
    counters = Counters()
    by_number = searched(CONFIGS, counters=counters)
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
    device = Device(0.02)
    searched(CONFIGS[:8], device, jobs=jobs)
    assert device.most == jobs


def test_the_budget_ends_a_search_with_its_timings() -> None:
    counters = Counters()
    many = [{"x": 100 + number} for number in range(200)]
    found = searched(many, Device(0.05), jobs=2, budget_s=1.0, counters=counters)
    assert 16 <= len(found) < 200
    assert counters.builds < 200
    assert searched(CONFIGS, Device(0.2), jobs=1, budget_s=0.05) == {}, "it ends within the first builds"


def test_each_batch_is_measured_against_the_fastest_of_those_before() -> None:
    many = [{"x": 11}, *({"x": 14} | {"y": number} for number in range(70))]  # 100 us, and 130 us
    found: list[Timing] = []
    search(many, [Device()], finished=found.extend, jobs=1)
    assert {timing.identity for timing in found if timing.status == "ok"} == {'{"x":11}'}
    assert sum(timing.status == "dropped" for timing in found) == 70


def test_several_devices_share_the_configurations() -> None:
    devices = [Device(), Device()]
    assert len(searched(CONFIGS, *devices)) == 20
    finals = {10, 11, 12, 13, 9}  # run once more on the first device
    assert 11 in devices[0].built, "it was built for the second one first"
    first, second = (set(device.built) - finals for device in devices)
    assert first == set(range(0, 20, 2)) - finals
    assert second == set(range(1, 20, 2)) - finals - {7}


def test_progress_shows_the_best_so_far_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    with settings.override(progress="auto"):
        searched(CONFIGS, what="gemm")
    assert capsys.readouterr().err == ""
    with settings.override(progress="on"):
        searched(CONFIGS, what="gemm")
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
    class Failing(Device):
        def build(self, config: Config) -> Candidate:
            if config["x"] == 3:
                raise cause
            return super().build(config)

    reported: list[Timing] = []
    failed = search(CONFIGS[:5], [Failing()], finished=reported.extend)
    assert [timing.config["x"] for timing in failed] == [3] * transient
    assert all(type(cause).__name__ in timing.reason for timing in failed)
    assert sorted(timing.config["x"] for timing in reported) == [0, 1, 2, *[3] * (not transient), 4]


def test_an_interruption_or_the_budget_reports_unfinished_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)  # only samples take time

    class Interrupting(Device):
        def sample_us(self, candidate: Any, runs: int) -> list[float]:
            if self.runs.total() > 90:  # after warm-ups, within the first iteration
                raise KeyboardInterrupt
            return super().sample_us(candidate, runs)

    class Slow(Device):
        def sample_us(self, candidate: Any, runs: int) -> list[float]:
            clock.now_s += 8.0
            return [100.0 + run for run in range(runs)]

    reported: dict[int, Timing] = {}
    with pytest.raises(KeyboardInterrupt):
        search(CONFIGS, [Interrupting()], into(reported))
    assert {timing.unfinished for timing in reported.values() if timing.status == "ok"} == {True}
    assert not any(timing.unfinished for timing in reported.values() if timing.status != "ok")
    for module in ("search", "measure"):
        monkeypatch.setattr(f"warp_tiles.tuning.{module}.time", clock)
    for budget_s, unfinished in ((60.0, True), (0.0, False)):
        found = searched([{"x": 1}, {"x": 2}], Slow(), budget_s=budget_s, effort=Effort(candidate_s=60.0))
        assert [timing.unfinished for timing in found.values()] == [unfinished] * 2


def test_another_device_continues_the_work_of_a_lost_one() -> None:
    configs = [{"x": number} for number in (3, 4, 5, 6, 8, 9)]
    with pytest.warns(RuntimeWarning, match="cuda:0 is no longer used for tuning"):
        by_number = searched(configs, Device(breaks=True), Device())
    assert by_number.keys() == {3, 4, 5, 6, 8, 9}
    assert by_number[3].status == "failed"
    assert "cannot be used any more" in by_number[3].reason
    assert {by_number[number].status for number in (4, 5, 6, 8)} <= {"ok", "dropped"}, "they are innocent"


def test_the_loss_of_the_last_device_is_an_error_and_keeps_the_timings() -> None:
    kept: dict[int, Timing] = {}
    many = [{"x": number} for number in range(100, 140)]
    with pytest.raises(ToolchainError, match=r"cannot be used any more since it ran \{'x': 3\}") as caught:
        search([*many, {"x": 3}, {"x": 141}], [Device(breaks=True)], into(kept), jobs=1)
    assert "run the same command again" in caught.value.remedy
    assert kept[3].status == "failed"
    assert 141 not in kept
    assert len(kept) >= 32


def test_the_fastest_run_once_more_beside_the_default() -> None:
    plain, final = Device(), Device()
    searched(CONFIGS, plain)
    by_number = searched(CONFIGS, final, default=CONFIGS[0])
    assert final.runs[11] > plain.runs[11]
    assert final.runs[0] > plain.runs[0], "the default runs again although it is slow"
    assert final.runs[1] == plain.runs[1]
    assert by_number[0].median_us > by_number[11].median_us


OTHER = {"driver": "12.0", "warp": "1.19.0"}
FAST, SLOW, DROPPED = timing({"x": 1}, 10.0), timing({"x": 2}, 30.0), timing({"x": 3}, 20.0, status="dropped")


@pytest.mark.parametrize(
    ("timings", "wanted", "reuse_stale", "expected"),
    [
        ([], [1, 2], True, [1, 2]),
        ([replace(FAST, unfinished=True), SLOW], [1, 2, 3], True, [3, 1]),
        ([replace(FAST, soft=OTHER)], [1], True, []),
        ([replace(FAST, soft=OTHER)], [1], False, [1]),
        ([FAST, SLOW, DROPPED], [1, 2, 3], True, []),
        (
            [FAST, SLOW, DROPPED],
            [2, 3],
            True,
            [3],
        ),  # what it lost to does not count, and it may be faster than the rest
        ([FAST, replace(SLOW, median_us=15.0), DROPPED], [2, 3], True, []),
        ([DROPPED], [3], True, [3]),
    ],
)
def test_what_is_measured(timings: list[Timing], wanted: list[int], reuse_stale: bool, expected: list[int]) -> None:
    configs = by_identity([{"x": number} for number in wanted])
    devices: Any = None
    search = Search(key(), MemoryStore(), configs, devices, reuse_stale)  # type: ignore[arg-type]
    assert [config["x"] for config in search.pending(Record(key(), tuple(timings)))] == expected
