"""Compares the speed of products on a GPU: warp_tiles and unmodified Warp, in one run.

    python benchmarks/gemm.py --json benchmarks/results/gemm.json
    python -m benchmarks.figures

Parts (`--part`) and rows (`--only`, a pattern such as "fp16 64x64x64*") can be run one by one: the file is
written after each row and keeps the others. Each row names its run. `--build-only` fills the folder of builds and needs
no GPU. Warp's builds in it are valid for every state of this project. The part `every_small` has 2,058 rows in random
order, and is run only if `--part` names it. Warp's builds of all its rows take hours. `--built` measures only the rows
whose builds by Warp exist.

A separate process builds each side ahead of time. The builds are only loaded here. For the gradients of our loops this
process enables warp_tiles, so that `wp.Tape` multiplies whole arrays. Warp's own loops run their adjoint kernels.
Launches of the sides alternate. Times are medians by CUDA events. Results of the sides are compared first. A
difference that roundings do not explain is an error.

If torch with CUDA is installed, rows of the parts `loop` and `backward_loop` also have cuBLAS, called by torch.matmul
with the same arrays, and `to_cublas`, its time over ours. Without torch the run says so, and rows lack this column.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bounds
from benchmarks.machine import ROOT, gpu_record
from benchmarks.speed import cublas
from benchmarks.speed.builds import BuildStore
from benchmarks.speed.cells import PARTS, Entry, Part
from benchmarks.speed.ratios import geometric_mean, outlier
from warp_tiles.gemm.tile_config import TileConfig

Row = dict[str, Any]


def flops_of(entry: Entry, part: Part) -> int:
    """Floating-point operations of one launch. An adjoint counts as three products, as Warp replays the first."""
    cell = entry.ours
    products = 3 if cell.backward else 1
    if cell.form != "resident":
        return int(products * 2 * part.size**3)
    return products * 2 * cell.m * cell.n * cell.k * part.calls * part.blocks


def bound_of(
    entry: Entry, built: list[dict[str, Any]], rates: Mapping[str, float], multiprocessors: int, clock_ghz: float
) -> Row:
    """The bounds of a row's speed, in general and with the warp tiles of its configuration.

    ``tflops`` is the bound of products that move A, B and C in each call. ``kept_tflops`` is the bound of products that
    keep the sums of the forward product in registers.
    """
    cell = entry.ours
    forward = bounds.Product(cell.m, cell.n, cell.k, cell.a, cell.b, cell.c, cell.tf32)
    products = [forward, *forward.adjoints()] if cell.backward else [forward]
    flops = sum(product.flops for product in products)
    best = bounds.in_turn([bounds.ideal(product, cell.threads, rates) for product in products])
    kept = [bounds.ideal(product, cell.threads, rates, 2 if number else 0) for number, product in enumerate(products)]
    row = {
        "limit": best.limit,
        "tflops": round(best.tflops(flops, multiprocessors, clock_ghz), 1),
        "kept_tflops": round(bounds.in_turn(kept).tflops(flops, multiprocessors, clock_ghz), 1),
    }
    # arrangements of A and B in the product and in its adjoints
    arrangements = (("row_major", "row_major"), ("row_major", "col_major"), ("col_major", "row_major"))
    configs = {tuple(build["variant"]["arrangement"][:2]): build.get("tile_config") for build in built}
    chosen = [configs.get(arrangement) for arrangement, _ in zip(arrangements, products)]
    if None not in chosen:
        parts = [bounds.configured(product, config, rates) for product, config in zip(products, chosen) if config]
        row["configured_tflops"] = round(bounds.in_turn(parts).tflops(flops, multiprocessors, clock_ghz), 1)
    return row


def load_sides(entry: Entry, part: Part, store: BuildStore, device: str, row: Row) -> dict[str, Any]:
    """Load every side that was built and can be launched. The errors of the others go into the row."""
    import warp as wp

    from benchmarks.speed.sides import Side

    sides = {}
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


def measure(
    entry: Entry, part: Part, store: BuildStore, rates: Mapping[str, float], device: str, torch: Any = None
) -> Row:
    """Compare the sides of one row and time them. With torch, cuBLAS is one of them."""
    import warp as wp

    from benchmarks.speed import timing
    from benchmarks.speed.sides import Launch, compare

    cell = entry.ours
    row: Row = {"name": entry.name, "types": entry.types, **asdict(cell)}
    sides = load_sides(entry, part, store, device, row)
    peers = [name for name, _ in entry.peers]
    if "tiles" in sides:
        row["difference"] = {name: compare(sides["tiles"], side) for name, side in sides.items() if name in peers}
    launches = {name: side.launch(part.calls, cell.backward) for name, side in sides.items()}
    if cell.backward:
        replayed = {name: side for name, side in sides.items() if side.replays_product}
        launches |= {f"{name} forward": side.launch(part.calls, False) for name, side in replayed.items()}
        for name in sides.keys() - replayed.keys():
            row[name]["forward_us"] = 0.0
    flops = dict.fromkeys(("tiles", *peers), flops_of(entry, part))
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
    if "median_us" in row["tiles"] and cell.form != "update":  # its sums stay in registers, and its loads count
        multiprocessors = wp.get_device(device).sm_count
        built = (store.record(entry.builds["tiles"]) or {}).get("builds", [])
        row["bound"] = bound_of(entry, built, rates, multiprocessors, row["tiles"]["clock_ghz"])
        row["bound"]["reached"] = round(row["tiles"]["tflops"] / row["bound"]["tflops"], 3)
        row["bound"]["kept_reached"] = round(row["tiles"]["tflops"] / row["bound"]["kept_tflops"], 3)
    return brief(row) if part.on_request else row


def brief(row: Row) -> Row:
    """Returns a shorter form of a row, for a long part."""
    kept: Row = {key: row[key] for key in ("name", "types", "ratio", "fastest_peer") if key in row}
    sides = {name: row[name] for name in ("warp", "scalar", "tiles") if name in row}
    kept |= {
        name: {key: side[key] for key in ("median_us", "tflops", "error") if key in side}
        for name, side in sides.items()
    }
    built = [(build["provider"], build["tile_config"]) for build in row["builds"]]
    return kept | {"built_as": [TileConfig.from_json(config).describe() if config else name for name, config in built]}


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


# ---- the file


def summary(rows: list[Row], loop: bool) -> dict[str, Row]:
    """Geometric mean, least and number of the ratios, by dtypes and over all. For a loop, also the best of a side.

    ``outlier`` names a row on which the mean of its dtypes hangs, with the mean without it.
    """
    found: dict[str, Row] = {}
    for types in (*dict.fromkeys(row["types"] for row in rows), "all"):
        selected = [row for row in rows if types in (row["types"], "all")]
        ratios = [row["ratio"] for row in selected if "ratio" in row]
        line: Row = {"rows": len(selected), "ratios": len(ratios), "geometric_mean": geometric_mean(ratios)}
        line["least"] = min(ratios, default=None)
        hanging = outlier(selected) if types != "all" else None
        if hanging is not None:
            line["outlier"] = {"name": hanging[0]["name"], "ratio": hanging[0]["ratio"], "mean_without": hanging[1]}
        adjoints = [row["adjoint_ratio"] for row in selected if "adjoint_ratio" in row]
        if adjoints:
            line["adjoint_geometric_mean"] = geometric_mean(adjoints)
        reached = [row["bound"]["reached"] for row in selected if "bound" in row]
        if reached:
            line["of_the_bound"] = geometric_mean(reached)
            line["of_the_bound_with_kept_sums"] = geometric_mean(
                row["bound"]["kept_reached"] for row in selected if "bound" in row
            )
        beside = [row["to_cublas"] for row in selected if "to_cublas" in row]
        if beside:
            line["to_cublas"] = {"ratios": len(beside), "geometric_mean": geometric_mean(beside)}
            line["to_cublas"] |= {"least": min(beside), "greatest": max(beside)}
        if loop and types != "all":
            for side in ("tiles", "warp"):
                timed = [row for row in selected if "tflops" in row.get(side, {})]
                if timed:
                    best = max(timed, key=lambda row: float(row[side]["tflops"]))
                    line[f"best_{side}"] = {"name": best["name"], "tflops": best[side]["tflops"]}
            if "best_tiles" in line and "best_warp" in line:
                line["best_ratio"] = round(line["best_tiles"]["tflops"] / line["best_warp"]["tflops"], 3)
        found[types] = line
    return found


def table_text(head: dict[str, Any], rows: Iterable[Row]) -> str:
    """The JSON text of an object and its ``rows``, each row on its own line."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{json.dumps(head, indent=1).removesuffix(chr(10) + "}")},\n "rows": [\n{lines}\n]}}'


