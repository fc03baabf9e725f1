"""Compares random kernels on a device with Warp's CPU device, in several processes.

python -m tests.random_kernels.run --count 1000 --device cuda:0 --jobs 8 --json FILE [--seconds 400]

With ``--device cpu`` the CPU device is compared with the NumPy model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.machine import cpu_record, gpu_record

BATCH = 8  # kernels that a worker compiles in parallel


def reason_of(error: BaseException) -> str:
    """The text of an error without numbers and names, for grouping."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", lines[0])
    text = re.sub(r"/\S+", "...", text) + (f" {lines[-1]}" if len(lines) > 1 else "")
    return f"{type(error).__name__}: {re.sub(r'[0-9]+', 'N', text)}"[:300]


def loop_states(report: Any) -> Iterator[tuple[str, str]]:
    """Yields state and reason of each loop in a report of warp_tiles."""
    if isinstance(report, dict):
        for name, value in report.items():
            if name == "loops" and isinstance(value, list):
                for entry in value:
                    if isinstance(entry, dict) and "state" in entry:
                        yield str(entry["state"]), str(entry.get("reason") or "")
            else:
                yield from loop_states(value)
    elif isinstance(report, list):
        for value in report:
            yield from loop_states(value)


class Worker:
    """Compiles and runs the kernels of one process.

    Attributes:
        device: The device whose results are compared.
        threads: Parallel compilations.
    """

    def __init__(self, device: str, threads: int, folder: Path):
        self.device, self.threads, self.folder = device, threads, folder

    def batch(self, seeds: list[int]) -> Iterator[dict[str, Any]]:
        """Yields the outcomes of some seeds."""
        from tests.random_kernels.execute import execute, forget_kernel
        from tests.random_kernels.generate import draw

        kernels = [draw(seed) for seed in seeds]
        failed: dict[int, dict[str, Any]] = {}
        modules: dict[int, Any] = {}
        results: dict[tuple[str, int], Any] = {}
        # one device after the other, because options of a module apply to all of its devices
        for device in dict.fromkeys(("cpu", self.device)):
            remaining = [kernel for kernel in kernels if kernel.seed not in failed]
            with ThreadPoolExecutor(self.threads) as pool:
                jobs = {kernel.seed: pool.submit(self._compile, kernel, modules, device) for kernel in remaining}
            for kernel in remaining:
                try:
                    jobs[kernel.seed].result()
                    results[device, kernel.seed] = execute(kernel, modules[kernel.seed], device)
                except Exception as error:
                    failed[kernel.seed] = {"outcome": "refused", "device": device, "reason": reason_of(error)}
        for kernel in kernels:
            outcome = failed.get(kernel.seed)
            if outcome is None:
                outcome = self._compare(kernel, results["cpu", kernel.seed], results[self.device, kernel.seed])
            yield {"seed": kernel.seed, "gradients": kernel.gradients, "features": sorted(kernel.features), **outcome}
            forget_kernel(kernel)

    def _compile(self, kernel: Any, modules: dict[int, Any], device: str) -> None:
        import warp as wp

        from tests.random_kernels.execute import import_kernel, prepare

        if kernel.seed not in modules:
            modules[kernel.seed] = import_kernel(kernel, self.folder)
        # CPU code runs only once, so optimising it takes longer than it saves
        level = 0 if device == "cpu" else None
        wp.set_module_options({"optimization_level": level}, modules[kernel.seed])
        prepare(kernel, modules[kernel.seed], device)

    def _compare(self, kernel: Any, want: Any, got: Any) -> dict[str, Any]:
        from tests.random_kernels.execute import difference, of_model

        cpu = difference(want, of_model(kernel))
        found = difference(got, want) if self.device != "cpu" else cpu
        return {"outcome": "differs" if found else "equal", "what": found, **({"cpu": cpu} if cpu else {})}


def work(arguments: argparse.Namespace) -> None:
    """Run as a worker: print a JSON line for each seed, and a line with the states of loops."""
    with tempfile.TemporaryDirectory(prefix="random_kernels_") as folder:
        os.environ["WARP_CACHE_PATH"] = str(Path(folder) / "warp")
        os.environ["WARP_TILES_CACHE_DIR"] = str(Path(folder) / "lto")
        out, sys.stdout = sys.stdout, sys.stderr  # Warp prints its compilations
        import warp as wp

        import warp_tiles

        wp.config.log_level = wp.LOG_ERROR if hasattr(wp, "LOG_ERROR") else 40
        wp.init()
        warp_tiles.enable()
        worker = Worker(arguments.device, arguments.threads, Path(folder))
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
        for start in range(0, len(seeds), arguments.batch):
            if time.time() > arguments.until:
                break
            batch = seeds[start : start + arguments.batch]
            print(json.dumps({"started": batch}), file=out, flush=True)
            for outcome in worker.batch(batch):
                print(json.dumps(outcome), file=out, flush=True)
        loops = [] if arguments.device == "cpu" else list(loop_states(warp_tiles.report()))
        print(json.dumps({"loops": loops}), file=out, flush=True)
        warp_tiles.disable()


