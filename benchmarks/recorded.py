"""Compares the host time of launches: wp.launch, Warp's Launch and warp_tiles.record, in one run.

    python benchmarks/recorded.py --device cpu --json benchmarks/results/recorded.json
    python benchmarks/recorded.py --device cuda:0 --json benchmarks/results/recorded.json

The kernel has six arguments and one thread. On the CPU, a launch runs the kernel, so each figure includes its time. On
a GPU, the host queues launches in bursts, and the wait between bursts is not measured. The ways to launch alternate. A
figure is the median over bursts, in microseconds. There is a row for the CPU and one for the GPU.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,valid-type"

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import warp as wp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import cpu_record, gpu_record
from warp_tiles import record

LARGEST_RATIO, LARGEST_EXTRA_US = 0.35, 0.5  # relative to wp.launch, and in addition to Launch.launch()
BURSTS, CALLS, STEPS = 200, 100, 20  # calls and training steps of a burst

Ways = Mapping[str, Callable[[], object]]


@wp.kernel
def predict(
    x: wp.array(dtype=wp.float32),
    weight: wp.array(dtype=wp.float32),
    bias: wp.array(dtype=wp.float32),
    scale: wp.float32,
    shift: wp.float32,
    y: wp.array(dtype=wp.float32),
):
    i = wp.tid()
    y[i] = scale * weight[i] * x[i] + bias[i] + shift


@wp.kernel
def squared_error(y: wp.array(dtype=wp.float32), target: wp.array(dtype=wp.float32), loss: wp.array(dtype=wp.float32)):
    i = wp.tid()
    difference = y[i] - target[i]
    wp.atomic_add(loss, 0, difference * difference)


@wp.kernel(enable_backward=False)
def descend(weight: wp.array(dtype=wp.float32), gradient: wp.array(dtype=wp.float32), rate: wp.float32):
    i = wp.tid()
    weight[i] = weight[i] - rate * gradient[i]
    gradient[i] = 0.0


def medians_us(ways: Ways, calls: int = CALLS) -> dict[str, float]:
    """Median host time of one call of each way."""

    def burst(way: Callable[[], object]) -> float:
        wp.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            way()
        return (time.perf_counter() - start) / calls * 1e6

    found = runner.alternately({name: partial(burst, way) for name, way in ways.items()}, BURSTS, warm=1)
    wp.synchronize()
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def compared(times: Mapping[str, float]) -> runner.Row:
    """Returns the times, and True under ``within_bounds`` if the recorded launch is within its bounds."""
    ratio = times["recorded"] / times["wp.launch"]
    extra = times["recorded"] - times["Launch.launch()"]
    return {
        "us": dict(times),
        "ratio_to_wp_launch": round(ratio, 3),
        "us_above_launch": round(extra, 2),
        "within_bounds": ratio <= LARGEST_RATIO and extra <= LARGEST_EXTRA_US,
    }


def steps(given: dict[str, Any], arguments: list[Any], target: Any, loss: Any) -> Ways:
    """The ways to run a training step: forward, loss, both adjoints, and the update of two weights."""
    x, weight, bias, _, _, y = arguments
    error = [y, target, loss]
    updates = [[value, value.grad, 0.01] for value in (weight, bias)]

    def taped() -> None:
        with wp.Tape() as tape:
            wp.launch(predict, inputs=arguments, **given)
            wp.launch(squared_error, inputs=error, **given)
        tape.backward(loss)
        for update in updates:
            wp.launch(descend, inputs=update, **given)
        tape.zero()

    prediction, difference = record(predict, inputs=arguments, **given), record(squared_error, inputs=error, **given)
    descents = [record(descend, inputs=update, **given) for update in updates]

    def recorded() -> None:
        prediction.forward()
        difference.forward()
        difference.adjoint()
        prediction.adjoint()
        for descent in descents:
            descent.forward()
        for value in (x, y, target):
            value.grad.zero_()

    ways: dict[str, Callable[[], object]] = {"wp.launch + Tape": taped, "recorded pairs": recorded}
    if wp.get_device(given["device"]).is_cuda:
        loss.grad.fill_(1.0)
        with wp.ScopedCapture(device=given["device"]) as capture:
            recorded()
        ways["CUDA graph of recorded pairs"] = lambda: wp.capture_launch(capture.graph)
    return ways


def measure(device: str) -> runner.Row:
    """The times of launches, of changes of an argument, and of training steps."""
    x, weight, bias, y, target, loss = (
        wp.array([value], dtype=wp.float32, device=device, requires_grad=True)
        for value in (0.5, 0.1, 0.2, 0.0, 1.0, 0.0)
    )
    loss.grad.fill_(1.0)
    arguments = [x, weight, bias, 1.0, 0.0, y]
    forward: dict[str, Any] = {"dim": 1, "inputs": arguments, "device": device}
    own = [value.grad if isinstance(value, wp.array) else None for value in arguments]
    adjoint = {**forward, "adj_inputs": own, "adjoint": True}
    pair, launch = record(predict, **forward), wp.launch(predict, **forward, record_cmd=True)

    def launches(given: dict[str, Any], recorded: Callable[[], object]) -> runner.Row:
        warps: Callable[[], object] = wp.launch(predict, **given, record_cmd=True).launch
        ways = {"wp.launch": lambda: wp.launch(predict, **given), "Launch.launch()": warps, "recorded": recorded}
        return compared(medians_us(ways))

    settings: Ways = {
        "Launch.set_param_by_name(), forward alone": lambda: launch.set_param_by_name("x", x),
        "recorded set(), forward and adjoint": lambda: pair.set("x", x),
    }
    training = steps({"dim": 1, "device": device}, arguments, target, loss)
    return {
        "training_step_us": medians_us(training, STEPS),
        "forward": launches(forward, pair.forward),
        "adjoint": launches(adjoint, pair.adjoint),
        "set_us": medians_us(settings),
    }


@dataclass(frozen=True)
class Case:
    """A device: ``cpu`` or ``gpu``."""

    name: str


main = runner.command(
    __doc__,
    lambda options: [Case("cpu" if options.device == "cpu" else "gpu")],
    lambda case, options: measure(options.device),
    lambda options: cpu_record() if options.device == "cpu" else gpu_record(),
    options={"--device": {"default": "cpu", "help": "cpu or cuda:0"}},
    is_bad=lambda row: not (row["forward"]["within_bounds"] and row["adjoint"]["within_bounds"]),
)


if __name__ == "__main__":
    sys.exit(main())
