"""Draws every picture of docs/ from the results of the benchmarks.

    python -m benchmarks.figures          # draw what differs from the results
    python -m benchmarks.figures --check  # only name it; the exit status is then 1

Each picture carries a digest of the results that it shows and of the code that drew it, in the field "Digest" of its
PNG metadata, and the name of the file of results in "Source". `--results` and `--into` name other folders, for example
to look at a measurement before it is committed. Drawing needs matplotlib, the extra `plot`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.drawing import cold_start, shares, style

ROOT = Path(__file__).resolve().parent.parent
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"


@dataclass(frozen=True)
class Picture:
    """A picture of docs/.

    Attributes:
        name: Name of its file, without the folder.
        source: Name of the file of results.
        data: The results that it shows, as JSON values.
        draw: Draws them.
    """

    name: str
    source: str
    data: tuple[Any, ...]
    draw: Callable[..., Figure]

    @property
    def digest(self) -> str:
        """SHA-256 of the results and of the code that draws."""
        found = hashlib.sha256(json.dumps(self.data, sort_keys=True).encode("utf-8"))
        for path in sorted(Path(style.__file__).parent.glob("*.py")):
            found.update(hashlib.sha256(path.read_bytes()).digest())
        return found.hexdigest()


def pictures(results: Path = RESULTS) -> Iterator[Picture]:
    """Every picture of the files in a folder of results."""
    record = _read(results / "client_speed.json")
    run = record["runs"][0]
    where = f"one {run['gpu']}, {run['cores']} cores, Warp {run['warp']}"
    yield Picture(
        "cold_start.png", "client_speed.json", (cold_start.first_steps(record["rows"]), where), cold_start.draw
    )
    record = _read(results / "gemm.json")
    for name in ("loop", "backward_loop"):
        rows = [row for row in record["rows"] if row["part"] == name]
        run = record["runs"][rows[-1]["run"]]
        heading = f"{record['parts'][name]['title']}; {run['gpu']}, Warp {run['warp']}"
        data = shares.beside_cublas(rows), heading, "cuBLAS's speed (its time over that of a side)"
        yield Picture(f"gemm_{name}.png", "gemm.json", data, shares.draw)
    record = _read(results / "other_gpus.json")
    heading = f"Loops over 4096 x 4096 x 4096 by mma.sync or fma on one {record['runs'][-1]['gpu']}"
    data = shares.of_other_gpus(record["rows"]), heading, "the rate of the same instruction from registers alone"
    yield Picture("other_gpus.png", "other_gpus.json", data, shares.draw)


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def facts(path: Path) -> dict[str, str]:
    """The texts in the metadata of a PNG file. There are none if it does not exist."""
    data = path.read_bytes() if path.exists() else b""
    found, place = {}, 8
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"tEXt":
            name, _, text = data[place + 8 : place + 8 + size].partition(b"\0")
            found[name.decode("latin-1")] = text.decode("latin-1")
        place += 12 + size
    return found


def outdated(results: Path = RESULTS, folder: Path = DOCS) -> list[Picture]:
    """The pictures that a folder lacks, or that were drawn from other results or by other code."""
    return [one for one in pictures(results) if facts(folder / one.name).get("Digest") != one.digest]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="draw nothing, and name what would be drawn")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results")
    parser.add_argument("--into", type=Path, default=DOCS, help="folder of pictures")
    arguments = parser.parse_args()
    found = outdated(arguments.results, arguments.into)
    for picture in found:
        path = arguments.into / picture.name
        if not arguments.check:
            style.save(picture.draw(*picture.data), path, {"Source": picture.source, "Digest": picture.digest})
        print(f"{path} {'differs from' if arguments.check else 'drawn from'} {picture.source}")
    return int(arguments.check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
