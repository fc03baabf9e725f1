"""Measures configurations of warp_tiles.matmul on a GPU, and keeps them as tuning records; fits its estimates.

    python benchmarks/tune_matmul.py --store /tmp/records --only "float16 nn 16x" "tf32 nn"
    python benchmarks/tune_matmul.py --store /tmp/records --json warp_tiles/tuning/records/matmul/NVIDIA-H200.json
    python benchmarks/tune_matmul.py --store /tmp/records --timings benchmarks/results/matmul_timings.json
    python benchmarks/tune_matmul.py --fit benchmarks/results/matmul_timings.json

A bucket is a type, a layout, and sizes rounded to powers of two. Its candidates are loops and, where it can compute the
product, launches of the kernel with tensor copies. Those with the least estimated times are measured by the tuner's
search (warp_tiles.tuning.search): at most four loops if there are launches, and twelve in all, then the fastest loop in
groups of other sizes. torch's product runs before each launch, as in benchmarks/matmul.py, so that each candidate finds
its operands in the same parts of the L2 cache. Each bucket has a record in the store, and configurations that it holds
are not measured again. --json writes the buckets whose default lost by at least 2 % (see `shipped`), in the form that
the package ships and "warp-tiles tune import" reads. --timings writes all times of this run.

--fit needs no GPU. For each kind of operands it prints the present rates of loops and fitted ones, each with the
standard deviation of the logarithm of estimated over measured times, and with the speed of the candidate that the
estimates choose, as a share of the fastest one's (geometric mean). Fitted rates come from the problems with even
numbers, and their quality from the others. Rates are rounded to two digits, because the data decide no more. The last
line has the same speed for factors against loops.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import matmul
from benchmarks.machine import torch_with_warp
from benchmarks.runner import geometric_mean
from warp_tiles.array_products import lane_kernel, tensor_kernel
from warp_tiles.array_products.matmul_choice import candidates, choose_matmul, loop_candidate, rates_name
from warp_tiles.array_products.matmul_problem import Gpu, MatmulConfig, MatmulProblem
from warp_tiles.array_products.matmul_rates import RATES, Rates
from warp_tiles.array_products.prepared import BUCKET
from warp_tiles.compile.sources import kernels_folder
from warp_tiles.gemm.problem import DType
from warp_tiles.settings import current
from warp_tiles.tuning.measure import Candidate, Clock, EventClock, SearchDevice
from warp_tiles.tuning.record import (
    DEFAULTS,
    Config,
    Environment,
    Record,
    TuningKey,
    decode_records,
    encode_records,
    environment_of,
)
from warp_tiles.tuning.search import Search, by_identity
from warp_tiles.tuning.store import RecordStore

MEASURED = 12  # candidates of a bucket
DEFAULT = DEFAULTS["matmul"]  # the chooser's choice
LOOPS = 4  # of them, if the kernel with tensor copies can compute the product
LEAST_GAIN = 0.02  # of a record that ships: two runs of float16 4096x4096x4096 differed by more (not on record)
GROUPS = (4, 8, 16)  # of the fastest candidate, if it is a loop
STEPS = (1.3, 1.1, 1.03)  # by which a rate is changed, one after another
FACTORS = (1.0, 1.2, 1.4, 1.7, 2.0)  # by which the estimate of a loop has to be less than that of the kernel
TYPES: tuple[tuple[DType, bool], ...] = (  # and whether they are rounded to tf32
    *(("float16", False), ("float32", True), ("float32", False), ("float64", False)),
)


def key_of(problem: MatmulProblem, source: str, environment: Environment) -> TuningKey:
    """The key of the tuning record of a product's shape bucket."""
    return TuningKey.of("matmul", dict(zip(BUCKET, problem.bucket)), source, environment)


def problems() -> Iterator[MatmulProblem]:
    sizes = [(size, size, size) for size in (256, 512, 1024, 2048, 4096, 8192)]
    for side in (16, 32, 64, 128, 256):
        for k in (1024, 2048, 4096, 8192, 16384):
            sizes += [(side, 4096, k), (4096, side, k)]
    sizes += [(side, side, k) for side in (64, 128, 256) for k in (4096, 16384)]  # few tiles, whose loops have slices
    layouts = ((False, False), (False, True), (True, False))
    for (dtype, tf32), (a_transposed, b_transposed) in product(TYPES, layouts):
        unit = MatmulProblem(1, 1, 1, 1, dtype, dtype, dtype, a_transposed, b_transposed, tf32)
        for m, n, k in sizes:
            if dtype != "float64" or m * n * k <= 4096**3:
                yield replace(unit, m=m, n=n, k=k)
    for (dtype, tf32), width in product((TYPES[0], TYPES[2]), (64, 128, 256)):
        yield MatmulProblem(width, width, width, 1024, dtype, dtype, dtype, tf32=tf32)


