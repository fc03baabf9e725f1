"""Compares the speed of this checkout with that of another state of it, on one GPU in one run.

    git worktree add ../before COMMIT
    (cd ../before && python benchmarks/gemm.py --alone --build-only --builds /tmp/builds)
    python benchmarks/gemm.py --alone --build-only --builds /tmp/builds
    python benchmarks/against.py --builds /tmp/builds --before DIGEST --json benchmarks/results/against.json

The second and third command fill a folder and need no GPU. DIGEST is the last part of the name of the folder that the
second one made. The rows are those of ``benchmarks/gemm.py``. Launches of both states alternate. Times are medians by
CUDA events. Rows are not timed if both states have the same machine code.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.gemm import table_text
from benchmarks.machine import ROOT, gpu_record, source_digest
from benchmarks.speed.builds import Build, BuildStore
from benchmarks.speed.builds import Cell as AnyCell
from benchmarks.speed.cells import PARTS, Cell, Entry, Part
from benchmarks.speed.cubin import sections
from benchmarks.speed.ratios import geometric_mean

Row = dict[str, Any]


class EarlierBuild(Build[Cell]):
    """A build of the earlier state. Its module has its own name, because Warp treats equal names as one module.

    Its gradients are those of its adjoint kernels, because products of whole arrays would be those of this state.
    """

    @property
    def multiplies_whole_arrays(self) -> bool:
        """See :class:`Build`."""
        return False

    @property
    def module(self) -> str:
        """Name of its Python module."""
        return f"before_{self.cell.name}"


class StateBuildStore(BuildStore):
    """The builds of one state.

    Args:
        root: Folder of the builds.
        digest: Digest of the state's sources.
    """

    def __init__(self, root: Path, digest: str) -> None:
        super().__init__(root, "auto")
        self._tiles = f"tiles-auto-{digest}"

    def unpack(self, build: Build[AnyCell], target: Path) -> Path:
        """See :meth:`BuildStore.unpack`. Files are renamed like the module."""
        if not isinstance(build, EarlierBuild):
            return super().unpack(build, target)
        plain = Build(build.cell, build.side)
        source = super().unpack(plain, target)
        for path in list(target.iterdir()):
            path.rename(path.with_name(path.name.replace(plain.module, build.module)))
        renamed = target / f"{build.module}.py"
        renamed.write_text(source.read_text())
        return renamed


def machine_code(store: BuildStore, entry: Entry) -> list[bytes]:
    """Returns the machine code of a finished build: the ELF sections of its functions."""
    (packed,) = store.folder(entry.builds["tiles"]).glob("*.cubin.xz")
    return [content for name, content in sections(lzma.decompress(packed.read_bytes())) if name.startswith(".text.")]


def measure(entry: Entry, part: Part, stores: dict[str, BuildStore], device: str, repeats: int) -> Row:
    """Time one row of both states."""
    from benchmarks.speed import timing
    from benchmarks.speed.sides import Side, compare

    row: Row = {"part": part.name, "name": entry.name, "types": entry.types}
    if machine_code(stores["before"], entry) == machine_code(stores["now"], entry):
        return row | {"ratio": 1.0, "same_code": True}
    build = entry.builds["tiles"]
    builds = {"before": EarlierBuild(build.cell, build.side), "now": build}
    sides = {name: Side(store, builds[name], part, device, False) for name, store in stores.items()}
    compare(sides["now"], sides["before"])
    launches = {name: side.launch(part.calls, build.cell.backward) for name, side in sides.items()}
    times = timing.time_alternately(launches, device, repeats)
    for name, found in times.items():
        row[f"{name}_us"], row[f"{name}_spread_us"] = found.median_us, found.spread_us
    return row | {"ratio": round(times["before"].median_us / times["now"].median_us, 4)}


def main() -> int:
    """Entry point."""
    usual = [name for name, part in PARTS.items() if not part.on_request]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builds", type=Path, default=ROOT / "build" / "benchmarks", help="folder of finished builds")
    parser.add_argument("--before", required=True, help="digest of the other state's sources")
    parser.add_argument("--now", default=source_digest(), help="digest of the sources that this state was built from")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--part", nargs="+", choices=usual, default=usual)
    parser.add_argument("--repeats", type=int, default=24)
    arguments = parser.parse_args()
    from benchmarks.speed import timing

    device = "cuda:0"
    stores: dict[str, BuildStore] = {
        "before": StateBuildStore(arguments.builds, arguments.before),
        "now": StateBuildStore(arguments.builds, arguments.now),
    }
    head: Row = {"before": arguments.before, "now": arguments.now, **gpu_record("auto")}
    timing.warm_up(device)
    rows: list[Row] = []
    start = time.monotonic()
    for name in arguments.part:
        for entry in PARTS[name].entries:
            if any(store.record(entry.builds["tiles"]) is None for store in stores.values()):
                print(f"{name}: {entry.name} is not built", file=sys.stderr)
                continue
            rows.append(measure(entry, PARTS[name], stores, device, arguments.repeats))
            print(f"{name}: {entry.name}: {rows[-1]['ratio']:.3f}", file=sys.stderr, flush=True)
    ratios = [row["ratio"] for row in rows]
    timed = [row["ratio"] for row in rows if "same_code" not in row]
    head["summary"] = {
        "rows": len(rows),
        "same_code": len(rows) - len(timed),
        "geometric_mean": geometric_mean(ratios),
        "geometric_mean_of_timed": geometric_mean(timed),
        "median_of_timed": statistics.median(timed) if timed else None,
        "least": min(ratios, default=None),
        "seconds": round(time.monotonic() - start, 1),
    }
    fresh = arguments.json.with_suffix(".tmp")
    fresh.write_text(table_text(head, rows) + "\n")
    os.replace(fresh, arguments.json)
    print(json.dumps(head["summary"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
