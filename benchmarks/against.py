"""Compares the speed of this checkout with that of another state of it, on one GPU in one run.

    git worktree add ../before COMMIT
    (cd ../before && python benchmarks/gemm.py --alone --build-only --builds /tmp/builds)
    python benchmarks/gemm.py --alone --build-only --builds /tmp/builds
    python benchmarks/against.py --builds /tmp/builds --before DIGEST --json FILE

The second and third command fill a folder and need no GPU. DIGEST is the last part of the name of the folder that the
second one made. The rows are those of ``benchmarks/gemm.py``. Launches of both states alternate. Times are medians by
CUDA events. Rows are not timed if both states have the same machine code.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import ROOT, gpu_record, source_digest
from benchmarks.runner import Row
from benchmarks.speed import timing
from benchmarks.speed.builds import Build, BuildStore
from benchmarks.speed.builds import Cell as AnyCell
from benchmarks.speed.cells import ENTRIES, PARTS, Cell, Entry
from benchmarks.speed.cubin import sections
from benchmarks.speed.sides import Side, compare


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


def measure(entry: Entry, options: argparse.Namespace) -> Row | None:
    """Time one row of both states."""
    stores: dict[str, BuildStore] = options.stores
    part, build = PARTS[entry.part], entry.builds["tiles"]
    if any(store.record(build) is None for store in stores.values()):
        print(f"{entry.name} is not built", file=sys.stderr)
        return None
    row: Row = {"part": part.name, "types": entry.types}
    if machine_code(stores["before"], entry) == machine_code(stores["now"], entry):
        return row | {"ratio": 1.0, "same_code": True}
    builds = {"before": EarlierBuild(build.cell, build.side), "now": build}
    sides = {name: Side(store, builds[name], part, runner.DEVICE, False) for name, store in stores.items()}
    compare(sides["now"], sides["before"])
    launches = {name: side.launch(part.calls, build.cell.backward) for name, side in sides.items()}
    times = timing.time_alternately(launches, runner.DEVICE, options.repeats)
    for name, found in times.items():
        row[f"{name}_us"], row[f"{name}_spread_us"] = found.median_us, found.spread_us
    return row | {"ratio": round(times["before"].median_us / times["now"].median_us, 4)}


def summary(rows: list[Row]) -> Row:
    """The ratios of all rows, and of those with other machine code."""
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    timed = [row["ratio"] for row in rows if "ratio" in row and "same_code" not in row]
    return {"summary": {"all": runner.summary(ratios), "timed": runner.summary(timed)}}


def conditions(options: argparse.Namespace) -> Row:
    digests = {"before": options.before, "now": options.now}
    options.stores = {name: StateBuildStore(options.builds, digest) for name, digest in digests.items()}
    return digests | gpu_record()


main = runner.command(
    __doc__,
    ENTRIES,
    measure,
    conditions,
    options={
        "--builds": {"type": Path, "default": ROOT / "build" / "benchmarks", "help": "folder of finished builds"},
        "--before": {"required": True, "help": "digest of the other state's sources"},
        "--now": {"default": source_digest(), "help": "digest of the sources that this state was built from"},
    },
    repeats=24,
    required=True,
    gpu=True,
    summarize=summary,
    described=lambda row: f"{row['ratio']:.3f}",
)


if __name__ == "__main__":
    sys.exit(main())