def sources() -> list[Path]:
    """The files with the loops and the kernel that are measured."""
    from warp_tiles.array_products import kernels

    python = (Path(kernels.__file__), Path(tensor_kernel.__file__), Path(lane_kernel.__file__))
    return [*python, *sorted((kernels_folder() / "matmul").glob("*.cuh"))]


def considered(problem: MatmulProblem, gpu: Gpu, most: int = MEASURED) -> list[MatmulConfig]:
    """The candidates to measure, the chooser's choice first."""
    found = [one.config for one in sorted(candidates(problem, gpu), key=lambda one: one.time_us)]
    launches = [config for config in found if config.tensor_copies]
    loops = [config for config in found if not config.tensor_copies]
    found = [*loops[:LOOPS], *launches] if launches else loops
    choice = choose_matmul(problem, gpu).chosen.config
    return [choice, *(config for config in found if config != choice)][:most]


class Product(Candidate):
    """A configuration's product as a candidate of a search. ``restore`` runs torch's product."""

    def __init__(self, run: Callable[[], None], restore: Callable[[], Any]) -> None:
        self.run, self.restore = run, restore  # type: ignore[method-assign]


class Bench:
    """The arrays of a problem, its product with a given configuration, and torch's product (``peer``)."""

    def __init__(self, torch: Any, problem: MatmulProblem) -> None:
        import warp as wp

        from warp_tiles.array_products.call import checked

        layout = "".join("t" if transposed else "n" for transposed in (problem.a_transposed, problem.b_transposed))
        dtype = "tf32" if problem.tf32 else problem.a
        row = matmul.Row("product", dtype, problem.m, problem.n, problem.k, problem.batch, layout)
        left, right, out = matmul.operands(torch, row)
        self.arrays = [wp.from_torch(array) for array in (left, right, out)]
        torch.backends.cuda.matmul.allow_tf32 = problem.tf32
        self.peer: Callable[[], Any] = lambda: torch.matmul(left, right, out=out)
        precision = "tf32" if problem.tf32 else "default"
        a, b, c = self.arrays
        self._call = checked(a, b, c, precision=precision).call
        self.device = self.arrays[0].device
        self._choice = choose_matmul(problem, Gpu(self.device.arch, self.device.sm_count)).chosen.config

    def _config(self, config: Config) -> MatmulConfig:
        return self._choice if config == DEFAULT else MatmulConfig(**config)

    def prefetch(self, configs: Sequence[Config]) -> None:
        """Compile the kernels side by side. The first runs wait for them."""
        import warp_tiles
        from warp_tiles._warp import installed
        from warp_tiles.array_products.kernels import tile_kernel
        from warp_tiles.array_products.prepared import kernel_of, planned
        from warp_tiles.array_products.tensor_matmul import built_kernel

        kernels = set()
        for config in map(self._config, configs):
            call, _, plan = planned(self._call, self.device, config)
            if plan.chosen.kernel:
                kernels.add(plan.chosen.kernel)
            else:
                kernel = tile_kernel(kernel_of(call, plan))
                warp_tiles.prefetch(kernel.module, device=self.device, block_dim=config.threads)
        hooks = installed()
        assert hooks is not None  # main() enables warp_tiles
        with ThreadPoolExecutor(max(1, len(kernels))) as pool:
            list(pool.map(lambda kernel: built_kernel(hooks.engine, kernel, current()), kernels))

    def build(self, config: Config) -> Product:
        from warp_tiles.array_products.prepared import prepare

        prepared = prepare(self._call, self.device, self._config(config))
        a, b, out = (array.ptr for array in self.arrays)

        def run() -> None:
            prepared.run(a, b, out, None, 1.0, 0.0)

        run()
        return Product(run, self.peer)


def tuned(bench: Any, store: RecordStore, key: TuningKey, configs: Sequence[MatmulConfig], clock: Clock) -> Record:
    """The record of a bucket: the choice, which comes first, the others, and the fastest loop in groups of other sizes.

    One that cannot win is dropped, also the choice, which is measured again beside such groups.
    """
    choice, *others = configs
    record = _measured(bench, store, key, [config.to_json() for config in others], clock)
    winner = record.winner()
    first = choice if winner is None or winner is record.default else MatmulConfig(**winner.config)
    if first.tensor_copies:
        return record
    grouped = dict.fromkeys((first, *(replace(first, group=one) for one in GROUPS)))
    return _measured(bench, store, key, [config.to_json() for config in grouped if config != choice], clock)


def _measured(bench: Any, store: RecordStore, key: TuningKey, configs: Sequence[Config], clock: Clock) -> Record:
    @contextmanager
    def devices(pending: Sequence[Config]) -> Iterator[list[SearchDevice]]:
        bench.prefetch(pending)
        yield [SearchDevice(bench.build, clock)]

    wanted = by_identity([DEFAULT, *configs])
    return Search(key, store, wanted, devices, default=DEFAULT, jobs=1).settle()[0]