def text_of(data: dict[str, Any]) -> str:
    """The JSON text of results, each row on its own line."""
    parts = []
    for name, part in data["parts"].items():
        head = {key: value for key, value in part.items() if key != "rows"}
        parts.append(f"{json.dumps(name)}: {table_text(head, part['rows'])}")
    runs = json.dumps(data["runs"], indent=1)
    return f'{{"runs": {runs},\n"parts": {{\n' + ",\n".join(parts) + "\n}}\n"


class Record:
    """The file of results, written after each row."""

    def __init__(self, path: Path | None, run: dict[str, Any]) -> None:
        self._path = path
        known = json.loads(path.read_text()) if path and path.exists() else {"runs": [], "parts": {}}
        self.data: dict[str, Any] = known
        self.data["runs"].append(run)

    def rows(self, part: Part) -> dict[str, Row]:
        """Rows of a part by name."""
        return {row["name"]: row for row in self.data["parts"].get(part.name, {}).get("rows", [])}

    def has(self, part: Part, entry: Entry) -> bool:
        """Returns True if the row was measured with the sources and provider of this run, and beside the same peers."""
        row, runs = self.rows(part).get(entry.name), self.data["runs"]
        if row is None:
            return False
        then, now = runs[row["run"]], runs[-1]
        if part.whole and now.get("cublas") == cublas.TIMED != then.get("cublas"):
            return False
        return all(then[key] == now[key] for key in ("sources", "provider"))

    def put(self, part: Part, row: Row) -> None:
        """Store a row, and replace an older one of the same name."""
        row["run"] = len(self.data["runs"]) - 1
        rows = self.rows(part) | {row["name"]: row}
        ordered = [rows[entry.name] for entry in part.entries if entry.name in rows]
        settings = {"title": part.title, "calls": part.calls, "blocks": part.blocks, "size": part.size}
        settings |= {"cublas": cublas.note_of(part), "summary": summary(ordered, part.whole)}
        self.data["parts"][part.name] = {**settings, "rows": ordered}
        if self._path:
            fresh = self._path.with_suffix(".tmp")
            fresh.write_text(text_of(self.data))
            os.replace(fresh, self._path)


