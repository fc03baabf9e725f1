"""Measures configurations of warp_tiles.matmul on a GPU, and writes the fastest of each tier.

    python benchmarks/tune_matmul.py --json warp_tiles/array_products/records/h200.json  # on an H200
    python benchmarks/tune_matmul.py --json /tmp/records.json --only "float16 nn 16x" "tf32 nn"

A tier is a type, a layout, and sizes rounded to powers of two. The chooser's candidates are sorted by their estimated
time, and the first ones are measured by the tuner's search (warp_tiles.tuning.search). torch's product runs before each
launch, as in benchmarks/matmul.py, so that each candidate finds its operands in the same parts of the L2 cache. A tier
is recorded if the interval of a candidate lies below that of the chooser's choice, and if it is faster by more than
2 %, with its GPU and date. The records of tiers that are not measured are kept. Other GPUs of sm_90 with 132
multiprocessors have the file sm_90_132.json.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.machine import gpu_record
from warp_tiles.gemm.dtypes import DType
from warp_tiles.heuristics.matmul import MatmulConfig, MatmulProblem, candidates, choose_matmul, cost_us
from warp_tiles.tuning.measure import Clock, EventClock
from warp_tiles.tuning.record import Config, Timing
from warp_tiles.tuning.search import SearchDevice, search

MEASURED = 12  # candidates of a tier
GAIN = 0.98  # of the choice's time
GROUPS = (4, 8, 16)  # of the fastest candidate
TYPES: tuple[tuple[DType, bool], ...] = (  # and whether they are rounded to tf32
    *(("float16", False), ("float32", True), ("float32", False), ("float64", False)),
)


def problems() -> Iterator[MatmulProblem]:
    """One problem of each tier."""
    sizes = [(size, size, size) for size in (256, 512, 1024, 2048, 4096, 8192)]
    for side in (16, 32, 64, 128, 256):
        for k in (1024, 2048, 4096, 8192, 16384):
            sizes += [(side, 4096, k), (4096, side, k)]
    layouts = ((False, False), (False, True), (True, False))
    for (dtype, tf32), (a_transposed, b_transposed) in product(TYPES, layouts):
        unit = MatmulProblem(1, 1, 1, 1, dtype, dtype, dtype, a_transposed, b_transposed, tf32)
        for m, n, k in sizes:
            if dtype != "float64" or m * n * k <= 4096**3:
                yield replace(unit, m=m, n=n, k=k)
    for (dtype, tf32), width in product((TYPES[0], TYPES[2]), (64, 128, 256)):
        yield MatmulProblem(width, width, width, 1024, dtype, dtype, dtype, tf32=tf32)


def considered(problem: MatmulProblem, arch: int, multiprocessors: int, most: int = MEASURED) -> list[MatmulConfig]:
    """The candidates to measure, the chooser's choice first."""
    found = sorted(
        candidates(problem, arch, multiprocessors), key=lambda config: cost_us(problem, config, arch, multiprocessors)
    )
    choice = choose_matmul(problem, arch, multiprocessors).config
    return [choice, *(config for config in found if config != choice)][:most]


def fastest(timings: Sequence[Timing], choice: MatmulConfig) -> Timing | None:
    """The fastest configuration, if it gains enough over the choice."""
    known = {timing.identity: timing for timing in timings if timing.samples}
    default = next(timing for timing in known.values() if timing.config == choice.to_json())
    best = min((timing for timing in known.values() if timing.status == "ok"), key=lambda timing: timing.median_us)
    gains = best.high_us < default.low_us and best.median_us < GAIN * default.median_us
    return best if gains else None


@dataclass(frozen=True)
class Product:
    """A configuration's product as a candidate of a search. ``restore`` runs torch's product."""

    run: Callable[[], None]
    restore: Callable[[], Any]
    shared_bytes: int = 0

    def prepare(self) -> None:
        """Nothing to prepare."""


