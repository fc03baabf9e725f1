"""Times candidates against each other.

Candidates run alternately, so that clocks and temperature change for all of them alike. After each iteration those
that can no longer win are dropped. The statistic is the median. Its 95 % confidence interval comes from order
statistics and assumes no distribution
(https://en.wikipedia.org/wiki/Median#Confidence_interval, the sign test's interval).
"""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from warp_tiles.errors import TuningError, WorkerError, unless_signalled
from warp_tiles.tuning.record import Config

T = TypeVar("T")
HOPELESS = 1.5  # times the leader's median; a candidate is dropped if even its best run takes longer
L2_SCRATCH_BYTES = 256 * 1024**2  # larger than the L2 cache of any GPU
_CUSHION_FILLS = 4  # of the scratch buffer: about 250 us on an H200, in which the host queues the runs
_MAX_FILLS = 16
_TRANSIENT_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO}
_ATTEMPTS = 4  # to queue all runs in time; other threads may hold the interpreter lock
_MIN_SAMPLES = 6  # the range of fewer samples contains the median with less than 95 %


class Candidate:
    """A launch that can be measured. ``shared_bytes`` is the shared memory of a block."""

    shared_bytes: int = 0

    def prepare(self) -> None:
        """Prepare, outside any timing. An exception makes the candidate a failure."""

    def run(self) -> None:
        """Launch once."""

    def restore(self) -> None:
        """Undo the changes of a launch. Called before each launch, untimed."""


class Clock(Protocol):
    def sample_us(self, candidate: Candidate, runs: int) -> list[float]:
        """Restore and run a candidate ``runs`` times. Returns the time of each run, in microseconds."""


@dataclass(frozen=True)
class Effort:
    """The amount of measurement.

    Attributes:
        warmup: Runs of each candidate that do not count.
        runs: Runs of each candidate in each iteration.
        iterations: Largest number of iterations over the candidates.
        candidate_s: Seconds after which a candidate is not run again, once it has six samples.
        precision: Half width of the leader's confidence interval, as a share of its median, that suffices.

    Raises:
        TuningError: Nothing would be measured.
    """

    warmup: int = 2
    runs: int = 5
    iterations: int = 10
    candidate_s: float = 1.0
    precision: float = 0.005

    def __post_init__(self) -> None:
        counts = (self.warmup, self.runs, self.iterations)
        if any(type(count) is not int for count in counts) or self.warmup < 0 or self.runs < 1 or self.iterations < 1:
            raise TuningError(
                f"warmup, runs and iterations are {', '.join(map(repr, counts))}",
                remedy="give whole numbers: warmup of 0 or more, runs and iterations of 1 or more",
            )


@dataclass(frozen=True)
class Statistics:
    """Median of samples with its 95 % confidence interval, in microseconds."""

    median_us: float
    low_us: float
    high_us: float
    samples: int


def statistics(samples_us: Sequence[float]) -> Statistics:
    """Returns the median of samples, and the narrowest symmetric pair of order statistics that holds it with 95 %.

    With fewer than six samples the probability is lower, and the interval spans all of them. Raises ValueError if there
    are no samples.
    """
    if not samples_us:
        raise ValueError("no samples")
    ordered = sorted(samples_us)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    rank, below = 0, 2.0**-count  # P(at most `rank` of the samples lie below the median)
    while True:
        following = below + math.comb(count, rank + 1) * 2.0**-count
        if following > 0.025 or rank + 1 > (count - 1) // 2:
            break
        rank, below = rank + 1, following
    return Statistics(middle, ordered[rank], ordered[count - 1 - rank], count)


@dataclass(eq=False)
class SearchDevice:
    """A device that takes part in a search.

    Attributes:
        build: Builds the candidate of a configuration; several threads call it at once. An exception makes the
            configuration a failure, unless the exception is transient (:func:`is_transient`).
        name: For messages. Two searches of a process do not measure on devices of one name at once.
        is_usable: Called after a failure. False if the candidate broke the device.
        lost_to: The configuration that broke it. Later errors say nothing about other configurations.
    """

    build: Callable[[Config], Candidate]
    clock: Clock
    name: str = "the device"
    is_usable: Callable[[], bool] = lambda: True
    lost_to: Config | None = None