def shipped(records: Sequence[Record]) -> list[Record]:
    """The records whose default lost by more than noise, with the timings of the winner, of the default, and of the
    fastest launch of the kernel with tensor copies: that it was compared is part of the result.
    """
    found = []
    for record in records:
        winner, default = record.winner(), record.default
        if winner is None or default is None or winner.median_us > (1 - LEAST_GAIN) * default.median_us:
            continue
        launches = [one for one in record.timings if one.config.get("tensor_copies") and one.median_us is not None]
        fastest = sorted(launches, key=lambda one: one.median_us or 0.0)[:1]
        found.append(record.among({one.identity for one in (winner, default, *fastest)}))
    return found


def explicit(record: Record, choice: MatmulConfig) -> Record:
    """The record with the configuration that the chooser chose in place of its name."""
    timings = (replace(one, config=choice.to_json()) if one.config == DEFAULT else one for one in record.timings)
    return replace(record, timings=tuple(timings))


# ---- estimates


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


def compared(one: Measured) -> tuple[MatmulConfig, MatmulConfig, float] | None:
    """The loop and the launch of the kernel with the least estimates, and the ratio of these; None without a launch."""
    if not one.loops or not any(config.tensor_copies for config in one.times):
        return None
    possible = (found for found in candidates(one.problem, one.gpu) if found.kernel)
    loop, launch = min(one.loops, key=one.estimate), min(possible, key=lambda found: found.time_us)
    return loop, launch.config, launch.time_us / one.estimate(loop)


def preferred(sample: Sequence[Measured], factor: float) -> float:
    """The speed of the choice between the fastest loop and the best launch of the kernel, by estimates."""
    shares = []
    for one in sample:
        if (pair := compared(one)) is None:
            continue
        loop, launch, ratio = pair
        chosen = loop if factor < ratio or launch not in one.times else launch
        shares.append(min(one.times.values()) / one.times[chosen])
    return geometric_mean(shares) or 0.0


def fit(found: Sequence[Measured]) -> None:
    """Print the rates and the factor, with their quality."""
    groups: dict[str, list[Measured]] = {}
    for one in found:
        groups.setdefault(rates_name(one.problem, one.gpu.arch), []).append(one)
    for name, group in groups.items():
        sample, others = group[::2], group[1::2]

        def loss(rates: Rates, sample: Sequence[Measured] = sample) -> float:
            return error(sample, rates) + 1 - speed(sample, rates)

        for what, rates in (("now", RATES[name]), ("fitted", fitted(RATES[name], loss))):
            quality = f"error {error(others, rates):.3f}, speed {speed(others, rates):.3f}"
            print(f"{name}, {len(group)} problems, {what}: {quality}\n  {rates}")
    print("all:", ", ".join(f"factor {factor}: {preferred(found, factor):.3f}" for factor in FACTORS))


# ---- a run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("build/matmul_records"), help="folder of the records")
    parser.add_argument("--json", type=Path, help="file for the records that the package ships")
    parser.add_argument("--timings", type=Path, help="file for the times of all candidates")
    parser.add_argument("--seconds", type=float, default=math.inf, help="measure no further bucket after this time")
    parser.add_argument("--only", nargs="*", default=[""], help="measure only buckets whose names contain one of these")
    parser.add_argument("--fit", type=Path, metavar="TIMINGS", help="fit estimates to such times, and measure nothing")
    options = parser.parse_args(arguments)
    if options.fit:
        fit(measured(options.fit.read_bytes()))
        return 0
    import warp as wp

    torch = torch_with_warp()
    device = wp.get_device("cuda:0")
    store, environment = RecordStore(options.store), environment_of(device)
    records, timings = list[Record](), list[Record]()
    source = hashlib.sha256(b"".join(path.read_bytes() for path in sources())).hexdigest()
    end = time.monotonic() + options.seconds
    for problem in problems():
        key = key_of(problem, source, environment)
        if any(text in problem.text for text in options.only) and time.monotonic() < end:
            bench = Bench(torch, problem)
            configs = considered(problem, Gpu(device.arch, device.sm_count))
            record = tuned(bench, store, key, configs, EventClock(device))
            winner, default = record.winner(), record.default
            times = " and ".join(f"{one.median_us:.2f}" for one in (winner, default) if one is not None)
            print(f"{problem.text}: {times} us by the winner and by the chooser", flush=True)
            records.append(record)
            timings.append(explicit(record, configs[0]))
        elif (known := store.load(key)) is not None:  # measured by an earlier run
            records.append(known)
    if options.json:
        options.json.write_bytes(encode_records(shipped(records)))
    if options.timings:
        options.timings.write_bytes(encode_records(timings))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
