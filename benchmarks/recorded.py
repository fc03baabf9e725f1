"""Compares the host time of launches: wp.launch, Warp's Launch and warp_tiles.record, in one run.

    python benchmarks/recorded.py --device cpu --json benchmarks/results/recorded.json
    python benchmarks/recorded.py --device cuda:0 --json benchmarks/results/recorded.json

The kernel has six arguments and one thread. On the CPU, a launch runs the kernel, so each figure includes its time. On
a GPU, the host queues launches in bursts, and the wait between bursts is not measured. The ways to launch alternate. A
figure is the median over bursts, in microseconds. The file keeps the results of the other device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import warp as wp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.launch_kernels import descend, predict, squared_error
from benchmarks.machine import cpu_record, gpu_record
from warp_tiles import record

NOT_RUN = "not run: there are no CUDA graphs on the CPU"
LARGEST_RATIO, LARGEST_EXTRA_US = 0.35, 0.5  # relative to wp.launch, and in addition to Launch.launch()

Ways = Mapping[str, Callable[[], object]]


def medians_us(ways: Ways, bursts: int, calls: int) -> dict[str, float]:
    """Median host time of one call of each way."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for burst in range(bursts + 1):
        for name, way in ways.items():
            wp.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                way()
            if burst:  # the first one warms up
                found[name].append((time.perf_counter() - start) / calls * 1e6)
    wp.synchronize()
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


class Problem:
    """Arrays for one thread, and all ways to launch with them."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.x, self.weight, self.bias, self.y, self.target, self.loss = (
            wp.array([value], dtype=wp.float32, device=device, requires_grad=True)
            for value in (0.5, 0.1, 0.2, 0.0, 1.0, 0.0)
        )
        self.arguments = [self.x, self.weight, self.bias, 1.0, 0.0, self.y]
        self.loss.grad.fill_(1.0)

    def launches(self) -> tuple[Ways, Ways]:
        """The ways to launch the kernel, and those to launch its adjoint."""
        keywords: dict[str, Any] = {"dim": 1, "inputs": self.arguments, "device": self.device}
        own = [value.grad if isinstance(value, wp.array) else None for value in self.arguments]
        adjoint: dict[str, Any] = {**keywords, "adj_inputs": own, "adjoint": True}
        pair = record(predict, **keywords)
        return (
            {
                "wp.launch": lambda: wp.launch(predict, **keywords),
                "Launch.launch()": wp.launch(predict, **keywords, record_cmd=True).launch,
                "recorded": pair.forward,
            },
            {
                "wp.launch": lambda: wp.launch(predict, **adjoint),
                "Launch.launch()": wp.launch(predict, **adjoint, record_cmd=True).launch,
                "recorded": pair.adjoint,
            },
        )

    def settings(self) -> Ways:
        """The ways to change an argument."""
        keywords: dict[str, Any] = {"dim": 1, "inputs": self.arguments, "device": self.device}
        pair = record(predict, **keywords)
        launch = wp.launch(predict, **keywords, record_cmd=True)
        return {
            "Launch.set_param_by_name(), forward alone": lambda: launch.set_param_by_name("x", self.x),
            "recorded set(), forward and adjoint": lambda: pair.set("x", self.x),
        }

    def steps(self) -> Ways:
        """The ways to run a training step: forward, loss, both adjoints, and the update of two weights."""
        keywords: dict[str, Any] = {"dim": 1, "device": self.device}
        error = [self.y, self.target, self.loss]
        updates = [[value, value.grad, 0.01] for value in (self.weight, self.bias)]

        def taped() -> None:
            with wp.Tape() as tape:
                wp.launch(predict, inputs=self.arguments, **keywords)
                wp.launch(squared_error, inputs=error, **keywords)
            tape.backward(self.loss)
            for update in updates:
                wp.launch(descend, inputs=update, **keywords)
            tape.zero()

        prediction, difference = (
            record(kernel, inputs=arguments, **keywords)
            for kernel, arguments in ((predict, self.arguments), (squared_error, error))
        )
        descents = [record(descend, inputs=update, **keywords) for update in updates]
        gradients = [value.grad for value in (self.x, self.y, self.target)]

        def recorded() -> None:
            prediction.forward()
            difference.forward()
            difference.adjoint()
            prediction.adjoint()
            for descent in descents:
                descent.forward()
            for gradient in gradients:
                gradient.zero_()

        ways: dict[str, Callable[[], object]] = {"wp.launch + Tape": taped, "recorded pairs": recorded}
        if self.device.is_cuda:
            self.loss.grad.fill_(1.0)
            with wp.ScopedCapture(device=self.device) as capture:
                recorded()
            ways["CUDA graph of recorded pairs"] = lambda: wp.capture_launch(capture.graph)
        return ways


def compared(times: Mapping[str, float]) -> dict[str, Any]:
    """Returns the times, and True under ``within_bounds`` if the recorded launch is within its bounds."""
    ratio = times["recorded"] / times["wp.launch"]
    extra = times["recorded"] - times["Launch.launch()"]
    return {
        "us": dict(times),
        "ratio_to_wp_launch": round(ratio, 3),
        "us_above_launch": round(extra, 2),
        "within_bounds": ratio <= LARGEST_RATIO and extra <= LARGEST_EXTRA_US,
    }


def measure(device: Any, bursts: int, calls: int) -> dict[str, Any]:
    """Measure every figure of a device, as JSON values."""
    problem = Problem(device)
    forward, adjoint = problem.launches()
    steps: dict[str, Any] = dict(medians_us(problem.steps(), bursts, max(calls // 5, 1)))
    if not device.is_cuda:
        steps["CUDA graph of recorded pairs"] = NOT_RUN
    return {
        **(gpu_record("auto") if device.is_cuda else cpu_record()),
        "command": " ".join(["python", *sys.argv]),
        "forward": compared(medians_us(forward, bursts, calls)),
        "adjoint": compared(medians_us(adjoint, bursts, calls)),
        "set_us": medians_us(problem.settings(), bursts, calls),
        "training_step_us": steps,
    }


def table(result: Mapping[str, Any]) -> str:
    """The figures as text."""
    lines = []
    for title in ("forward", "adjoint"):
        part = result[title]
        lines += [f"{title}, {name}: {us:.2f} us" for name, us in part["us"].items()]
        lines.append(
            f"{title}: {part['ratio_to_wp_launch']:.3f} of wp.launch (at most {LARGEST_RATIO}), "
            f"{part['us_above_launch']:+.2f} us to Launch.launch() (at most +{LARGEST_EXTRA_US})"
        )
    lines += [f"set, {name}: {us:.2f} us" for name, us in result["set_us"].items()]
    for name, us in result["training_step_us"].items():
        lines.append(f"training step, {name}: {us if isinstance(us, str) else f'{us:.2f} us'}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--bursts", type=int, default=200)
    parser.add_argument("--calls", type=int, default=100, help="launches of one burst")
    arguments = parser.parse_args()
    device = wp.get_device(arguments.device)
    result = measure(device, arguments.bursts, arguments.calls)
    print(table(result))
    if arguments.json:
        known = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
        known["gpu" if device.is_cuda else "cpu"] = result
        arguments.json.write_text(json.dumps(known, indent=1) + "\n")
        print(f"wrote {arguments.json}")
    if not (result["forward"]["within_bounds"] and result["adjoint"]["within_bounds"]):
        sys.exit("a recorded replay costs more than its bounds")


if __name__ == "__main__":
    main()
