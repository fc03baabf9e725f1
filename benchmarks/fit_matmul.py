"""Fits the rates by which ``warp_tiles.matmul`` estimates the times of loops, and the factor against loops.

    python benchmarks/tune_matmul.py --store /tmp/records --timings benchmarks/results/matmul_timings.json
    python -m benchmarks.fit_matmul

The first command measures on a GPU. The second one needs none. For each kind of operands it prints the present rates
and fitted ones, each with the standard deviation of the logarithm of estimated over measured times, and with the speed
of the candidate that the estimates choose, as a share of the fastest one's (geometric mean). Fitted rates come from the
problems with even numbers, and their quality from the others. Rates are rounded to two digits, because the data decide
no more. The last line has the same speed for factors against loops.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.machine import ROOT
from benchmarks.runner import geometric_mean
from benchmarks.tune_matmul import problems
from warp_tiles.array_products.choice import BUCKET
from warp_tiles.gemm.matmul import RATES, Rates, candidates, loop_candidate, rates_name
from warp_tiles.gemm.matmul_problem import Gpu, MatmulConfig, MatmulProblem
from warp_tiles.tuning.record import decode_records

FILE = ROOT / "benchmarks" / "results" / "matmul_timings.json"
STEPS = (1.3, 1.1, 1.03)  # by which a rate is changed, one after another
FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Measured:
    """A problem on a GPU with the times of its candidates in microseconds."""

    problem: MatmulProblem
    gpu: Gpu
    times: dict[MatmulConfig, float]

    @property
    def loops(self) -> dict[MatmulConfig, float]:
        """The times of loops."""
        return {config: time for config, time in self.times.items() if not config.tensor_copies}

    def estimate(self, config: MatmulConfig, rates: Rates | None = None) -> float:
        """The estimated time of a loop, with other rates than those of ``RATES`` if they are given."""
        return loop_candidate(self.problem, config, self.gpu, rates).time_us


def measured(data: bytes) -> list[Measured]:
    """The problems of a file of timings."""
    asked = {problem.bucket: problem for problem in problems()}
    found = []
    for record in decode_records(data):
        values, where = dict(record.key.values), record.key.environment
        problem = asked.get(tuple(values[name] for name in BUCKET))  # type: ignore[arg-type]
        if problem is not None:
            times = {
                MatmulConfig(**timing.config): timing.median_us
                for timing in record.timings
                if timing.status != "failed"
            }
            found.append(Measured(problem, Gpu(where.arch or 0, where.multiprocessors or 0), times))
    return found


def error(sample: Sequence[Measured], rates: Rates) -> float:
    """The standard deviation of the estimates' logarithms."""
    logs = [math.log(one.estimate(config, rates) / time) for one in sample for config, time in one.loops.items()]
    return statistics.pstdev(logs) if logs else 0.0


def speed(sample: Sequence[Measured], rates: Rates) -> float:
    """The speed of the loop that the estimates choose among the measured ones, as a share of the fastest one's."""
    shares = []
    for one in sample:
        if one.loops:
            chosen = min(one.loops, key=lambda config: one.estimate(config, rates))
            shares.append(min(one.loops.values()) / one.loops[chosen])
    return geometric_mean(shares) or 0.0


def fitted(rates: Rates, loss: Callable[[Rates], float]) -> Rates:
    """Rates with a smaller loss. Each is changed in turn until nothing gains."""
    best = loss(rates)
    for step in STEPS:
        gains = True
        while gains:
            gains = False
            for field in fields(rates):
                for factor in (step, 1 / step):
                    value = getattr(rates, field.name) * factor
                    other = replace(rates, **{field.name: value})
                    if math.isfinite(value) and (found := loss(other)) < best - 1e-4:
                        rates, best, gains = other, found, True
    return replace(rates, **{field.name: float(f"{getattr(rates, field.name):.2g}") for field in fields(rates)})


def preferred(sample: Sequence[Measured], factor: float) -> float:
    """The speed of the choice between the fastest loop and the best launch of the kernel, by estimates."""
    shares = []
    for one in sample:
        launches = [config for config in one.times if config.tensor_copies]
        if not (launches and one.loops):
            continue
        possible = (found for found in candidates(one.problem, one.gpu) if found.kernel)
        launch = min(possible, key=lambda found: found.time_us)
        loop = min(one.loops, key=one.estimate)
        is_loop = factor * one.estimate(loop) < launch.time_us or launch.config not in one.times
        chosen = loop if is_loop else launch.config
        shares.append(min(one.times.values()) / one.times[chosen])
    return geometric_mean(shares) or 0.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    found = measured(FILE.read_bytes())
    groups: dict[str, list[Measured]] = {}
    for one in found:
        groups.setdefault(rates_name(one.problem, one.gpu.arch), []).append(one)
    for name, group in groups.items():
        sample, others = group[::2], group[1::2]

        def loss(rates: Rates, sample: Sequence[Measured] = sample) -> float:
            return error(sample, rates) + 1 - speed(sample, rates)

        for what, rates in (("now", RATES[name]), ("fitted", fitted(RATES[name], loss))):
            print(
                f"{name}, {len(group)} problems, {what}: error {error(others, rates):.3f}, "
                f"speed {speed(others, rates):.3f}\n  {rates}"
            )
    print(*(f"factor {factor}: {preferred(found, factor):.3f}" for factor in FACTORS), sep=", ")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