@dataclass(eq=False)
class Runner:
    """A candidate in a race.

    Attributes:
        candidate: A :class:`Candidate`; None until it is built.
        status: ``running`` until the race has decided, then ``ok``, ``dropped`` or ``failed``.
        spent_s: Time that its runs took.
        unfinished: True if the race ended before it had all its runs.
    """

    name: str
    candidate: Any = None
    config: Config = field(default_factory=dict)
    device: SearchDevice | None = None
    samples_us: list[float] = field(default_factory=list)
    status: Literal["running", "ok", "dropped", "failed"] = "running"
    reason: str = ""
    error: Exception | None = None
    spent_s: float = 0.0
    unfinished: bool = False

    @property
    def is_lost(self) -> bool:
        return self.device is not None and self.device.lost_to is not None

    def build(self) -> None:
        assert self.device is not None
        self.candidate = self.attempt(partial(self.device.build, self.config))

    def attempt(self, action: Callable[[], T]) -> T | None:
        """The result of a call; None if it fails, which is then the failure of the candidate."""
        start = time.monotonic()
        try:
            return action()
        except unless_signalled(Exception) as error:  # of any class
            self.status, self.reason, self.error = "failed", describe_error(error), error
            device = self.device
            if device is not None and device.lost_to is None and not is_transient(error) and not device.is_usable():
                device.lost_to = self.config
        finally:
            self.spent_s += time.monotonic() - start
        return None

    def statistics(self) -> Statistics:
        return statistics(self.samples_us)


def describe_error(error: BaseException) -> str:
    """Returns an error on one line, for a record."""
    text = " ".join(str(getattr(error, "message", error)).split()) or "no message"
    return f"{type(error).__name__}: {text:.400}"


def is_transient(error: BaseException) -> bool:
    """Returns True if the candidate did not cause the error: no space, no memory, a compiler process that died."""
    if isinstance(error, OSError):
        return error.errno in _TRANSIENT_ERRNOS
    return isinstance(error, (MemoryError, WorkerError))


def race(
    runners: Sequence[Runner],
    clock: Clock,
    effort: Effort | None = None,
    *,
    deadline: float = math.inf,
    on_measured: Callable[[Runner], None] = lambda runner: None,
) -> None:
    """Measure runners against each other in this order, and set their status.

    One that has samples already, the leader of an earlier race, keeps them and is not warmed up again. At the deadline,
    by ``time.monotonic``, one without a sample stays ``running``, and one that needs more samples is ``unfinished``.
    ``on_measured`` is called with a runner after each of its measurements.
    """
    effort = effort or Effort()
    in_time = True
    for runner in runners:
        if time.monotonic() >= deadline:
            return
        if not runner.samples_us and runner.status == "running":
            runner.attempt(runner.candidate.prepare)
            runner.spent_s = 0.0
            if effort.warmup and runner.status == "running":
                runner.attempt(partial(clock.sample_us, runner.candidate, effort.warmup))
    for iteration in range(effort.iterations):
        live = [runner for runner in runners if runner.status in ("running", "ok")]
        offset = iteration % len(live) if live else 0  # so that no runner always follows the same one
        for runner in (*live[offset:], *live[:offset]):
            if _has_enough(runner, effort):
                continue
            if time.monotonic() >= deadline:
                in_time = False
                continue
            runner.samples_us += runner.attempt(partial(clock.sample_us, runner.candidate, effort.runs)) or ()
            on_measured(runner)
        if _is_decided(runners, effort):
            break
        if time.monotonic() >= deadline:
            in_time = in_time and iteration + 1 == effort.iterations
            break
    for runner in runners:
        if runner.status == "running" and runner.samples_us:
            runner.status = "ok"
            runner.unfinished = not in_time and not _has_enough(runner, effort)