class Run:
    """All seeds of a command, divided among processes."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.seeds = list(range(arguments.start, arguments.start + arguments.count))
        self.outcomes: dict[int, dict[str, Any]] = {}
        self.loops: Counter[tuple[str, str]] = Counter()
        self.messages: list[str] = []
        self.lock = threading.Lock()
        self.begin = time.time()
        self.until = self.begin + arguments.seconds

    def all(self) -> None:
        jobs = max(1, min(self.arguments.jobs, len(self.seeds)))
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self._run_seeds, [self.seeds[first::jobs] for first in range(jobs)]))

    def _run_seeds(self, seeds: list[int]) -> None:
        """Run seeds in a process. If it dies, the seeds of its last batch run again one by one."""
        left, batch = seeds, BATCH
        while left and time.time() < self.until:
            started = self._process(left if batch > 1 else left[:1], batch)
            suspects = [seed for seed in started if seed not in self.outcomes]
            if batch == 1 and suspects:
                with self.lock:
                    self.outcomes[suspects[0]] = {"seed": suspects[0], "outcome": "crashed", "features": []}
                suspects = []
            again = [seed for seed in left if seed not in self.outcomes]
            if not started and again == left:
                return  # no process can start
            batch = 1 if any(seed in started for seed in again) else BATCH
            left = again

    def _process(self, seeds: list[int], batch: int) -> list[int]:
        a = self.arguments
        command = [sys.executable, "-m", "tests.random_kernels.run", "--worker", "--device", a.device, "--threads",
                   str(a.threads), "--batch", str(batch), "--until", str(self.until), "--seeds",
                   ",".join(map(str, seeds))]  # fmt: skip
        started: list[int] = []
        with tempfile.TemporaryFile("w+") as errors:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    found = json.loads(line)
                    with self.lock:
                        if "started" in found:
                            started = found["started"]
                        elif "loops" in found:
                            self.loops.update((state, reason) for state, reason in found["loops"])
                        else:
                            self.outcomes[found["seed"]] = found
            if process.returncode:
                errors.seek(0)
                with self.lock:
                    self.messages.append(f"a process exited with status {process.returncode}: {errors.read()[-600:]}")
        return started

    def summary(self) -> dict[str, Any]:
        """Counts and differences, as JSON values."""
        kinds = Counter(outcome["outcome"] for outcome in self.outcomes.values())
        refused: dict[str, list[int]] = {}
        for seed, outcome in sorted(self.outcomes.items()):
            if outcome["outcome"] == "refused":
                refused.setdefault(f"{outcome['device']}: {outcome['reason']}", []).append(seed)
        return {
            "device": self.arguments.device,
            "asked": len(self.seeds),
            "done": len(self.outcomes),
            **{kind: kinds[kind] for kind in ("equal", "differs", "refused", "crashed")},
            "with_gradients": sum(bool(outcome.get("gradients")) for outcome in self.outcomes.values()),
            "seconds": round(time.time() - self.begin, 1),
            "differing": [o for _, o in sorted(self.outcomes.items()) if o["outcome"] == "differs"],
            "crashed_seeds": [seed for seed, o in sorted(self.outcomes.items()) if o["outcome"] == "crashed"],
            "refused_by_reason": refused,
            "cpu_and_model_differ": {seed: o["cpu"] for seed, o in sorted(self.outcomes.items()) if "cpu" in o},
            "loops": {f"{state}: {reason}" if reason else state: n for (state, reason), n in self.loops.most_common()},
            "loop_states": dict(Counter({s: sum(n for (t, _), n in self.loops.items() if t == s)
                                         for s, _ in self.loops})),
            "messages": self.messages,
        }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2, help="parallel compilations in each job")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9, help="no batch starts later than this")
    for name, kind in (("--seeds", str), ("--until", float), ("--batch", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        work(arguments)
        return 0
    run = Run(arguments)
    run.all()
    summary = run.summary()
    if arguments.json is not None:
        machine = gpu_record("auto") if arguments.device.startswith("cuda") else cpu_record()
        arguments.json.write_text(json.dumps({"machine": machine, **summary}, indent=1) + "\n")
    for name, value in summary.items():
        if name == "differing":
            for outcome in value:
                print(f"differs: seed {outcome['seed']}, {outcome['what']} ({', '.join(outcome['features'])})")
        else:
            print(f"{name}: {value}")
    return 1 if summary["differs"] or summary["crashed"] or not summary["done"] else 0


if __name__ == "__main__":
    sys.exit(main())
