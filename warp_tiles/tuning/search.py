"""A search for the fastest of some configurations.

It builds candidates in parallel, measures them alternately, and reports each timing once it is final. It serves
everything that is tuned: the loops and functions of a script's kernels, a tuned kernel, and the tiles of ``matmul``. A
function of each device builds candidates from configurations.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import cycle

from warp_tiles.build.log import is_enabled, new_bar
from warp_tiles.errors import RefusedWorkerError, ToolchainError
from warp_tiles.tuning.measure import Effort, Runner, SearchDevice, is_transient, race
from warp_tiles.tuning.record import Config, Record, Timing, TuningKey, identity, settled
from warp_tiles.tuning.store import RecordStore
from warp_tiles.util.threads import DaemonThreads, available_cores, held, side_by_side, wait_all
from warp_tiles.util.warn import log, warn

_BATCH = 32  # built, measured and stored together; cores are idle only at the end of a batch
_BATCH_ON_BUDGET = 16  # smaller, so that something is measured before the time is over
_FINALISTS = 4  # the fastest candidates, which run against each other and the default once more
_FINAL_ITERATIONS = 2  # times those of the search, to tell a small gain from none


@dataclass
class Counters:
    """Counts of a tuned kernel in this process, and the time of its searches. Builds that failed count, too."""

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
class Search:
    """What is searched: configurations, the record with their timings, and what measures them.

    Attributes:
        wanted: The configurations that count, by identity.
        devices: Enters a block with the devices, at least one, that measure some configurations.
        reuse_stale: True if timings of another driver or Warp patch release count.
        default: One of the configurations. It is measured beside the others and the best one so far, also in the end.
    """

    key: TuningKey
    store: RecordStore
    wanted: Mapping[str, Config]
    devices: Callable[[Sequence[Config]], AbstractContextManager[Sequence[SearchDevice]]]
    reuse_stale: bool = True
    what: str = ""
    default: Config | None = None
    effort: Effort = field(default_factory=Effort)
    jobs: int = 0
    counters: Counters = field(default_factory=Counters)

    def record(self) -> Record:
        return self.store.load(self.key) or Record(self.key)

    def winner(self, record: Record) -> Timing | None:
        """The fastest of the configurations that count."""
        return record.among(self.wanted).winner()

    def pending(self, record: Record) -> tuple[Config, ...]:
        """Configurations without a timing, then those whose timing cannot be used now: it is outdated or unfinished.

        That of a dropped candidate cannot be used if the candidate may have lost to one that does not count now.
        """
        known = {timing.identity: timing for timing in record.timings}
        best, winner, soft = record.winner(), self.winner(record), self.key.environment.soft()

        def is_known(timing: Timing | None) -> bool:
            if timing is None or timing.unfinished or not (self.reuse_stale or timing.soft == soft):
                return False
            if timing.status != "dropped":
                return True
            if best is None or winner is None:
                return False
            return best.identity in self.wanted or timing.median_us >= winner.median_us

        missing = [name for name in self.wanted if not is_known(known.get(name))]
        return tuple(self.wanted[name] for name in sorted(missing, key=lambda name: name in known))

    def settle(
        self,
        budget_s: float = 0.0,
        *,
        wait_s: float | None = None,
        forced: bool = False,
        again: bool = False,
        finished: Callable[[Sequence[Timing], Record], object] = lambda timings, record: None,
    ) -> tuple[Record, bool]:
        """Measure pending configurations, unless another thread or process searches for the key.

        They are built in parallel and measured alternately. Each timing is stored when it is final. With several
        devices, or with a default, the fastest configurations are measured once more at the end, alternately and on the
        first device, so that none wins by chance. If one of several devices is lost, there is a warning, and the others
        continue its work. At an interruption, the timings so far are stored as unfinished.

        Args:
            budget_s: Seconds after which the search stops with the results so far; 0 for no limit.
            wait_s: Seconds to wait for another search; None for no limit.
            forced: Measure also if there is or was another search.
            again: Measure all configurations that count.
            finished: Called with timings and the record that they were added to, as soon as they are stored.

        Returns:
            The record, with builds that failed for a transient cause (:func:`is_transient`), which are not stored; and
            False if another search runs or has just ended.

        Raises:
            ToolchainError: The last device was lost.
        """
        with self.store.single_flight(self.key, wait_s) as may_search:
            record = self.record()
            configs = tuple(self.wanted.values()) if again else self.pending(record)
            if not configs or not (may_search or forced):
                return record, may_search
            if self.default is not None:
                best = record.winner()
                configs = tuple(by_identity([self.default, *([best.config] if best else []), *configs]).values())
            before = record.timings if budget_s else ()  # otherwise, a small budget would never be enough

            def store(timings: Sequence[Timing]) -> None:
                finished(timings, self.store.merge(self.key, settled(timings, before)))

            self.counters.searches += 1
            with self.devices(configs) as devices, _progress(self.what, len(configs)) as show:
                deadline = time.monotonic() + (budget_s or math.inf)
                running = _Run(self, list(devices), deadline, store, show)
                running.run(configs)
            for timing in running.transient:
                text = "tuning %s: %s is left out until the next search: %s"
                log.warning(text, self.what, dict(timing.config), timing.reason)
            return Record(self.key, tuple(running.transient)).merged(self.record().timings), may_search


@contextlib.contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Enter a block with a function that shows a number of further builds, and a text if there is one."""
    bar = new_bar(f"tuning {what}")
    task = bar.add_task("", total=total)
    # a terminal has one bar; searches on other threads have none
    is_shown = is_enabled() and threading.current_thread() is threading.main_thread()
    with bar if is_shown else contextlib.nullcontext():
        yield lambda count, text: bar.update(task, advance=count, description=text or None)


