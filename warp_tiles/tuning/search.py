"""Candidates to timings: builds side by side, measures in turn, and hands on what is final as it comes.

It knows configurations, and candidates that a device's lane makes of them, but not what they are.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

from warp_tiles.compile.pool import available_cores
from warp_tiles.tuning.measure import Candidate, Clock, Effort, Runner, describe_error, is_passing, race
from warp_tiles.tuning.record import Config, Timing, identity
from warp_tiles.tuning.search_progress import SearchProgress
from warp_tiles.tuning.space import All, Strategy
from warp_tiles.util.threads import DaemonThreads

_BATCH = 32  # built, measured and remembered together: cores are idle only when a batch ends
_BATCH_ON_BUDGET = 16  # so that something is measured before the time is over


class Built(Candidate, Protocol):
    """A candidate that was built."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""


@dataclass(frozen=True)
class Lane:
    """A device that takes part in a search.

    Attributes:
        build: Makes a candidate of a configuration and builds it; called by several threads at once. What it raises
            makes the configuration a failure, unless its cause passes (:func:`is_passing`).
        clock: Takes times on the device.
    """

    build: Callable[[Config], Built]
    clock: Clock


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        timings: One per configuration that was decided.
        builds: Configurations that were built, or failed to.
        measured: Candidates that had at least one timed run.
        out_of_time: Whether the budget ended it.
        build_s, measure_s: What it spent waiting for builds, and measuring.
        passing: Those of ``timings`` that failed for a cause outside the candidate, and were not handed on.
    """

    timings: tuple[Timing, ...]
    builds: int
    measured: int
    out_of_time: bool
    build_s: float = 0.0
    measure_s: float = 0.0
    passing: tuple[Timing, ...] = ()


def search(
    configs: Sequence[Config],
    lanes: Sequence[Lane],
    *,
    strategy: Strategy | None = None,
    effort: Effort | None = None,
    jobs: int = 0,
    budget_s: float = 0.0,
    soft: Mapping[str, Any] | None = None,
    finished: Callable[[Sequence[Timing]], None] = lambda timings: None,
    what: str = "",
) -> Found:
    """Build and measure configurations.

    Args:
        configs: What is searched; with several lanes they are dealt out in turn.
        lanes: The devices; at least one.
        strategy: How the configurations are narrowed down.
        effort: How much is measured.
        jobs: Builds side by side; 0 for one per core.
        budget_s: Seconds after which the search stops with what it has; 0 for no limit.
        soft: The soft part of the environment, noted with each timing.
        finished: Called with timings as soon as they are final, and at an interruption with what was measured so far,
            as unfinished; not with failures to build for a cause that passes (:func:`is_passing`).
        what: What is tuned, for the progress bar.
    """
    with SearchProgress(what, len(configs)) as progress:
        running = _Search(configs, lanes, effort or Effort(), jobs or available_cores(), budget_s, soft, progress)
        running.finished = finished
        return running.run(strategy or All())


class _Search:
    def __init__(
        self,
        configs: Sequence[Config],
        lanes: Sequence[Lane],
        effort: Effort,
        jobs: int,
        budget_s: float,
        soft: Mapping[str, Any] | None,
        progress: SearchProgress,
    ) -> None:
        self.configs = configs
        self.lanes = lanes
        self.effort = effort
        self.jobs = jobs
        self.deadline = time.monotonic() + budget_s if budget_s else math.inf
        self.soft = soft
        self.progress = progress
        self.finished: Callable[[Sequence[Timing]], None] = lambda timings: None
        self.lane_of = {identity(config): lanes[number % len(lanes)] for number, config in enumerate(configs)}
        self.config_of = {identity(config): config for config in configs}
        self.timings: dict[str, Timing] = {}
        self.passing: list[Timing] = []
        self.builds = 0
        self.build_s = self.measure_s = 0.0
        self.runners: list[Runner] = []

    def run(self, strategy: Strategy) -> Found:
        size = max(_BATCH if self.deadline == math.inf else _BATCH_ON_BUDGET, 4 * self.jobs)
        steps = strategy.keep(0, len(self.configs)) > 0
        effort = replace(self.effort, rounds=strategy.rounds(0, self.effort.rounds)) if steps else self.effort
        leaders: list[Runner] = []
        builder = DaemonThreads(self.jobs, "warp_tiles_tune")
        try:
            for start in range(0, len(self.configs), size):
                if time.monotonic() >= self.deadline:
                    break
                batch = self._build(builder, self.configs[start : start + size])
                self._race([*leaders, *batch], effort)
                if not steps:
                    leaders = self._leaders([*leaders, *batch])
                    self._finish([*leaders, *batch])
            if steps:
                self._narrow(strategy)
        except BaseException:
            with contextlib.suppress(Exception):  # re-raises the interrupt itself, not the errors that it causes
                self._keep()
            raise
        finally:  # builds that exceed the budget end in the background; their results are ignored
            builder.shutdown(wait=False, cancel_futures=True)
        measured = sum(bool(runner.samples_us) for runner in self.runners)
        out_of_time = len(self.timings) < len(self.configs)
        timings, passing = tuple(self.timings.values()), tuple(self.passing)
        return Found(timings, self.builds, measured, out_of_time, self.build_s, self.measure_s, passing)

    def _build(self, builder: DaemonThreads, configs: Sequence[Config]) -> list[Runner]:
        start = time.monotonic()
        self.progress.say(f"building {len(configs)}")
        futures = {identity(config): builder.submit(self.lane_of[identity(config)].build, config) for config in configs}
        left_s = None if self.deadline == math.inf else max(0.0, self.deadline - time.monotonic())
        for future in futures.values():
            future.add_done_callback(lambda done: self.progress.built() if not done.cancelled() else None)
        wait(futures.values(), timeout=left_s)
        self.build_s += time.monotonic() - start
        runners: list[Runner] = []
        failed: list[Timing] = []
        passing: list[Timing] = []
        for name, future in futures.items():
            if future.cancel() or not future.done():
                continue  # out of time
            self.builds += 1
            error = future.exception()
            if error is None:
                runners.append(Runner(name, future.result()))
            elif isinstance(error, Exception):
                timing = Timing(self.config_of[name], "failed", reason=describe_error(error), soft=self.soft)
                (passing if is_passing(error) else failed).append(timing)
            else:
                raise error
        self.runners += runners
        self.passing += passing
        self._know(passing)
        self._record(failed)
        return runners

    def _race(self, runners: Sequence[Runner], effort: Effort) -> None:
        lanes = [
            (lane, [runner for runner in runners if self.lane_of[runner.name] is lane])
            for lane in dict.fromkeys(self.lane_of[runner.name] for runner in runners)
        ]

        def measure(lane: Lane, its: list[Runner]) -> None:
            race(its, lane.clock, effort, deadline=self.deadline, seen=self._seen)

        start = time.monotonic()
        for runner in runners:
            runner.spent_s = 0.0
        if len(lanes) == 1:
            measure(*lanes[0])
        elif lanes:
            threads = DaemonThreads(len(lanes), "warp_tiles_measure")
            try:
                for future in [threads.submit(measure, lane, its) for lane, its in lanes]:
                    future.result()
            finally:
                threads.shutdown(wait=False)
        self.measure_s += time.monotonic() - start

    def _seen(self, runner: Runner) -> None:
        if runner.samples_us:
            self.progress.measured(runner.name, runner.statistics().median_us)

    def _leaders(self, runners: Sequence[Runner]) -> list[Runner]:
        """The fastest of each lane, which the next batch is measured against."""
        best: dict[Lane, Runner] = {}
        for runner in _fastest(runners):
            best.setdefault(self.lane_of[runner.name], runner)
        return list(best.values())

    def _narrow(self, strategy: Strategy) -> None:
        """The steps behind the first one, and which ones fell out at each."""
        step, live = 0, _fastest(self.runners)
        while live and time.monotonic() < self.deadline:
            count = strategy.keep(step, len(live))
            if not 0 < count < len(live):
                break
            for runner in live[count:]:
                runner.status, runner.reason = "dropped", f"not among the {count} fastest of step {step + 1}"
            live, step = live[:count], step + 1
            self._race(live, replace(self.effort, rounds=strategy.rounds(step, self.effort.rounds)))
            live = _fastest(live)
        if len(live) > 1 and 0 < strategy.keep(step, len(live)) < len(live):  # the time is over
            for runner in live:
                runner.unfinished = True
        self._finish(self.runners)

    def _keep(self) -> None:
        """Report the timings of candidates that are not final."""
        undecided = [runner for runner in self.runners if runner.name not in self.timings]
        for runner in undecided:
            if runner.samples_us and runner.status in ("running", "ok"):
                runner.status, runner.unfinished = "ok", True
        self._finish(undecided)

    def _finish(self, runners: Sequence[Runner]) -> None:
        built = [runner for runner in dict.fromkeys(runners) if runner.status != "running"]
        self._record([self._timing(runner) for runner in built])

    def _timing(self, runner: Runner) -> Timing:
        timing = Timing(
            self.config_of[runner.name],
            "failed",
            shared_bytes=int(getattr(runner.candidate, "shared_bytes", 0)),
            reason=runner.reason,
            soft=self.soft,
        )
        if runner.status == "failed":
            return timing
        found = runner.statistics()
        return replace(
            timing,
            status="ok" if runner.status == "ok" else "dropped",
            median_us=found.median_us,
            low_us=found.low_us,
            high_us=found.high_us,
            samples=found.samples,
            unfinished=runner.unfinished,
        )

    def _know(self, timings: Sequence[Timing]) -> None:
        self.timings.update({timing.identity: timing for timing in timings})

    def _record(self, timings: Sequence[Timing]) -> None:
        self._know(timings)
        if timings:
            self.finished(timings)


def _fastest(runners: Sequence[Runner]) -> list[Runner]:
    ok = [runner for runner in runners if runner.status == "ok"]
    return sorted(ok, key=lambda runner: runner.statistics().median_us)