def line_of(row: Row) -> str:
    """Returns one line for the terminal."""
    sides = [name for name in ("warp", "scalar", "tiles", "cublas") if name in row]
    shown = [f"{name} {row[name].get('tflops') or 'failed: ' + row[name].get('error', '')[:70]}" for name in sides]
    parts = [f"{row['name']}: {', '.join(shown)} TFLOP/s"]
    parts.append(f"ratio {row['ratio']:.2f}" if "ratio" in row else "no ratio")
    if "to_cublas" in row:
        parts.append(f"{row['to_cublas']:.2f} of cuBLAS's speed")
    if "bound" in row:
        parts.append(f"{row['bound']['reached']:.0%} of the bound {row['bound']['tflops']}")
    if "median_us" in row.get("loads", {}):
        parts.append(f"loads alone {row['loads']['median_us']} of {row['tiles'].get('median_us')} us")
    by = row["built_as"] if "built_as" in row else dict.fromkeys(build["provider"] for build in row["builds"])
    parts.append("by " + (", ".join(by) or "none"))
    return ", ".join(parts)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="results; rows that are not run are kept")
    usual = [name for name, part in PARTS.items() if not part.on_request]
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=usual)
    parser.add_argument("--only", nargs="+", default=["*"], help='patterns of row names, e.g. "fp16 64x64x64*"')
    parser.add_argument("--missing", action="store_true", help="leave out rows that the file has for these sources")
    parser.add_argument("--provider", default="auto", help="provider of our products")
    parser.add_argument("--builds", type=Path, default=ROOT / "build" / "benchmarks", help="folder of finished builds")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="compiler processes")
    parser.add_argument("--built", action="store_true", help="leave out rows with a peer that is not built")
    parser.add_argument("--alone", action="store_true", help="neither build nor time peers")
    parser.add_argument("--build-only", action="store_true", help="fill the folder of builds; needs no GPU")
    parser.add_argument("--again", action="store_true", help="try failed builds again")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no row after this time")
    parser.add_argument("--rate", nargs="+", default=[], metavar="TYPES=FLOP", help="dense rates, see bounds.py")
    return parser.parse_args()


