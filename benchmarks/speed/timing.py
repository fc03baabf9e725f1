"""Times launches and calls on a GPU, which alternate.

A short spinning kernel runs before what is timed, so that it is queued before it starts, and does not wait for Python.
The same kernel reads the clock of a multiprocessor.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import warp as wp

from benchmarks.runner import DEVICE
from benchmarks.speed.clock import read_clock

REPEATS, CALLS = 12, 30
_WARM_UPS = 3
_TIMED_MS = 0.3
_MAX_LAUNCHES = 16
SPIN_NS = 200_000


@dataclass(frozen=True)
class Launch:
    """A timed call, and the untimed one before it."""

    run: Callable[[], object]
    prepare: Callable[[], object] | None = None


@dataclass(frozen=True)
class Times:
    """Repeated measurements of one launch.

    Attributes:
        median_us, spread_us: Median and interquartile range of the time of one launch.
        clock_ghz: Median clock of a multiprocessor just before the launches.
        late: The number of times that the GPU was ready before the host had launched all. They contain the host.
    """

    median_us: float
    spread_us: float
    clock_ghz: float
    late: int


def time_alternately(
    launches: Mapping[str, Launch], repeats: int = REPEATS, *, together: bool = True, queued: bool = True
) -> dict[str, Times]:
    """Time launches alternately, so that a drift of the clock affects all of them.

    Args:
        launches: The launches, by name.
        repeats: Number of measurements of each.
        together: True if several runs of a short launch are timed together.
        queued: True for the time of the GPU alone. False for that of a call on an idle GPU, which contains what the
            host does; there are no clocks then.
    """
    counts = {name: _launches_for(launch) if together else 1 for name, launch in launches.items()}
    clocks = wp.zeros((repeats, len(launches)), dtype=wp.float64, device=DEVICE)
    times: dict[str, list[float]] = {name: [] for name in launches}
    late = dict.fromkeys(launches, 0)
    for repeat in range(-_WARM_UPS, repeats):
        for position, (name, launch) in enumerate(launches.items()):
            start, stop = (wp.Event(DEVICE, enable_timing=True) for _ in range(2))
            if queued:
                wp.launch(read_clock, dim=1, inputs=[clocks[max(0, repeat)], position, SPIN_NS], device=DEVICE)
            if launch.prepare:
                launch.prepare()
            wp.record_event(start)
            for _ in range(counts[name]):
                launch.run()
            wp.record_event(stop)
            late[name] += queued and start.is_complete
            elapsed_us = wp.get_event_elapsed_time(start, stop) * 1e3 / counts[name]
            times[name] += [elapsed_us] if repeat >= 0 else []
    found = {}
    for position, (name, measured) in enumerate(times.items()):
        low, median, high = statistics.quantiles(measured, n=4)
        clock = statistics.median(clocks.numpy()[:, position].tolist())
        found[name] = Times(round(median, 3), round(high - low, 3), round(clock, 4), late[name])
    return found


def _launches_for(launch: Launch) -> int:
    """Number of launches that are timed together."""
    if launch.prepare:
        return 1
    launch.run()
    start, stop = (wp.Event(DEVICE, enable_timing=True) for _ in range(2))
    wp.record_event(start)
    launch.run()
    wp.record_event(stop)
    milliseconds = wp.get_event_elapsed_time(start, stop)
    return max(1, min(_MAX_LAUNCHES, int(_TIMED_MS / max(milliseconds, 1e-4))))


def time_calls(runs: Mapping[str, Callable[[], object]], *, queued: bool = True) -> dict[str, Times]:
    """Times calls one by one. Warp's current stream must be that on which they launch."""
    return time_alternately({name: Launch(run) for name, run in runs.items()}, CALLS, together=False, queued=queued)


def row_of(times: Mapping[str, Times], flops: float | None = None) -> dict[str, Any]:
    """The times of calls as JSON values, and their rates if the number of floating-point operations is given."""
    rates = {name: round(flops / found.median_us / 1e6, 1) for name, found in times.items()} if flops else {}
    return {
        "us": {name: found.median_us for name, found in times.items()},
        **({"tflops": rates} if flops else {}),
        "clock_ghz": {name: found.clock_ghz for name, found in times.items()},
        "late": sum(found.late for found in times.values()),
    }


def warm_up(seconds: float = 0.5) -> None:
    """Keep the GPU busy until its clock has risen."""
    clocks = wp.zeros(1, dtype=wp.float64, device=DEVICE)
    for _ in range(int(seconds / (SPIN_NS * 1e-9))):
        wp.launch(read_clock, dim=1, inputs=[clocks, 0, SPIN_NS], device=DEVICE)
    wp.synchronize_device(DEVICE)


def is_usable() -> bool:
    """Returns True if this process can still use the GPU. After a fault in a kernel it cannot."""
    try:
        return bool(wp.ones(1, dtype=wp.int32, device=DEVICE).numpy()[0] == 1)
    except Exception:
        return False
