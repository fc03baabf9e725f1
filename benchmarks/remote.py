"""Measures the cold start of a machine with a remote store, beside a local build and beside a store that is away.

    python benchmarks/remote.py --json benchmarks/results/remote.json

Each repeat runs in a fresh process with empty caches of Warp and of warp_tiles, without facts about the toolchain. The
time is from the import of warp_tiles to the last cubin. The store is a folder behind Python's HTTP server. No GPU is
needed.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.compile_time import ARCH, EIGHT, ONE, THREADS
from benchmarks.machine import cpu_record
from benchmarks.measure import Job, Kernel, build
from benchmarks.processes import served, trust_and_push
from benchmarks.runner import Row


@dataclass(frozen=True)
class Case:
    """Modules of one kernel each."""

    name: str
    kernels: tuple[Kernel, ...]


CASES = (Case("one module", (ONE,)), Case("eight modules", tuple(EIGHT)))


def compiled(case: Case, settings: dict[str, str], *, from_store: bool) -> float:
    """The seconds in which a fresh process with empty caches compiles the modules of a case."""
    with tempfile.TemporaryDirectory() as scratch:
        warp, tiles, out = (f"{scratch}/{name}" for name in ("warp", "tiles", "out"))
        given = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **settings}
        texts = tuple(kernel.source(None) for kernel in case.kernels)
        found = build(Job(texts, True, ARCH, THREADS, warp, tiles, out, tuple(given.items())))
    assert found["found"] == (len(texts) if from_store else 0), found
    return float(found["seconds"])


def measure(case: Case, options: argparse.Namespace) -> Row:
    """The median seconds of all sides. Before, the case fills the store."""
    compiled(case, options.pushing, from_store=False)
    times = runner.alternately(
        {side: partial(compiled, case, given, from_store=side == "store") for side, given in options.sides.items()},
        options.repeats,
    )
    medians = {side: statistics.median(found) for side, found in times.items()}
    away = {side: round(medians[side] - medians["local"], 3) for side in ("closed port", "silent")}
    return {"seconds": medians, "all_seconds": times, "away_s": away, **runner.ratio(times["store"], times["local"])}


def conditions(options: argparse.Namespace) -> Row:
    top = Path(options.stack.enter_context(tempfile.TemporaryDirectory()))
    store = top / "store"
    store.mkdir()
    trust, push = trust_and_push(top)
    options.pushing = {**trust, **push, "WARP_TILES_REMOTE": store.as_uri()}
    silent = options.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    remotes = {
        "store": options.stack.enter_context(served(store)),
        "closed port": "http://127.0.0.1:1",
        "silent": f"http://127.0.0.1:{silent.getsockname()[1]}",
    }
    options.sides = {"local": trust} | {side: {**trust, "WARP_TILES_REMOTE": url} for side, url in remotes.items()}
    return cpu_record() | {"server": "python"}


main = runner.command(__doc__, CASES, measure, conditions, repeats=5)


if __name__ == "__main__":
    sys.exit(main())