def _has_enough(runner: Runner, effort: Effort) -> bool:
    return runner.spent_s >= effort.candidate_s and len(runner.samples_us) >= _MIN_SAMPLES


def _is_decided(runners: Sequence[Runner], effort: Effort) -> bool:
    """Drop runners whose interval lies above the leader's, or whose best run is far slower than its median.

    Returns True if more iterations could not change the winner.
    """
    by_runner = {
        runner: runner.statistics() for runner in runners if runner.samples_us and runner.status in ("running", "ok")
    }
    if not by_runner:
        return True
    best = min(by_runner.values(), key=lambda value: value.median_us)
    for runner, value in tuple(by_runner.items()):
        hopeless = min(runner.samples_us) > HOPELESS * best.median_us
        slower = value.samples >= _MIN_SAMPLES and value.low_us > best.high_us * 1.05
        if hopeless or slower:
            runner.status = "dropped"
            runner.reason = f"{value.median_us / best.median_us:.2f} times the best after {value.samples} runs"
            del by_runner[runner]
    if all(_has_enough(runner, effort) for runner in by_runner):
        return True
    if any(value.samples < _MIN_SAMPLES for value in by_runner.values()):
        return False
    precise = best.high_us - best.low_us <= 2 * effort.precision * best.median_us
    return len(by_runner) == 1 or (
        precise and all(value.low_us > best.high_us for value in by_runner.values() if value is not best)
    )


class WallClock:
    def sample_us(self, candidate: Candidate, runs: int) -> list[float]:
        samples = []
        for _ in range(runs):
            candidate.restore()
            start = time.perf_counter_ns()
            candidate.run()
            samples.append((time.perf_counter_ns() - start) / 1e3)
        return samples


class EventClock:
    """Measures the time between CUDA events around each launch, on a device's current stream.

    The device first gets enough work to stay busy while the host queues the runs. Otherwise times of short kernels
    would include the host's launch time. If the host was too late, the runs are repeated after more work.
    With ``flush_l2``, a buffer larger than L2 is overwritten before each run.

    Raises RuntimeError if the device has not enough memory.
    """

    def __init__(self, device: Any, *, flush_l2: bool = False) -> None:
        import warp as wp

        self._wp = wp
        self._device = wp.get_device(device)
        self._flush_l2 = flush_l2
        self._scratch = wp.empty(L2_SCRATCH_BYTES, dtype=wp.uint8, device=self._device)
        self._events: list[tuple[Any, Any]] = []
        self._fills = _CUSHION_FILLS

    def sample_us(self, candidate: Candidate, runs: int) -> list[float]:
        wp = self._wp
        while len(self._events) < runs:
            start, end = (wp.Event(device=self._device, enable_timing=True) for _ in range(2))
            self._events.append((start, end))
        events = self._events[:runs]
        for _ in range(_ATTEMPTS):
            if self._queue(candidate, events):
                break
            self._fills = min(2 * self._fills, _MAX_FILLS)
        wp.synchronize_event(events[-1][1])
        return [wp.get_event_elapsed_time(*pair, synchronize=False) * 1e3 for pair in events]

    def _queue(self, candidate: Candidate, events: Sequence[tuple[Any, Any]]) -> bool:
        """Queue the runs. Returns True if that was done before the device reached the first one."""
        stream = self._device.stream
        if not self._flush_l2:
            for _ in range(self._fills):
                self._scratch.zero_()
            candidate.restore()
            candidate.run()  # brings the inputs into L2 for the next run
        for start, end in events:
            candidate.restore()
            if self._flush_l2:
                self._scratch.zero_()
            stream.record_event(start)
            candidate.run()
            stream.record_event(end)
        return self._flush_l2 or not events[0][0].is_complete


def clock_for(device: Any, *, flush_l2: bool = False) -> Clock:
    """The clock of a Warp device: events on a GPU, wall time on the CPU."""
    import warp as wp

    device = wp.get_device(device)
    return WallClock() if device.is_cpu else EventClock(device, flush_l2=flush_l2)
