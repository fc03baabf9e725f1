"""A question, and the search that answers it.

A search builds candidates in parallel, measures them alternately, and reports each timing once it is final. It serves
everything that is tuned: the answers of a script's kernels, the configurations of a tuned kernel, and the tiles of
``matmul``. A function of each device builds candidates from configurations.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from warp_tiles.build.progress import is_enabled, new_bar
from warp_tiles.errors import RefusedWorkerError, ToolchainError
from warp_tiles.tuning.measure import Candidate, Clock, Effort, Runner, describe_error, is_transient, race
from warp_tiles.tuning.record import Config, Record, Timing, identity, settled
from warp_tiles.tuning.store import RecordStore
from warp_tiles.tuning.tuning_key import TuningKey
from warp_tiles.util.threads import DaemonThreads, available_cores, held, side_by_side, wait_all, wait_result
from warp_tiles.util.warn import warn

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_BATCH = 32  # built, measured and stored together; cores are idle only at the end of a batch
_BATCH_ON_BUDGET = 16  # smaller, so that something is measured before the time is over
_FINALISTS = 4  # the fastest candidates, which run against each other and the default once more
_FINAL_ITERATIONS = 2  # times those of the search, to tell a small gain from none


@dataclass(frozen=True)
class SearchDevice:
    """A device that takes part in a search.

    Attributes:
        build: Builds the candidate of a configuration; several threads call it at once. An exception makes the
            configuration a failure, unless the exception is transient (:func:`is_transient`).
        clock: Takes times on the device.
        name: For messages. Two searches of a process do not measure on devices of one name at once.
        is_usable: Called after a failure. False if the candidate broke the device, so that it is lost.
    """

    build: Callable[[Config], Candidate]
    clock: Clock
    name: str = "the device"
    is_usable: Callable[[], bool] = lambda: True


@dataclass
class Counters:
    """Counts of the operations of a tuned kernel in this process.

    Attributes:
        lookups: Look-ups of records.
        builds: Builds of candidates, failed ones included.
        measurements: Candidates with at least one timed run.
        build_s, measure_s: Time in which searches waited for builds, and in which they measured.
    """

    lookups: int = 0
    searches: int = 0
    builds: int = 0
    measurements: int = 0
    build_s: float = 0.0
    measure_s: float = 0.0


def by_identity(configs: Iterable[Config]) -> dict[str, Config]:
    """Configurations by their identities, each once."""
    return {identity(config): config for config in configs}


@dataclass(frozen=True)
class Question:
    """Configurations, and the record with their timings.

    Attributes:
        wanted: The configurations that count, by identity.
        reuse_stale: True if timings of another driver or Warp patch release count.
    """

    key: TuningKey
    store: RecordStore
    wanted: Mapping[str, Config]
    reuse_stale: bool

    def record(self) -> Record:
        """The stored record; empty if there is none."""
        return self.store.load(self.key) or Record(self.key)

    def winner(self, record: Record) -> Timing | None:
        """The fastest of the configurations that count."""
        return record.among(self.wanted).winner()

    def pending(self, record: Record) -> tuple[Config, ...]:
        """Returns configurations without a timing, then those whose timing cannot be used now.

        A timing cannot be used if it is outdated or unfinished. The timing of a dropped candidate cannot be used if the
        candidate may have lost to one that does not count now.
        """
        known = {timing.identity: timing for timing in record.timings}
        best, winner, soft = record.winner(), self.winner(record), self.key.environment.soft()

        def is_known(timing: Timing | None) -> bool:
            if timing is None or timing.unfinished:
                return False
            if not self.reuse_stale and timing.soft != soft:
                return False
            if timing.status != "dropped":
                return True
            if best is None or winner is None:
                return False
            return best.identity in self.wanted or timing.median_us >= winner.median_us

        missing = [name for name in self.wanted if not is_known(known.get(name))]
        new = [self.wanted[name] for name in missing if name not in known]
        again = [self.wanted[name] for name in missing if name in known]
        return (*new, *again)

    def search(
        self,
        configs: Sequence[Config],
        devices: Sequence[SearchDevice],
        budget_s: float = 0.0,
        finished: Callable[[Sequence[Timing], Record], object] = lambda timings, record: None,
        *,
        effort: Effort | None = None,
        jobs: int = 0,
        what: str = "",
        default: Config | None = None,
        counters: Counters | None = None,
    ) -> tuple[Timing, ...]:
        """Build and measure configurations, and store each timing when it is final.

        With several devices, or with a default, the fastest configurations are measured once more at the end,
        alternately and on the first device. So their times are comparable, and the winner is less likely to have won by
        chance.

        If one of several devices is lost, there is a warning, and the others continue its work. The configuration that
        broke it has failed. At an interruption, the timings so far are stored as unfinished.

        Args:
            configs: The configurations; they are assigned to the devices in turn.
            devices: The devices; at least one.
            budget_s: Seconds after which the search stops with the results so far; 0 for no limit.
            finished: Called with timings and the record that they were added to, as soon as they are final. At an
                interruption, they may be unfinished.
            effort: Amount of measurement; None for the default.
            jobs: Number of parallel builds; 0 for one per core.
            what: Name of the tuned function, for the progress bar.
            default: One of the configurations, which the final measurement contains even if it is slow.
            counters: Receives the builds and measurements.

        Returns:
            The builds that failed for a transient cause (:func:`is_transient`), which are not stored.

        Raises:
            ToolchainError: The last device was lost.
        """
        # without this, a small budget would never be enough
        before = self.record().timings if budget_s else ()

        def store(timings: Sequence[Timing]) -> None:
            finished(timings, self.store.merge(self.key, settled(timings, before)))

        bar = new_bar(f"tuning {what}")
        # a terminal has one bar; searches on other threads have none
        is_shown = is_enabled() and threading.current_thread() is threading.main_thread()
        with bar if is_shown else contextlib.nullcontext():
            deadline = time.monotonic() + budget_s if budget_s else math.inf
            task = bar.add_task("", total=len(configs))
            guards, jobs = [_Guard(device) for device in devices], jobs or available_cores()
            soft, effort, counters = self.key.environment.soft(), effort or Effort(), counters or Counters()
            return _Search(guards, effort, jobs, deadline, soft, bar, task, store, counters).run(configs, default)


# ---- the search


_measuring: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)  # by name of the device


class _LostError(Exception):
    """The device was lost to another candidate."""


class _Guard:
    """A device of a search, and the candidate to which it was lost."""

    def __init__(self, device: SearchDevice) -> None:
        self.device = device
        self.lost_to = ""

    @contextlib.contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """After an error, find out whether the device was lost. Later errors say nothing about other candidates."""
        if self.lost_to:
            raise _LostError
        try:
            yield
        except Exception as error:
            if not self.lost_to and not is_transient(error) and not self.device.is_usable():
                self.lost_to = name
            raise

    def build(self, config: Config) -> Candidate:
        with self.watched(identity(config)):
            return self.device.build(config)

    def runner(self, name: str, candidate: Candidate) -> Runner:
        return Runner(name, candidate, watched=partial(self.watched, name))


@dataclass
class _Search:
    guards: list[_Guard]
    effort: Effort
    jobs: int
    deadline: float
    soft: Mapping[str, Any]
    bar: Progress
    task: TaskID
    finished: Callable[[Sequence[Timing]], object]
    counters: Counters
    config_of: dict[str, Config] = field(default_factory=dict)
    guard_of: dict[str, _Guard] = field(default_factory=dict)
    decided: set[str] = field(default_factory=set)  # names of the candidates that have a timing
    transient: list[Timing] = field(default_factory=list)
    runners: list[Runner] = field(default_factory=list)
    best_us: float = math.inf

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self.deadline

    def run(self, configs: Sequence[Config], default: Config | None) -> tuple[Timing, ...]:
        self.config_of = by_identity(configs)
        size = max(_BATCH if self.deadline == math.inf else _BATCH_ON_BUDGET, 4 * self.jobs)
        several, waiting, leaders = len(self.guards) > 1, deque(self.config_of), list[Runner]()
        builder = DaemonThreads(self.jobs, "warp_tiles_tune")
        try:
            while waiting and self.has_time:
                names = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                batch = [*leaders, *self._build(builder, names)]
                self._race(batch, self.effort)
                waiting.extendleft(reversed(self._lost(names)))
                batch = self._here(batch)  # the next one is measured against the fastest of each device
                leaders = list({self.guard_of[one.name]: one for one in reversed(_fastest(batch))}.values())
                self._finish(batch)
            if (default is not None or several) and self.has_time:
                self._finals(builder, None if default is None else identity(default))
        except BaseException:
            with contextlib.suppress(Exception):  # re-raises the interrupt itself, not the errors that it causes
                self._finish_interrupted()
            raise
        finally:  # builds that exceed the budget end in the background; their results are ignored
            builder.close()
        self.counters.measurements += len({runner.name for runner in self.runners if runner.samples_us})
        return tuple(self.transient)

    def _build(self, builder: DaemonThreads, names: Sequence[str]) -> list[Runner]:
        start = time.monotonic()
        self.bar.update(self.task, description=f"building {len(names)}")
        self.guard_of |= {name: self.guards[number % len(self.guards)] for number, name in enumerate(names)}
        futures = {name: builder.submit(self.guard_of[name].build, self.config_of[name]) for name in names}
        left_s = None if self.deadline == math.inf else max(0.0, self.deadline - time.monotonic())
        for future in futures.values():
            future.add_done_callback(lambda done: None if done.cancelled() else self.bar.advance(self.task))
        wait_all(futures.values(), left_s)
        self.counters.build_s += time.monotonic() - start
        runners: list[Runner] = []
        failed: list[Timing] = []
        for name, future in futures.items():
            if future.cancel() or not future.done():
                continue  # out of time
            self.counters.builds += 1
            error = future.exception()
            if error is None:
                runners.append(self.guard_of[name].runner(name, future.result()))
            elif isinstance(error, RefusedWorkerError) or not isinstance(error, Exception):
                raise error
            elif not self.guard_of[name].lost_to:
                timing = Timing(self.config_of[name], "failed", reason=describe_error(error), soft=self.soft)
                (self.transient if is_transient(error) else failed).append(timing)
                self.decided.add(name)
        self.runners += runners
        self._record(failed)
        return runners

    def _lost(self, names: Sequence[str]) -> list[str]:
        """Give the work of lost devices back. Returns the names of those candidates that another device measures.

        Raises:
            ToolchainError: No device is left.
        """
        lost = [guard for guard in self.guards if guard.lost_to]
        for guard in lost:
            config = self.config_of[guard.lost_to]
            text = f"{guard.device.name} cannot be used any more since it ran {dict(config)}"
            self._record([Timing(config, "failed", reason=f"ToolchainError: {text}", soft=self.soft)])
            self.guards.remove(guard)
            if not self.guards:
                raise ToolchainError(text, "run the same command again: it continues after that candidate")
            warn(f"{guard.device.name} is no longer used for tuning: {text}")
        if lost:
            self.runners = [runner for runner in self.runners if self.guard_of[runner.name] not in lost]
        return [name for name in names if name not in self.decided and self.guard_of[name] in lost]

    def _race(self, runners: Sequence[Runner], effort: Effort) -> None:
        parts = [
            (guard, [runner for runner in runners if self.guard_of[runner.name] is guard])
            for guard in dict.fromkeys(self.guard_of[runner.name] for runner in runners)
        ]

        def measure(guard: _Guard, part: list[Runner]) -> None:
            with held(_measuring[guard.device.name]):  # two searches at once would measure each other
                race(part, guard.device.clock, effort, deadline=self.deadline, on_measured=self._show)

        start = time.monotonic()
        for runner in runners:
            runner.spent_s = 0.0
        if len(parts) == 1:
            measure(*parts[0])
        else:
            side_by_side(lambda part: measure(*part), parts, len(parts))
        self.counters.measure_s += time.monotonic() - start

    def _show(self, runner: Runner) -> None:
        if runner.samples_us and (median_us := runner.statistics().median_us) < self.best_us:
            self.best_us = median_us
            self.bar.update(self.task, description=f"best {median_us:.1f} us {runner.name}")

    def _finals(self, builder: DaemonThreads, default: str | None) -> None:
        """Measure the fastest candidates and the default once more, on the first device."""
        chosen = [runner.name for runner in _fastest(self.runners)[:_FINALISTS]]
        is_measured = any(runner.name == default and runner.samples_us for runner in self.runners)
        names = list(dict.fromkeys([*([default] if default is not None and is_measured else []), *chosen]))
        if len(names) < 2:
            return
        first = self.guards[0]
        built = {runner.name: runner.candidate for runner in self.runners if self.guard_of[runner.name] is first}
        self.guard_of |= dict.fromkeys(names, first)
        futures = {name: builder.submit(first.build, self.config_of[name]) for name in names if name not in built}
        built |= {name: wait_result(future) for name, future in futures.items()}
        finals = [first.runner(name, built[name]) for name in names]
        self.runners += finals
        self._race(finals, replace(self.effort, iterations=_FINAL_ITERATIONS * self.effort.iterations))
        self._lost(())
        self._finish(self._here(finals))

    def _finish_interrupted(self) -> None:
        """Report the timings of candidates that are not final."""
        undecided = [runner for runner in self._here(self.runners) if runner.name not in self.decided]
        for runner in undecided:
            if runner.samples_us and runner.status in ("running", "ok"):
                runner.status, runner.unfinished = "ok", True
        self._finish(undecided)

    def _finish(self, runners: Sequence[Runner]) -> None:
        built = [runner for runner in dict.fromkeys(runners) if runner.status != "running"]
        self._record([self._timing(runner) for runner in built])

    def _timing(self, runner: Runner) -> Timing:
        assert runner.status != "running"
        measured = {} if runner.status == "failed" else {**vars(runner.statistics()), "unfinished": runner.unfinished}
        given = {"shared_bytes": runner.candidate.shared_bytes, "reason": runner.reason, "soft": self.soft, **measured}
        return Timing(self.config_of[runner.name], runner.status, **given)

    def _here(self, runners: Iterable[Runner]) -> list[Runner]:
        """The candidates whose device was not lost."""
        return [runner for runner in runners if not self.guard_of[runner.name].lost_to]

    def _record(self, timings: Sequence[Timing]) -> None:
        self.decided.update(timing.identity for timing in timings)
        if timings:
            self.finished(timings)


def _fastest(runners: Sequence[Runner]) -> list[Runner]:
    ok = [runner for runner in runners if runner.status == "ok"]
    return sorted(ok, key=lambda runner: runner.statistics().median_us)
