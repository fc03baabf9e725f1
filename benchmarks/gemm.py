"""Compares the speed of products on a GPU: warp_tiles and unmodified Warp, or two states of warp_tiles, in one run.

    python benchmarks/gemm.py --json benchmarks/results/gemm.json
    python -m benchmarks.figures

Rows of a part can be run one by one (`--only "loop fp16*"`). `--build-only` fills the folder of builds and needs no
GPU. Warp's builds in it are valid for every state of this project.

A separate process builds each side ahead of time. The builds are only loaded here. For the gradients of our loops this
process enables warp_tiles, so that `wp.Tape` multiplies whole arrays. Warp's own loops run their adjoint kernels.
Launches of the sides alternate. Times are medians by CUDA events. Results of the sides are compared first. A
difference that roundings do not explain is an error.

Rows of the parts `loop` and `backward_loop` also have cuBLAS, called by torch.matmul with the same arrays, and
`to_cublas`, its time over ours. The other parts keep their tiles in shared memory, so cuBLAS has no counterpart.

Against another state, whose speed is the peer of each row that has other machine code:

    git worktree add ../before COMMIT
    (cd ../before && python benchmarks/gemm.py --alone --build-only --builds /tmp/builds)
    python benchmarks/gemm.py --before DIGEST --builds /tmp/builds --repeats 100 --json benchmarks/results/against.json

DIGEST is the last part of the name of the folder that the second command made.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import gpu_record, torch_record, torch_with_warp
from benchmarks.runner import Row
from benchmarks.speed import timing
from benchmarks.speed.builds import Build, BuildStore
from benchmarks.speed.cells import ENTRIES, PARTS, Entry
from benchmarks.speed.sides import Cublas, Side, compare
from benchmarks.speed.timing import Launch


def load_sides(entry: Entry, store: BuildStore, row: Row) -> dict[str, Side]:
    """Load every side that was built and can be launched. The errors of the others go into the row."""
    sides, part = {}, PARTS[entry.part]
    for name, build in entry.builds.items():
        record = store.record(build) or {"error": "not built"}
        if name == "warp" and not record.get("cublasdx_functions", 1):
            record = {"error": "Warp fell back to its scalar path"}
        row[name] = {"dtypes": [build.cell.a, build.cell.b, build.cell.c], "build_seconds": record.get("seconds")}
        if "error" not in record:
            try:
                sides[name] = Side(store, build, part)
                sides[name].results(1)
            except Exception as error:
                sides.pop(name, None)
                record = {"error": f"{type(error).__name__}: {error}"}
        if "error" in record:
            row[name]["error"] = record["error"][:300]
    return sides


def measure(entry: Entry, options: argparse.Namespace) -> Row:
    """Compare the sides of one row and time them. With torch, cuBLAS is one of them."""
    cell, part, store = entry.ours, PARTS[entry.part], options.store
    row: Row = {"part": part.name, "types": entry.types, **asdict(cell)}
    if options.before:
        codes = [store.machine_code(build) for build in entry.builds.values()]
        if codes[0] and codes[0] == codes[1]:
            return row | {"ratio": 1.0, "same_code": True}
    sides = load_sides(entry, store, row)
    launches = {name: side.launch(part.calls, cell.backward) for name, side in sides.items()}
    flops, peers = dict.fromkeys(launches, part.flops(cell)), [name for name in sides if name != "tiles"]
    if "tiles" in sides:
        row["difference"] = {name: compare(sides["tiles"], sides[name]) for name in peers}
        if options.torch and part.whole:
            beside = Cublas(options.torch, sides["tiles"])
            row["difference"]["cublas"] = compare(sides["tiles"], beside)
            row["cublas"] = {"dtypes": [cell.a, cell.b, cell.a]}
            launches["cublas"], flops["cublas"] = Launch(beside.run), beside.flops
    for name, times in timing.time_alternately(launches, options.repeats).items():
        row[name] |= asdict(times) | {"tflops": round(flops[name] / times.median_us / 1e6, 3)}
    add_ratios(row, peers)
    return row


def add_ratios(row: Row, peers: list[str]) -> None:
    """Add our speed over that of the fastest peer and of cuBLAS."""
    times = {name: row[name]["median_us"] for name in ("tiles", "cublas", *peers) if "median_us" in row.get(name, {})}
    if "tiles" in times and "cublas" in times:
        row["to_cublas"] = round(times["cublas"] / times["tiles"], 3)
    if "tiles" in times and peers:
        row["fastest_peer"] = min(peers, key=times.__getitem__)
        row["ratio"] = round(times[row["fastest_peer"]] / times["tiles"], 3)


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
    """The settings and the summary of each part; or the ratios to another state, of all and of other machine code."""
    if any("same_code" in row or "before" in row for row in rows):
        ratios = [row["ratio"] for row in rows if "ratio" in row]
        timed = [row["ratio"] for row in rows if "ratio" in row and "same_code" not in row]
        return {"summary": {"all": runner.summary(ratios), "timed": runner.summary(timed)}}
    found = {}
    for name, part in PARTS.items():
        if selected := [row for row in rows if row.get("part") == name]:
            settings = {"title": part.title, "calls": part.calls, "blocks": part.blocks, "size": part.size}
            found[name] = {**settings, "summary": summary(selected, part.whole)}
    return {"parts": found}


def line_of(row: Row) -> str:
    sides = [name for name in ("before", "warp", "scalar", "tiles", "cublas") if name in row]
    shown = [f"{name} {row[name].get('tflops') or 'failed: ' + row[name].get('error', '')[:70]}" for name in sides]
    beside = f", {row['to_cublas']:.2f} of cuBLAS's speed" if "to_cublas" in row else ""
    return f"{', '.join(shown)} TFLOP/s, ratio {row.get('ratio')}{beside}"


def cases(options: argparse.Namespace) -> list[Entry]:
    def peers(entry: Entry) -> tuple[tuple[str, Build[Any]], ...]:
        if options.before:
            return (("before", Build(entry.ours, "tiles", entry.arch, before=options.before)),)
        return () if options.alone else entry.peers

    return [replace(entry, peers=peers(entry)) for entry in ENTRIES]


def conditions(options: argparse.Namespace) -> Row:
    options.torch = None if options.alone or options.before else torch_with_warp()
    return torch_record() if options.torch else gpu_record() | {"before": options.before}


main = runner.command(
    __doc__,
    cases,
    measure,
    conditions,
    options={
        "--alone": {"action": "store_true", "help": "neither build nor time peers"},
        "--before": {"default": "", "metavar": "DIGEST", "help": "compare with builds of these sources"},
    },
    repeats=timing.REPEATS,
    builds=lambda entry, options: entry.builds.values(),
    gpu=True,
    summarize=parts,
    described=line_of,
)


if __name__ == "__main__":
    sys.exit(main())
