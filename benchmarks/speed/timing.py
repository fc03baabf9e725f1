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

from benchmarks.speed.clock import read_clock

REPEATS = 12
_WARM_UPS = 3
_TIMED_MS = 0.3
_MAX_LAUNCHES = 16
SPIN_NS = 200_000


CALLS, WARM_CALLS = 30, 5


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


@dataclass(frozen=True)
class Calls:
    """The times of some functions, by their names.

    Attributes:
        us: Median times in microseconds.
        clock_ghz: Median clocks of a multiprocessor right before the calls.
        late: The number of calls, warm-up calls included, that the host had not launched when the GPU was ready. Their
            times contain the host.
    """

    us: dict[str, float]
    clock_ghz: dict[str, float]
    late: int

    def row(self, flops: float) -> dict[str, Any]:
        """The times and rates of calls with so many floating-point operations, as JSON values."""
        tflops = {name: round(flops / us / 1e6, 1) for name, us in self.us.items()}
        return {"us": self.us, "tflops": tflops, "clock_ghz": self.clock_ghz, "late": self.late}


def time_calls(torch: Any, runs: Mapping[str, Callable[[], object]], *, queued: bool = True) -> Calls:
    """Times some functions that launch kernels. Their calls alternate.

    Args:
        runs: The functions, by name.
        queued: True for the time of the GPU alone, while a kernel that spins keeps it busy until all is launched. False
            for the time of a call on an idle GPU, which contains what the host does; there are no clocks then.

    Warp's current stream must be torch's, as :func:`benchmarks.machine.torch_with_warp` sets it.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    total, late = WARM_CALLS + CALLS, 0
    clocks = wp.zeros((total, len(runs)), dtype=wp.float64, device="cuda")
    for number in range(total):
        for position, (name, run) in enumerate(runs.items()):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if queued:
                wp.launch(read_clock, dim=1, inputs=[clocks[number], position, SPIN_NS], device="cuda")
            start.record()
            run()
            end.record()
            late += queued and start.query()
            end.synchronize()
            if number >= WARM_CALLS:
                times[name].append(1e3 * start.elapsed_time(end))
    read = clocks.numpy()[WARM_CALLS:].T if queued else ()
    return Calls(
        {name: statistics.median(found) for name, found in times.items()},
        {name: round(statistics.median(one.tolist()), 3) for name, one in zip(runs, read)},
        late,
    )


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
