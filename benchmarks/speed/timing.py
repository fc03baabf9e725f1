"""Times launches alternately.

A short spinning kernel runs before the timed launches, so that all of them are queued before the first one starts, and
none waits for Python. The same kernel reads the clock of a multiprocessor.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import warp as wp

from benchmarks.speed.clock import read_clock
from benchmarks.speed.sides import Launch

REPEATS = 12
_WARM_UPS = 3
_TIMED_MS = 0.3
_MAX_LAUNCHES = 16
SPIN_NS = 200_000


@dataclass(frozen=True)
class Times:
    """Repeated measurements of one launch.

    Attributes:
        median_us, spread_us: Median and interquartile range of the time of one launch.
        clock_ghz: Median clock of a multiprocessor just before the launches.
    """

    median_us: float
    spread_us: float
    clock_ghz: float


def time_alternately(launches: Mapping[str, Launch], device: str, repeats: int = REPEATS) -> dict[str, Times]:
    """Time launches alternately, so that a drift of the clock affects all of them."""
    counts = {name: _launches_for(launch, device) for name, launch in launches.items()}
    clocks = wp.zeros(repeats * len(launches), dtype=wp.float64, device=device)
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in launches}
    order = list(launches)
    for repeat in range(repeats):
        for position, name in enumerate(order):
            start, stop = (wp.Event(device, enable_timing=True) for _ in range(2))
            inputs = [clocks, repeat * len(order) + position, SPIN_NS]
            wp.launch(read_clock, dim=1, inputs=inputs, device=device)
            if prepare := launches[name].prepare:
                prepare()
            wp.record_event(start)
            for _ in range(counts[name]):
                launches[name].run()
            wp.record_event(stop)
            events[name].append((start, stop))
        wp.synchronize_device(device)
    read = clocks.numpy().reshape(repeats, len(order))
    found = {}
    for position, name in enumerate(order):
        times = [wp.get_event_elapsed_time(*pair) * 1e3 / counts[name] for pair in events[name]]
        low, _, high = statistics.quantiles(times, n=4)
        clock = statistics.median(read[:, position].tolist())
        found[name] = Times(round(statistics.median(times), 3), round(high - low, 3), round(clock, 4))
    return found


def _launches_for(launch: Launch, device: str) -> int:
    """Number of launches that are timed together. Warms up first."""
    start, stop = (wp.Event(device, enable_timing=True) for _ in range(2))
    for repeat in range(_WARM_UPS):
        if repeat == _WARM_UPS - 1:
            wp.record_event(start)
        launch.run()
    wp.record_event(stop)
    milliseconds = wp.get_event_elapsed_time(start, stop)
    if launch.prepare:
        return 1
    return max(1, min(_MAX_LAUNCHES, int(_TIMED_MS / max(milliseconds, 1e-4))))


def warm_up(device: str, seconds: float = 0.5) -> None:
    """Keep the GPU busy until its clock has risen."""
    clocks = wp.zeros(1, dtype=wp.float64, device=device)
    for _ in range(int(seconds / (SPIN_NS * 1e-9))):
        wp.launch(read_clock, dim=1, inputs=[clocks, 0, SPIN_NS], device=device)
    wp.synchronize_device(device)


def is_usable(device: str) -> bool:
    """Returns True if this process can still use the GPU. After a fault in a kernel it cannot."""
    try:
        return bool(wp.ones(1, dtype=wp.int32, device=device).numpy()[0] == 1)
    except Exception:
        return False
