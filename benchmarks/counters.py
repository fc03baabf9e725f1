"""Counts with Nsight Compute what loops of products and warp_tiles.matmul do on a GPU, beside cuBLAS.

    python benchmarks/counters.py --only "float16 4096 128x256x64*" "sm_89 loop tf32*" --json FILE

Needs ncu on PATH, a driver that lets it count, and torch. Each row is one kernel in one call, after three calls that
are not counted. A call of several kernels has a row for each. Names are those of benchmarks/loops.py, other_gpus.py and
matmul.py, the latter behind "matmul" or "torch"; "cublas" is torch.matmul beside a loop. Percentages are of what a unit
can do in the cycles in which multiprocessors are busy; those of the L2 cache and of memory are of all cycles.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import loops, matmul, other_gpus, runner
from benchmarks.machine import gpu_record, torch_with_warp
from benchmarks.speed.builds import BuildStore
from benchmarks.speed.sides import Side

WARM_CALLS = 3
SEPARATOR = "separator"  # a kernel before each call, by which the kernels of calls are told apart

METRICS = {
    "time_us": "gpu__time_duration.sum",
    "registers": "launch__registers_per_thread",
    "tensor_pipe_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue_percent": "sm__issue_active.avg.pct_of_peak_sustained_active",
    "fma_pipe_percent": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "alu_pipe_percent": "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",
    "shared_memory_percent": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_active",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l2_bytes_percent": "lts__t_bytes.avg.pct_of_peak_sustained_elapsed",
    "memory_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "busy_percent": "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
}
# warps of a scheduler that wait, on average, in a cycle in which it issues
STALLS = {
    name: f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio"
    for name in (
        "barrier", "dispatch_stall", "gmma", "lg_throttle", "long_scoreboard", "math_pipe_throttle", "mio_throttle",
        "no_instruction", "not_selected", "short_scoreboard", "wait",
    )
}  # fmt: skip


def calls(torch: Any, only: Sequence[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the calls to count, with the names of their rows."""
    for row in runner.select(loops.ROWS, only):
        call = loops.call_of(torch, row)
        yield row.name, call.launch.launch
        yield f"cublas {row.name}", partial(torch.matmul, call.a, call.b)
    others = runner.select(other_gpus.chosen_rows(), only)
    store = BuildStore(runner.BUILDS)
    store.fill([row.build for row in others], len(os.sched_getaffinity(0)))
    for other in others:
        side = Side(store, other.build, other.part)  # a launch does not keep its arrays
        yield other.name, side.launch(other.part.calls, False).run
    for case in runner.select(matmul.ROWS, only):
        torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
        sides = matmul.KINDS[case.kind](torch, case).runs
        yield f"matmul {case.name}", sides["tiles"]
        yield f"torch {case.name}", sides.get("torch adding", sides["torch"])


def run(only: Sequence[str]) -> None:
    """Make all calls. The profiler counts the last one of each, behind a separator."""
    import warp as wp

    from benchmarks.speed.clock import separator

    torch = torch_with_warp()
    for name, call in calls(torch, only):
        for _ in range(WARM_CALLS):
            call()
        wp.launch(separator, dim=1, device=runner.DEVICE)
        torch.cuda.synchronize()
        print(f"counting: {name}", flush=True)
        torch.cuda.profiler.start()
        wp.launch(separator, dim=1, device=runner.DEVICE)
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def rows_of(output: str) -> list[dict[str, Any]]:
    """The rows of ncu's output: raw values as CSV, between lines of this script and of ncu."""
    lines = output.splitlines()
    names = [line.removeprefix("counting: ") for line in lines if line.startswith("counting: ")]
    table = list(csv.DictReader(line for line in lines if line.startswith('"')))
    kernels = [kernel for kernel in table if kernel["ID"]]  # the first line has the units
    return list(_by_call(names, kernels))


def _by_call(names: Iterable[str], kernels: Iterable[dict[str, str]]) -> Iterator[dict[str, Any]]:
    left, name, number = iter(names), "", 0
    for kernel in kernels:
        if kernel["Kernel Name"].startswith(SEPARATOR):
            name, number = next(left), 0
            continue
        number += 1
        values = {key: round(_number(kernel[metric]), 2) for key, metric in METRICS.items()}
        values["time_us"] = round(values["time_us"] / 1e3, 2)  # ncu has nanoseconds
        stalls = {key: round(_number(kernel[metric]), 2) for key, metric in STALLS.items()}
        shown = f"{name}, kernel {number}" if number > 1 else name
        yield {"name": shown, "kernel": kernel["Kernel Name"][:60], **values, "stalls": stalls}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="results; rows that are not run are kept")
    parser.add_argument("--only", nargs="+", required=True, metavar="NAME", help="patterns or beginnings of names")
    parser.add_argument("--run", action="store_true", help="make the calls; ncu starts this script so")
    options = parser.parse_args(arguments)
    if options.run:
        run(options.only)
        return 0
    metrics = ",".join([*METRICS.values(), *STALLS.values()])
    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off"]
    command += ["--clock-control", "none", "--metrics", metrics]
    command += [sys.executable, str(Path(__file__).resolve()), "--run", "--only", *options.only]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)
        return done.returncode
    record = runner.Record(options.json, gpu_record() | {"profiler": "Nsight Compute, ncu --clock-control none"})
    for row in rows_of(done.stdout):
        record.put(row)
        print(f"{row['name']}: {row['kernel']}, {row['time_us']} us")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
