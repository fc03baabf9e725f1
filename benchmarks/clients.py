"""Compares the cold start of real programs: unmodified Warp beside warp_tiles in one run, without a GPU.

    python benchmarks/clients.py --install DIR --json benchmarks/results/clients.json
    python benchmarks/clients.py --python DIR/bin/python --only newton_ik tile_cholesky

One step of each client runs in a fresh process with empty caches, once with Warp alone and once with warp_tiles. Its
launches are noted and not executed, and each module that it launches is compiled for sm_90, one after another. A client
takes the branches that it takes on Warp's CPU device. CPU seconds include compiler processes, and exclude imports and
the building of models, which are recorded apart.

`--starts` measures whole starts with the setting modules="all", in which launches load their modules for a fake GPU, as
rows "starts CLIENT": Warp; a first start, which writes a start list; a start with that list; a start with a store,
which a run that does not count has filled, behind Python's HTTP server; and a start with the default settings and an
installed wheel of the step's kernels for sm_90, whose size is recorded. All caches are empty. Compilations ahead of a
launch also run while the client is imported and its model is built, so if that phase takes longer than with Warp, the
difference is added to the seconds of the side.

The clients' packages are pinned and unmodified. `--install` puts them into a virtual environment, with this project.
Without it nothing is installed, and a client whose packages `--python` lacks is left out, with the reason.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.client_scripts.steps import ARCH, CLIENTS, MORE_PACKAGES, PINNED, missing
from benchmarks.machine import ROOT, cpu_record
from benchmarks.processes import ProcessError, environment, run_json, served, trust_and_push
from benchmarks.runner import Row

SIDES = ("warp", "tiles")


class LeftOut(Exception):  # noqa: N818
    """The reason why a client was not measured."""


def install(folder: Path) -> Path:
    """Create a virtual environment with the pinned packages and this project. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pins = [f"{name}=={version}" for name, version in PINNED.items()]
    subprocess.run([str(python), "-m", "pip", "install", "-q", *pins, *MORE_PACKAGES, f"{ROOT}[remote]"], check=True)
    return python


def run_side(python: Path, name: str, side: str, limit_s: float, *record: Path, **variables: str) -> dict[str, Any]:
    """Compile a client's step in a fresh process with empty caches.

    Args:
        *record: The start list of the side `start`.
        **variables: More variables of its environment.

    Raises:
        LeftOut: The process failed or took longer than the limit.
    """
    others = {key: value for key, value in os.environ.items() if not key.startswith("WARP_")}
    with tempfile.TemporaryDirectory() as folder:
        caches = {"WARP_CACHE_PATH": f"{folder}/warp", "WARP_TILES_CACHE_DIR": f"{folder}/tiles"}
        words = [name, side, f"{folder}/out", *map(str, record)]
        command = [str(python), "-m", "benchmarks.client_scripts.child", *words]
        try:
            environ = environment(others, **caches, **variables)
            found: dict[str, Any] = run_json(command, environ, folder=Path(folder), limit_s=limit_s)
        except ProcessError as error:
            raise LeftOut(f"{side}: {error.reason}") from None
    return found


