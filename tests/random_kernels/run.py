"""Compares random kernels on a device with Warp's CPU device, in several processes.

python -m tests.random_kernels.run --count 1000 --device cuda:0 --jobs 8 --json FILE

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
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.machine import cpu_record, gpu_record
from tests.random_kernels import execute as harness
from tests.random_kernels.generate import draw

BATCH = 8  # kernels of a process


def reason_of(error: BaseException) -> str:
    """The text of an error without numbers and names, for grouping."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", lines[0])
    text = re.sub(r"/\S+", "...", text) + (f" {lines[-1]}" if len(lines) > 1 else "")
    return f"{type(error).__name__}: {re.sub(r'[0-9]+', 'N', text)}"[:300]


def compared(device: str, seeds: Sequence[int], folder: Path) -> Iterator[dict[str, Any]]:
    """Compiles and runs the kernels of some seeds in this process. Yields the outcome of each."""
    import warp as wp

    kernels = {seed: draw(seed) for seed in seeds}
    modules = {seed: harness.import_kernel(kernel, folder) for seed, kernel in kernels.items()}
    refused: dict[int, dict[str, Any]] = {}
    results: dict[tuple[str, int], harness.Result] = {}
    # one device after the other, because options of a module apply to all of its devices
    for each in dict.fromkeys(("cpu", device)):
        for seed in (seed for seed in seeds if seed not in refused):
            try:
                # CPU code runs only once, so optimising it takes longer than it saves
                wp.set_module_options({"optimization_level": 0 if each == "cpu" else None}, modules[seed])
                harness.prepare(kernels[seed], modules[seed], each)
                results[each, seed] = harness.execute(kernels[seed], modules[seed], each)
            except Exception as error:
                refused[seed] = {"outcome": "refused", "device": each, "reason": reason_of(error)}
    for seed, kernel in kernels.items():
        outcome = refused.get(seed)
        if outcome is None:
            cpu = harness.difference(results["cpu", seed], harness.of_model(kernel))
            found = cpu if device == "cpu" else harness.difference(results[device, seed], results["cpu", seed])
            outcome = {"outcome": "differs" if found else "equal", "what": found, **({"cpu": cpu} if cpu else {})}
        yield {"seed": seed, "gradients": kernel.gradients, "features": sorted(kernel.features), **outcome}


def work(device: str, seeds: Sequence[int]) -> None:
    """Run as a worker: print a JSON line for each seed."""
    with tempfile.TemporaryDirectory(prefix="random_kernels_") as folder:
        os.environ["WARP_CACHE_PATH"] = str(Path(folder) / "warp")
        os.environ["WARP_TILES_CACHE_DIR"] = str(Path(folder) / "lto")
        out, sys.stdout = sys.stdout, sys.stderr  # Warp prints its compilations
        import warp as wp

        import warp_tiles

        wp.config.log_level = wp.LOG_ERROR if hasattr(wp, "LOG_ERROR") else 40
        wp.init()
        with warp_tiles.enabled():
            for outcome in compared(device, seeds, Path(folder)):
                print(json.dumps(outcome), file=out, flush=True)


def outcomes_of(device: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The outcomes of some seeds in a process of their own. If it dies, they run again one by one."""
    command = [sys.executable, "-m", "tests.random_kernels.run", "--device", device, "--seeds", *map(str, seeds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    missing = [seed for seed in seeds if seed not in {one["seed"] for one in found}]
    if len(seeds) == 1 and missing:
        text = f"a process exited with status {done.returncode}: {done.stderr[-600:]}"
        return [{"seed": missing[0], "outcome": "crashed", "what": text, "features": []}]
    return found + [one for seed in missing for one in outcomes_of(device, [seed])]


def summary(device: str, outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts and differences, as JSON values."""
    by_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ("equal", "differs", "refused", "crashed")}
    for one in sorted(outcomes, key=lambda one: one["seed"]):
        by_kind[one["outcome"]].append(one)
    return {
        "device": device,
        "done": len(outcomes),
        **{kind: len(found) for kind, found in by_kind.items()},
        "with_gradients": sum(bool(one.get("gradients")) for one in outcomes),
        "differing": by_kind["differs"],
        "crashes": by_kind["crashed"],
        "refused_by_reason": dict(Counter(f"{one['device']}: {one['reason']}" for one in by_kind["refused"])),
        "cpu_and_model_differ": {one["seed"]: one["cpu"] for one in outcomes if "cpu" in one},
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", help=argparse.SUPPRESS)  # of a worker
    arguments = parser.parse_args(argv)
    if arguments.seeds:
        work(arguments.device, arguments.seeds)
        return 0
    began, end = time.time(), arguments.start + arguments.count
    batches = [range(first, min(first + BATCH, end)) for first in range(arguments.start, end, BATCH)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = pool.map(outcomes_of, [arguments.device] * len(batches), batches)
        result = summary(arguments.device, [one for batch in found for one in batch])
    result["seconds"] = round(time.time() - began, 1)
    if arguments.json is not None:
        machine = gpu_record("auto") if arguments.device.startswith("cuda") else cpu_record()
        arguments.json.write_text(json.dumps({"machine": machine, **result}, indent=1) + "\n")
    print(*(f"{name}: {value}" for name, value in result.items()), sep="\n")
    return 1 if result["differs"] or result["crashed"] or not result["done"] else 0


if __name__ == "__main__":
    sys.exit(main())
