"""Compares the speed of products on a GPU: warp_tiles and unmodified Warp, in one run.

    python benchmarks/gemm.py --json benchmarks/results/gemm.json
    python -m benchmarks.figures

Rows of a part can be run one by one (`--only "loop fp16*"`). `--build-only` fills the folder of builds and needs no
GPU. Warp's builds in it are valid for every state of this project.

A separate process builds each side ahead of time. The builds are only loaded here. For the gradients of our loops this
process enables warp_tiles, so that `wp.Tape` multiplies whole arrays. Warp's own loops run their adjoint kernels.
Launches of the sides alternate. Times are medians by CUDA events. Results of the sides are compared first. A
difference that roundings do not explain is an error.

If torch with CUDA is installed, rows of the parts `loop` and `backward_loop` also have cuBLAS, called by torch.matmul
with the same arrays, and `to_cublas`, its time over ours. Without torch the run says so, and rows lack this column.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import find_torch, gpu_record, torch_versions
from benchmarks.runner import Row
from benchmarks.speed import cublas, timing
from benchmarks.speed.builds import BuildStore
from benchmarks.speed.cells import ENTRIES, PARTS, Entry
from benchmarks.speed.sides import Side, compare
from benchmarks.speed.timing import Launch


def flops_of(entry: Entry) -> int:
    """Floating-point operations of one launch. An adjoint counts as three products, as Warp replays the first."""
    cell, part = entry.ours, PARTS[entry.part]
    products = 3 if cell.backward else 1
    if cell.form != "resident":
        return int(products * 2 * part.size**2 * (part.depth or part.size))
    return products * 2 * cell.m * cell.n * cell.k * part.calls * part.blocks


def load_sides(entry: Entry, store: BuildStore, device: str, row: Row) -> dict[str, Any]:
    """Load every side that was built and can be launched. The errors of the others go into the row."""
    import warp as wp

    sides, part = {}, PARTS[entry.part]
    exact = "bfloat16" in (entry.ours.a, entry.ours.b)
    for name, build in entry.builds.items():
        record = store.record(build) or {"error": "not built"}
        if name == "warp" and not record.get("cublasdx_functions", 1):
            record = {"error": "Warp fell back to its scalar path"}
        if name == "tiles":
            kept = ("symbol", "provider", "tile_config")
            row["builds"] = [{key: built[key] for key in kept} for built in record.get("builds", [])]
        row[name] = {"dtypes": [build.cell.a, build.cell.b, build.cell.c], "build_seconds": record.get("seconds")}
        if "error" not in record:
            try:
                side = Side(store, build, part, device, exact)
                side.command(1, build.cell.backward).launch()
                wp.synchronize_device(device)
                sides[name] = side
            except Exception as error:
                record = {"error": f"{type(error).__name__}: {error}"}
        if "error" in record:
            row[name]["error"] = record["error"][:300]
    return sides


def measure(entry: Entry, store: BuildStore, device: str, torch: Any = None) -> Row:
    """Compare the sides of one row and time them. With torch, cuBLAS is one of them."""
    cell, part = entry.ours, PARTS[entry.part]
    row: Row = {"part": part.name, "types": entry.types, **asdict(cell)}
    sides = load_sides(entry, store, device, row)
    peers = [name for name, _ in entry.peers]
    if "tiles" in sides:
        row["difference"] = {name: compare(sides["tiles"], side) for name, side in sides.items() if name in peers}
    launches = {name: side.launch(part.calls, cell.backward) for name, side in sides.items()}
    if cell.backward:
        replayed = {name: side for name, side in sides.items() if side.replays_product}
        launches |= {f"{name} forward": side.launch(part.calls, False) for name, side in replayed.items()}
        for name in sides.keys() - replayed.keys():
            row[name]["forward_us"] = 0.0
    flops = dict.fromkeys(("tiles", *peers), flops_of(entry))
    if torch and part.whole and "tiles" in sides and (beside := cublas.load(torch, sides["tiles"], row)):
        launches["cublas"], flops["cublas"] = Launch(beside.run), beside.flops
    for name, times in timing.time_alternately(launches, device).items():
        found, _, forward = name.partition(" ")
        if forward:
            row[found]["forward_us"] = times.median_us
        else:
            row[found] |= asdict(times)
            if found in flops:
                row[found]["tflops"] = round(flops[found] / times.median_us / 1e6, 3)
    add_ratios(row, peers)
    cublas.add_ratio(row)
    return row


def add_ratios(row: Row, peers: Iterable[str]) -> None:
    """Add our speed over that of the fastest peer, and for adjoints the same without the products that are replayed."""
    timed = [name for name in peers if "median_us" in row[name]]
    if not timed or "median_us" not in row["tiles"]:
        return
    best = min(timed, key=lambda name: float(row[name]["median_us"]))
    row["fastest_peer"] = best
    row["ratio"] = round(row[best]["median_us"] / row["tiles"]["median_us"], 3)
    if "forward_us" in row["tiles"]:
        alone = {name: row[name]["median_us"] - row[name]["forward_us"] for name in (best, "tiles")}
        if min(alone.values()) > 0:
            row["adjoint_ratio"] = round(alone[best] / alone["tiles"], 3)


# ---- means


def summary(rows: list[Row], loop: bool) -> dict[str, Row]:
    """The ratios of a part, by dtypes. For a loop, also the best rows of both sides."""
    found: dict[str, Row] = {}
    for types in dict.fromkeys(row["types"] for row in rows):
        selected = [row for row in rows if row["types"] == types]
        line = runner.summary([row["ratio"] for row in selected if "ratio" in row])
        if beside := [row["to_cublas"] for row in selected if "to_cublas" in row]:
            line["to_cublas"] = runner.summary(beside)
        if loop:
            for side in ("tiles", "warp"):
                if timed := [row for row in selected if "tflops" in row.get(side, {})]:
                    best = max(timed, key=lambda row: float(row[side]["tflops"]))
                    line[f"best_{side}"] = {"name": best["name"], "tflops": best[side]["tflops"]}
            if "best_tiles" in line and "best_warp" in line:
                line["best_ratio"] = round(line["best_tiles"]["tflops"] / line["best_warp"]["tflops"], 3)
        found[types] = line
    return found


def parts(rows: list[Row]) -> Row:
    """The settings and the summary of each part."""
    found = {}
    for name, part in PARTS.items():
        if selected := [row for row in rows if row.get("part") == name]:
            settings = {"title": part.title, "calls": part.calls, "blocks": part.blocks, "size": part.size}
            found[name] = {**settings, "summary": summary(selected, part.whole)}
    return {"parts": found}


def line_of(row: Row) -> str:
    sides = [name for name in ("warp", "scalar", "tiles", "cublas") if name in row]
    shown = [f"{name} {row[name].get('tflops') or 'failed: ' + row[name].get('error', '')[:70]}" for name in sides]
    beside = f", {row['to_cublas']:.2f} of cuBLAS's speed" if "to_cublas" in row else ""
    return f"{', '.join(shown)} TFLOP/s, ratio {row.get('ratio')}{beside}"


def cases(options: argparse.Namespace) -> list[Entry]:
    return [replace(entry, peers=()) for entry in ENTRIES] if options.alone else list(ENTRIES)


def conditions(options: argparse.Namespace) -> Row:
    options.torch, reason = None, "no row of this run is compared with it"
    wanted = runner.select(cases(options), options.only)
    if not options.alone and any(PARTS[entry.part].whole for entry in wanted):
        options.torch, reason = find_torch()
    if options.torch is None:
        print(f"cuBLAS: {reason}", file=sys.stderr)
    return gpu_record(options.provider) | (torch_versions(options.torch) if options.torch else {"cublas": reason})


main = runner.command(
    __doc__,
    cases,
    lambda entry, options: measure(entry, options.store, runner.DEVICE, options.torch),
    conditions,
    options={
        "--provider": {"default": "auto", "help": "provider of our products"},
        "--alone": {"action": "store_true", "help": "neither build nor time peers"},
    },
    builds=lambda entry, options: entry.builds.values(),
    gpu=True,
    summarize=parts,
    described=line_of,
)


if __name__ == "__main__":
    sys.exit(main())