def installed_wheel(python: Path, name: str, folder: Path, limit_s: float) -> tuple[Path, int]:
    """Make a wheel of the kernels of a client's step, and install it. Returns its place on the path, and its bytes.

    Raises:
        LeftOut: It could not be made.
    """
    distribution = (*CLIENTS[name].packages, "warp-lang")[0]
    words = ["bundle", "--wheel", "kernels==1", "--client", distribution, "--arch", str(ARCH), "-o", str(folder), "-m"]
    command = [str(python), "-m", "warp_tiles", *words, f"benchmarks.client_scripts.steps {name}"]
    run = subprocess.run(command, env=environment(), cwd=folder, capture_output=True, text=True, timeout=limit_s)
    if run.returncode:
        raise LeftOut(f"wheel: {run.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site", wheel.stat().st_size


def compared(sides: Mapping[str, dict[str, Any]]) -> Row:
    """One client's entry of the result.

    Raises:
        LeftOut: The sides launched different modules.
    """
    launched = [[(row["kernels"], row["threads"]) for row in sides[side]["rows"]] for side in SIDES]
    if launched[0] != launched[1]:
        raise LeftOut("the sides launched different modules")
    fields = ("cpu_s", "wall_s", "cubin_bytes", "mathdx_builds", "functions")
    tile_rows = [
        {"first_kernel": pair[0]["kernels"][0], "threads": pair[0]["threads"]}
        | {side: {field: row[field] for field in fields} for side, row in zip(SIDES, pair)}
        for pair in zip(*(sides[side]["rows"] for side in SIDES))
        if pair[0]["functions"]
    ]
    totals = ("cpu_s", "wall_s", "setup_cpu_s", "cubin_bytes", "mathdx_builds", "own_builds")
    tile_cpu = {side: round(sum(row[side]["cpu_s"] for row in tile_rows), 3) for side in SIDES}
    return {
        **{side: {field: sides[side][field] for field in totals} for side in SIDES},
        "ratio": round(sides["warp"]["cpu_s"] / sides["tiles"]["cpu_s"], 2),
        "modules": sides["warp"]["modules"],
        "tile_modules": {
            "modules": len(tile_rows),
            "cpu_s": tile_cpu,
            "ratio": round(tile_cpu["warp"] / tile_cpu["tiles"], 2) if tile_rows else None,
            "rows": tile_rows,
        },
        "versions": sides["warp"]["versions"],
    }


def measured_starts(name: str, python: Path, limit_s: float) -> Row:
    """The entry of a client's whole starts.

    Raises:
        LeftOut: A side failed.
    """
    os.environ["PYTHONHASHSEED"] = "0"
    load = os.getloadavg()[0]  # wall seconds count only on an idle machine
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        record, store = folder / "record.json", folder / "store"
        store.mkdir()
        trust, push = trust_and_push(folder)
        runs = {"warp": run_side(python, name, "warp_start", limit_s)}
        to_store = {**trust, **push, "WARP_TILES_REMOTE": store.as_uri()}
        run_side(python, name, "start", limit_s, folder / "other.json", **to_store)  # signing takes time
        runs["first"] = run_side(python, name, "start", limit_s, record)
        runs["record"] = run_side(python, name, "start", limit_s, record)
        with served(store) as url:
            from_store = {**trust, "NO_PROXY": "127.0.0.1", "WARP_TILES_REMOTE": url}
            runs["store"] = run_side(python, name, "start", limit_s, folder / "new.json", **from_store)
        site, wheel_bytes = installed_wheel(python, name, folder, limit_s)
        runs["wheel"] = run_side(python, name, "wheel", limit_s, PYTHONPATH=str(site))
    if len({run["modules"] for run in runs.values()}) > 1:
        raise LeftOut("the sides launched different modules")
    later = {title: max(0.0, run["setup_wall_s"] - runs["warp"]["setup_wall_s"]) for title, run in runs.items()}
    seconds = {title: round(run["wall_s"] + later[title], 3) for title, run in runs.items()}
    fields = ("cpu_s", "wall_s", "setup_wall_s", "found")
    return {
        **{title: {field: run[field] for field in fields} for title, run in runs.items()},
        "seconds": seconds,
        "ratios": {title: round(value / seconds["warp"], 3) for title, value in seconds.items() if title != "warp"},
        "wheel_bytes": wheel_bytes,
        "load_average_before": round(load, 2),
        "modules": runs["warp"]["modules"],
        "versions": runs["warp"]["versions"],
    }


@dataclass(frozen=True)
class Case:
    """A client's step, or its whole starts."""

    client: str
    starts: bool

    @property
    def name(self) -> str:
        return f"starts {self.client}" if self.starts else self.client


def cases(options: argparse.Namespace) -> list[Case]:
    if options.starts:
        options.only = [f"starts {name}" for name in options.only]
    return [Case(name, options.starts) for name in CLIENTS]


def measure(case: Case, options: argparse.Namespace) -> Row:
    """All sides, or the reason why the client was left out."""
    python, row = options.python, {"title": CLIENTS[case.client].title}
    try:
        if reason := missing(CLIENTS[case.client], options.versions):
            raise LeftOut(reason)
        if case.starts:
            return row | measured_starts(case.client, python, options.limit)
        return row | compared({side: run_side(python, case.client, side, options.limit) for side in reversed(SIDES)})
    except LeftOut as reason:
        return row | {"left_out": str(reason)}


def conditions(options: argparse.Namespace) -> Row:
    if options.install:
        options.python = install(options.install.absolute())
    options.versions = run_json([str(options.python), "-m", "benchmarks.client_scripts.steps"], environment())
    return {**cpu_record(), "arch": ARCH}


def line_of(row: Row) -> str:
    """One line for the terminal: CPU seconds of all modules and of those that link functions, or ratios of starts."""
    if "left_out" in row:
        return f"left out: {row['left_out']}"
    if "ratios" in row:
        return f"{row['seconds']['warp']} s with Warp, {row['ratios']}"
    seconds = [(row[side]["cpu_s"], row["tile_modules"]["cpu_s"][side]) for side in SIDES]
    return f"{row['modules']} modules, CPU s, in all and of those with functions: Warp {seconds[0]}, tiles {seconds[1]}"


main = runner.command(
    __doc__,
    cases,
    measure,
    conditions,
    options={
        "--python": {"type": Path, "default": Path(sys.executable), "help": "interpreter with the clients"},
        "--install": {"type": Path, "metavar": "DIR", "help": "create a virtual environment there and use it"},
        "--starts": {"action": "store_true", "help": "measure whole starts"},
        "--limit": {"type": float, "default": 1200.0, "help": "seconds for one side of a client"},
    },
    described=line_of,
)


if __name__ == "__main__":
    sys.exit(main())