def main() -> int:
    """Entry point."""
    arguments = parse()
    start = time.monotonic()
    rates = {**bounds.RATES, **{name: float(value) for name, value in (rate.split("=") for rate in arguments.rate)}}
    store = BuildStore(arguments.builds, arguments.provider)
    wanted = [
        (part, entry)
        for part in (PARTS[name] for name in arguments.part)
        for entry in part.entries
        if any(fnmatch.fnmatch(entry.name, pattern) for pattern in arguments.only)
    ]
    if arguments.alone:
        wanted = [(part, replace(entry, peers=(), floor=None)) for part, entry in wanted]
    if arguments.built:
        wanted = [(part, entry) for part, entry in wanted if all(store.record(build) for _, build in entry.peers)]
    store.fill([build for _, entry in wanted for build in entry.builds.values()], arguments.workers, arguments.again)
    if arguments.build_only:
        return 0
    from benchmarks.speed import timing
    from benchmarks.speed.sides import WrongResultError

    device = "cuda:0"
    torch, reason = cublas.find((part for part, _ in wanted), arguments.alone)
    if torch is None:
        print(f"cuBLAS: {reason}", file=sys.stderr)
    record = Record(arguments.json, {**gpu_record(arguments.provider), "rates": rates, **cublas.facts(torch, reason)})
    timing.warm_up(device)
    wrong = []
    for part, entry in wanted:
        if arguments.missing and record.has(part, entry):
            continue
        if time.monotonic() - start > arguments.seconds:
            print("out of time; --missing measures the rest", file=sys.stderr)
            break
        try:
            row = measure(entry, part, store, rates, device, torch)
        except WrongResultError as error:
            wrong.append(f"{part.name}: {entry.name}: {error}")
            row = {"name": entry.name, "types": entry.types, "wrong": str(error)}
            print(f"WRONG RESULT {wrong[-1]}", file=sys.stderr, flush=True)
        else:
            print(f"{part.name}: {line_of(row)}", file=sys.stderr, flush=True)
        record.put(part, row)
        if not timing.is_usable(device):
            print(f"{entry.name} left the GPU unusable for this process; --missing continues after it", file=sys.stderr)
            return 2
    for name in arguments.part:
        for types, line in record.data["parts"].get(name, {}).get("summary", {}).items():
            print(f"{name} {types}: {json.dumps(line)}", file=sys.stderr)
    print("\n".join(f"WRONG RESULT {line}" for line in wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