class Bench:
    """The arrays of a problem, its product with a given configuration, and torch's product (``peer``)."""

    def __init__(self, torch: Any, problem: MatmulProblem) -> None:
        import warp as wp

        from warp_tiles.array_products.arguments import checked_call

        dtype = getattr(torch, problem.a)
        batch = (problem.batch,) if problem.batch > 1 else ()

        def operand(rows: int, columns: int, transposed: bool) -> Any:
            shape = (columns, rows) if transposed else (rows, columns)
            values = wp.from_torch(torch.randn((*batch, *shape), device="cuda", dtype=dtype))
            axes = (0, 2, 1) if batch else (1, 0)
            return values.transpose(axes) if transposed else values

        self.arrays = [
            operand(problem.m, problem.k, problem.a_transposed),
            operand(problem.k, problem.n, problem.b_transposed),
            operand(problem.m, problem.n, False),
        ]
        left, right, out = (wp.to_torch(array) for array in self.arrays)
        torch.backends.cuda.matmul.allow_tf32 = problem.tf32
        self.peer: Callable[[], Any] = lambda: torch.matmul(left, right, out=out)
        precision = "tf32" if problem.tf32 else "default"
        self._call = checked_call(*self.arrays, alpha=1.0, beta=0.0, bias=None, epilogue=None, precision=precision)
        self.device = self.arrays[0].device

    def prefetch(self, configs: list[MatmulConfig]) -> None:
        """Compile the kernels side by side. The first runs wait for them."""
        import warp_tiles
        from warp_tiles.array_products.call import canonicalize
        from warp_tiles.array_products.kernels import tile_kernel
        from warp_tiles.array_products.prepared import kernel_of, planned_product

        call, _ = canonicalize(self._call)
        for config in configs:
            kernel = tile_kernel(kernel_of(call, planned_product(call, self.device, config).choice))
            warp_tiles.prefetch(kernel.module, device=self.device, block_dim=config.threads)

    def build(self, config: Config) -> Product:
        """A configuration's product; its kernel is compiled."""
        from warp_tiles.array_products.prepared import prepare

        prepared = prepare(self._call, self.device, MatmulConfig.from_json(config))
        a, b, out = (array.ptr for array in self.arrays)

        def run() -> None:
            prepared.run(a, b, out, None, 1.0, 0.0)

        run()
        return Product(run, self.peer)


def tuned(torch: Any, problem: MatmulProblem, arch: int, multiprocessors: int, most: int = MEASURED) -> dict[str, Any]:
    """The measurements of a tier, of so many candidates."""
    bench = Bench(torch, problem)
    configs = considered(problem, arch, multiprocessors, most)
    bench.prefetch(configs)
    choice = configs[0]
    times = measured(bench, configs, choice)
    best = fastest(times, choice)
    first = choice if best is None else MatmulConfig.from_json(best.config)
    times = measured(bench, [*dict.fromkeys((choice, first, *(replace(first, group=one) for one in GROUPS)))], choice)
    found = fastest(times, choice)
    default = next(timing for timing in times if timing.config == choice.to_json())
    return {
        "name": problem.text,
        "tier": list(problem.bucket),
        "config": None if found is None else dict(found.config),
        "us": round((found or default).median_us, 2),
        "choice_us": round(default.median_us, 2),
        "gpu": torch.cuda.get_device_name(),
        "date": datetime.date.today().isoformat(),
    }


def measured(
    bench: Bench, configs: Sequence[MatmulConfig], choice: MatmulConfig, clock: Clock | None = None
) -> tuple[Timing, ...]:
    """The times of configurations. One that cannot win is dropped, but the choice is measured to the end."""
    device = SearchDevice(bench.build, clock or EventClock(bench.device))
    return search([config.to_json() for config in configs], [device], jobs=1, default=choice.to_json()).timings


def merged(earlier: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with a configuration. A new measurement of a tier replaces the earlier one."""
    by_tier = {tuple(record["tier"]): record for record in [*earlier, *found]}
    return [record for record in by_tier.values() if record["config"] is not None]


def main(arguments: list[str] | None = None) -> int:
    """Measure all tiers, and write the file after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[""], help="measure only tiers whose names contain one of these")
    parser.add_argument("--candidates", type=int, default=MEASURED, help="candidates of each tier")
    options = parser.parse_args(arguments)
    import warp as wp

    import warp_tiles

    torch = importlib.import_module("torch")
    wp.config.quiet = True
    warp_tiles.enable()
    wp.set_stream(wp.stream_from_torch(torch.cuda.current_stream()))
    device = wp.get_device("cuda:0")
    earlier = json.loads(options.json.read_text())["records"] if options.json.exists() else []
    data = {**gpu_record("auto"), "arch": device.arch, "multiprocessors": device.sm_count}
    found: list[dict[str, Any]] = []
    for problem in problems():
        if any(text in problem.text for text in options.only):
            record = tuned(torch, problem, device.arch, device.sm_count, options.candidates)
            print(f"{record['name']}: {record['us']} us, {record['choice_us']} us by the chooser", flush=True)
            found.append(record)
            options.json.write_text(json.dumps({**data, "records": merged(earlier, found)}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
