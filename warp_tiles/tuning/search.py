"""A search: builds candidates in parallel, measures them alternately, and reports each timing once it is final.

The search does not depend on the kind of candidates: a function of each device builds them from configurations.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from warp_tiles.tuning.measure import Candidate, Clock, Effort, Runner, describe_error, is_transient, race
from warp_tiles.tuning.record import Config, Timing, identity
from warp_tiles.tuning.search_progress import SearchProgress
from warp_tiles.tuning.space import All, Strategy
from warp_tiles.util.threads import DaemonThreads, available_cores, wait_all, wait_result

_BATCH = 32  # built, measured and stored together; cores are idle only at the end of a batch
_BATCH_ON_BUDGET = 16  # smaller, so that something is measured before the time is over


class Built(Candidate, Protocol):
    """A candidate that was built."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""


@dataclass(frozen=True)
class SearchDevice:
    """A device that takes part in a search.

    Attributes:
        build: Builds the candidate of a configuration; several threads call it at once. An exception makes the
            configuration a failure, unless the exception is transient (:func:`is_transient`).
        clock: Takes times on the device.
    """

    build: Callable[[Config], Built]
    clock: Clock


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        timings: One per configuration that was measured, dropped or failed.
        builds: Number of builds, failed ones included.
        measured: Number of candidates with at least one timed run.
        out_of_time: True if the budget ended the search.
        build_s, measure_s: Time in which it waited for builds, and in which it measured.
        transient: Those of ``timings`` that failed for a transient cause. ``finished`` does not get them.
    """

    timings: tuple[Timing, ...]
    builds: int
    measured: int
    out_of_time: bool
    build_s: float = 0.0
    measure_s: float = 0.0
    transient: tuple[Timing, ...] = ()


def search(
    configs: Sequence[Config],
    devices: Sequence[SearchDevice],
    *,
    strategy: Strategy | None = None,
    effort: Effort | None = None,
    jobs: int = 0,
    budget_s: float = 0.0,
    soft: Mapping[str, Any] | None = None,
    finished: Callable[[Sequence[Timing]], None] = lambda timings: None,
    what: str = "",
) -> SearchResult:
    """Build and measure configurations.

    Args:
        configs: The configurations; they are assigned to the devices in turn.
        devices: The devices; at least one.
        strategy: Narrows the configurations down; None measures all of them.
        effort: Amount of measurement; None for the default.
        jobs: Number of parallel builds; 0 for one per core.
        budget_s: Seconds after which the search stops with the results so far; 0 for no limit.
        soft: The soft part of the environment, stored with each timing.
        finished: Called with timings as soon as they are final. At an interruption it gets the timings so far as
            unfinished. It does not get builds that failed for a transient cause (:func:`is_transient`).
        what: Name of the tuned function, for the progress bar.
    """
    with SearchProgress(what, len(configs)) as progress:
        running = _Search(configs, devices, effort or Effort(), jobs or available_cores(), budget_s, soft, progress)
        running.finished = finished
        return running.run(strategy or All())


class _Search:
    def __init__(
        self,
        configs: Sequence[Config],
        devices: Sequence[SearchDevice],
        effort: Effort,
        jobs: int,
        budget_s: float,
        soft: Mapping[str, Any] | None,
        progress: SearchProgress,
    ) -> None:
        self.configs = configs
        self.devices = devices
        self.effort = effort
        self.jobs = jobs
        self.deadline = time.monotonic() + budget_s if budget_s else math.inf
        self.soft = soft
        self.progress = progress
        self.finished: Callable[[Sequence[Timing]], None] = lambda timings: None
        self.device_of = {identity(config): devices[number % len(devices)] for number, config in enumerate(configs)}
        self.config_of = {identity(config): config for config in configs}
        self.timings: dict[str, Timing] = {}
        self.transient: list[Timing] = []
        self.builds = 0
        self.build_s = self.measure_s = 0.0
        self.runners: list[Runner] = []

    def run(self, strategy: Strategy) -> SearchResult:
        size = max(_BATCH if self.deadline == math.inf else _BATCH_ON_BUDGET, 4 * self.jobs)
        steps = strategy.keep(0, len(self.configs)) > 0
        effort = (
            replace(self.effort, iterations=strategy.iterations(0, self.effort.iterations)) if steps else self.effort
        )
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
                self._finish_interrupted()
            raise
        finally:  # builds that exceed the budget end in the background; their results are ignored
            builder.shutdown(wait=False, cancel_futures=True)
        measured = sum(bool(runner.samples_us) for runner in self.runners)
        out_of_time = len(self.timings) < len(self.configs)
        timings, transient = tuple(self.timings.values()), tuple(self.transient)
        return SearchResult(timings, self.builds, measured, out_of_time, self.build_s, self.measure_s, transient)

    def _build(self, builder: DaemonThreads, configs: Sequence[Config]) -> list[Runner]:
        start = time.monotonic()
        self.progress.say(f"building {len(configs)}")
        names = [identity(config) for config in configs]
        futures = {name: builder.submit(self.device_of[name].build, config) for name, config in zip(names, configs)}
        left_s = None if self.deadline == math.inf else max(0.0, self.deadline - time.monotonic())
        for future in futures.values():
            future.add_done_callback(lambda done: self.progress.built() if not done.cancelled() else None)
        wait_all(futures.values(), left_s)
        self.build_s += time.monotonic() - start
        runners: list[Runner] = []
        failed: list[Timing] = []
        transient: list[Timing] = []
        for name, future in futures.items():
            if future.cancel() or not future.done():
                continue  # out of time
            self.builds += 1
            error = future.exception()
            if error is None:
                runners.append(Runner(name, future.result()))
            elif isinstance(error, Exception):
                timing = Timing(self.config_of[name], "failed", reason=describe_error(error), soft=self.soft)
                (transient if is_transient(error) else failed).append(timing)
            else:
                raise error
        self.runners += runners
        self.transient += transient
        self._remember(transient)
        self._record(failed)
        return runners

    def _race(self, runners: Sequence[Runner], effort: Effort) -> None:
        parts = [
            (device, [runner for runner in runners if self.device_of[runner.name] is device])
            for device in dict.fromkeys(self.device_of[runner.name] for runner in runners)
        ]

        def measure(device: SearchDevice, part: list[Runner]) -> None:
            race(part, device.clock, effort, deadline=self.deadline, on_measured=self._show)

        start = time.monotonic()
        for runner in runners:
            runner.spent_s = 0.0
        if len(parts) == 1:
            measure(*parts[0])
        elif parts:
            threads = DaemonThreads(len(parts), "warp_tiles_measure")
            try:
                for future in [threads.submit(measure, device, part) for device, part in parts]:
                    wait_result(future)
            finally:
                threads.shutdown(wait=False)
        self.measure_s += time.monotonic() - start

    def _show(self, runner: Runner) -> None:
        if runner.samples_us:
            self.progress.measured(runner.name, runner.statistics().median_us)

    def _leaders(self, runners: Sequence[Runner]) -> list[Runner]:
        """Returns the fastest candidate of each device. The next batch is measured against it."""
        best: dict[SearchDevice, Runner] = {}
        for runner in _fastest(runners):
            best.setdefault(self.device_of[runner.name], runner)
        return list(best.values())

    def _narrow(self, strategy: Strategy) -> None:
        """Run the steps after the first one, and drop candidates at each."""
        step, live = 0, _fastest(self.runners)
        while live and time.monotonic() < self.deadline:
            count = strategy.keep(step, len(live))
            if not 0 < count < len(live):
                break
            for runner in live[count:]:
                runner.status, runner.reason = "dropped", f"not among the {count} fastest of step {step + 1}"
            live, step = live[:count], step + 1
            self._race(live, replace(self.effort, iterations=strategy.iterations(step, self.effort.iterations)))
            live = _fastest(live)
        if len(live) > 1 and 0 < strategy.keep(step, len(live)) < len(live):  # the time is over
            for runner in live:
                runner.unfinished = True
        self._finish(self.runners)

    def _finish_interrupted(self) -> None:
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

    def _remember(self, timings: Sequence[Timing]) -> None:
        self.timings.update({timing.identity: timing for timing in timings})

    def _record(self, timings: Sequence[Timing]) -> None:
        self._remember(timings)
        if timings:
            self.finished(timings)


def _fastest(runners: Sequence[Runner]) -> list[Runner]:
    ok = [runner for runner in runners if runner.status == "ok"]
    return sorted(ok, key=lambda runner: runner.statistics().median_us)