# ---- the search

_measuring: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)  # by name of the device


@dataclass
class _Run:
    """A search that runs. ``runners`` are built, on devices that were not lost; ``decided`` names have a timing."""

    search: Search
    devices: list[SearchDevice]
    deadline: float
    store: Callable[[Sequence[Timing]], None]
    show: Callable[[int, str], None]
    transient: list[Timing] = field(default_factory=list)
    runners: list[Runner] = field(default_factory=list)
    decided: set[str] = field(default_factory=set)
    best_us: float = math.inf

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self.deadline

    def run(self, configs: Sequence[Config]) -> None:
        jobs = self.search.jobs or available_cores()
        size = max(_BATCH if self.deadline == math.inf else _BATCH_ON_BUDGET, 4 * jobs)
        several, waiting, leaders = len(self.devices) > 1, deque(configs), list[Runner]()
        builder = DaemonThreads(jobs, "warp_tiles_tune")
        try:
            while waiting and self.has_time:
                taken = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                pairs = zip(taken, cycle(self.devices))
                batch = [Runner(identity(config), None, config, device) for config, device in pairs]
                runners = [*leaders, *self._build(builder, batch)]
                self._race(runners, self.search.effort)
                self._lose()
                left = (runner.config for runner in reversed(batch) if runner.is_lost)
                waiting.extendleft(config for config in left if identity(config) not in self.decided)
                runners = _here(runners)  # the next one is measured against the fastest of each device
                leaders = list({runner.device: runner for runner in reversed(_fastest(runners))}.values())
                self._finish(runners)
            if (self.search.default is not None or several) and self.has_time:
                self._finals(builder)
        except BaseException:
            with contextlib.suppress(Exception):  # re-raises the interrupt itself, not the errors that it causes
                self._finish_interrupted()
            raise
        finally:  # builds that exceed the budget end in the background; their results are ignored
            builder.close()
        self.search.counters.measurements += len({runner.name for runner in self.runners if runner.samples_us})

    def _build(self, builder: DaemonThreads, batch: Sequence[Runner]) -> list[Runner]:
        """Build candidates, and record those that failed. Returns those that were built in time."""
        start = time.monotonic()
        self.show(0, f"building {len(batch)}")
        futures = [builder.submit(runner.build) for runner in batch]
        for future in futures:
            future.add_done_callback(lambda done: None if done.cancelled() else self.show(1, ""))
        wait_all(futures, None if self.deadline == math.inf else max(0.0, self.deadline - time.monotonic()))
        self.search.counters.build_s += time.monotonic() - start
        built, failed = list[Runner](), list[Runner]()
        for runner, future in zip(batch, futures):
            if future.cancel() or not future.done():
                continue  # out of time
            self.search.counters.builds += 1
            future.result()  # raises what interrupts
            if isinstance(runner.error, RefusedWorkerError):
                raise runner.error
            (built if runner.error is None else failed).append(runner)
        self.runners += built
        failed = _here(failed)
        transient = [runner for runner in failed if runner.error is not None and is_transient(runner.error)]
        self.transient += [self._timing(runner) for runner in transient]
        self.decided.update(runner.name for runner in transient)
        self._finish([runner for runner in failed if runner not in transient])
        return built

    def _lose(self) -> None:
        """Leave lost devices out; what broke them has failed. Raises ToolchainError if no device is left."""
        for device in tuple(self.devices):
            if device.lost_to is None:
                continue
            text = f"{device.name} cannot be used any more since it ran {dict(device.lost_to)}"
            reason = f"ToolchainError: {text}"
            self._finish([Runner(identity(device.lost_to), None, device.lost_to, status="failed", reason=reason)])
            self.devices.remove(device)
            if not self.devices:
                raise ToolchainError(text, "run the same command again: it continues after that candidate")
            warn(f"{device.name} is no longer used for tuning: {text}")
        self.runners = _here(self.runners)

    def _race(self, runners: Sequence[Runner], effort: Effort) -> None:
        def measure(device: SearchDevice) -> None:
            here = [runner for runner in runners if runner.device is device]
            with held(_measuring[device.name]):  # two searches at once would measure each other
                race(here, device.clock, effort, deadline=self.deadline, on_measured=self._show)

        start = time.monotonic()
        devices = [device for device in self.devices if any(runner.device is device for runner in runners)]
        for runner in runners:
            runner.spent_s = 0.0
        if len(devices) == 1:
            measure(devices[0])
        else:
            side_by_side(measure, devices, len(devices))
        self.search.counters.measure_s += time.monotonic() - start

    def _show(self, runner: Runner) -> None:
        if runner.samples_us and (median_us := runner.statistics().median_us) < self.best_us:
            self.best_us = median_us
            self.show(0, f"best {median_us:.1f} us {runner.name}")

    def _finals(self, builder: DaemonThreads) -> None:
        """Measure the fastest candidates and the default once more, on the first device."""
        default, effort, first = self.search.default, self.search.effort, self.devices[0]
        name = None if default is None else identity(default)
        again = [runner for runner in self.runners if runner.name == name and runner.samples_us][:1]
        chosen = by_identity(runner.config for runner in (*again, *_fastest(self.runners)[:_FINALISTS]))
        if len(chosen) < 2:
            return
        built = {runner.name: runner.candidate for runner in self.runners if runner.device is first}
        finals = [Runner(name, built.get(name), config, first) for name, config in chosen.items()]
        wait_all([builder.submit(runner.build) for runner in finals if runner.candidate is None])
        finals = [runner for runner in finals if runner.candidate is not None]
        self.runners += finals
        self._race(finals, replace(effort, iterations=_FINAL_ITERATIONS * effort.iterations))
        self._lose()
        self._finish(_here(finals))

    def _finish_interrupted(self) -> None:
        """Report the timings of candidates that are not final."""
        undecided = [runner for runner in _here(self.runners) if runner.name not in self.decided]
        for runner in undecided:
            if runner.samples_us and runner.status in ("running", "ok"):
                runner.status, runner.unfinished = "ok", True
        self._finish(undecided)

    def _finish(self, runners: Sequence[Runner]) -> None:
        """Store the timings of candidates that are decided."""
        timings = [self._timing(runner) for runner in dict.fromkeys(runners) if runner.status != "running"]
        self.decided.update(timing.identity for timing in timings)
        if timings:
            self.store(timings)

    def _timing(self, runner: Runner) -> Timing:
        measured = {} if runner.status == "failed" else {**vars(runner.statistics()), "unfinished": runner.unfinished}
        given = {"shared_bytes": getattr(runner.candidate, "shared_bytes", 0), "reason": runner.reason, **measured}
        assert runner.status != "running"
        return Timing(runner.config, runner.status, soft=self.search.key.environment.soft(), **given)


def _here(runners: Iterable[Runner]) -> list[Runner]:
    """The candidates whose device was not lost."""
    return [runner for runner in runners if not runner.is_lost]


def _fastest(runners: Sequence[Runner]) -> list[Runner]:
    ok = [runner for runner in runners if runner.status == "ok"]
    return sorted(ok, key=lambda runner: runner.statistics().median_us)
