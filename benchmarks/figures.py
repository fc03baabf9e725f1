"""Draws every picture of docs/ from the results of the benchmarks.

    python -m benchmarks.figures          # draw what differs from the results
    python -m benchmarks.figures --check  # only name it; the exit status is then 1

Each picture carries a digest of the results that it shows and of the code that drew it, in the field "Digest" of its
PNG metadata. Drawing needs matplotlib, the extra `plot`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.drawing import cold_start, shares, style
from benchmarks.machine import ROOT
from benchmarks.result_values import result

DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Picture:
    """A picture of docs/.

    Attributes:
        name: Name of its file, without the folder.
        data: The results that it shows, as JSON values.
        draw: Draws them.
    """

    name: str
    data: tuple[Any, ...]
    draw: Callable[..., Figure]

    @property
    def digest(self) -> str:
        """SHA-256 of the results and of the code that draws."""
        found = hashlib.sha256(json.dumps(self.data, sort_keys=True).encode("utf-8"))
        for path in sorted(Path(style.__file__).parent.glob("*.py")):
            found.update(hashlib.sha256(path.read_bytes()).digest())
        return found.hexdigest()

    @property
    def is_outdated(self) -> bool:
        """True if docs/ lacks it, or has one of other results or other code."""
        path = DOCS / self.name
        return not path.exists() or f"Digest\0{self.digest}".encode() not in path.read_bytes()


def pictures() -> Iterator[Picture]:
    """Every picture."""
    record = result("client_speed")
    run = next(record["runs"][row["run"]] for row in record["rows"] if row["name"] == "starts humanoid")
    where = f"one {run['gpu']}, {run['cores']} cores, Warp {run['warp']}"
    yield Picture("cold_start.png", (cold_start.first_steps(record["rows"]), where), cold_start.draw)
    record = result("gemm")
    for name in ("loop", "backward_loop"):
        rows = [row for row in record["rows"] if row["part"] == name]
        run = record["runs"][rows[-1]["run"]]
        heading = f"{record['parts'][name]['title']}; {run['gpu']}, Warp {run['warp']}"
        data = shares.beside_cublas(rows), heading, "cuBLAS's speed (its time over that of a side)"
        yield Picture(f"gemm_{name}.png", data, shares.draw)
    record = result("other_gpus")
    heading = f"Loops over 4096 x 4096 x 4096 by mma.sync or fma on one {record['runs'][-1]['gpu']}"
    data = shares.of_other_gpus(record["rows"]), heading, "the rate of the same instruction from registers alone"
    yield Picture("other_gpus.png", data, shares.draw)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only name pictures that differ from the results")
    check, found = parser.parse_args().check, [picture for picture in pictures() if picture.is_outdated]
    for picture in found:
        if not check:
            style.save(picture.draw(*picture.data), DOCS / picture.name, {"Digest": picture.digest})
        print(f"docs/{picture.name} {'differs from' if check else 'drawn from'} the results")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
