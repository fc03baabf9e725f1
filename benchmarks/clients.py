"""Compares the cold start of real programs: unmodified Warp beside warp_tiles in one run, without a GPU.

    python benchmarks/clients.py --install DIR --json benchmarks/results/clients.json
    python benchmarks/clients.py --python DIR/bin/python --only newton_ik tile_cholesky
    python benchmarks/clients.py --python DIR/bin/python --kind wheels --json benchmarks/results/clients.json

One step of each client runs in a fresh process with empty caches, once with Warp alone and once with warp_tiles. Its
launches are noted and not executed, and each module that it launches is compiled for sm_90, one after another. A client
takes the branches that it takes on Warp's CPU device. CPU seconds include compiler processes, and exclude imports and
the building of models, which are recorded apart.

`--kind starts` measures whole starts, in which launches load their modules for a fake GPU, as rows "starts CLIENT":
Warp; a first start with the default settings; one with modules="all", which writes a start list; a start with that
list; a start with a store, which a run that does not count has filled, behind Python's HTTP server; a start with an
installed wheel of the step's kernels for sm_90; and a start after `warp-tiles warm`, whose seconds are `warm_seconds`.
`found` and `not_generated` count modules that came from the cache, a store or a wheel. All other caches are empty.
Compilations ahead of a launch also run while the client is imported and its model is built, so if that phase takes
longer than with Warp, the difference is added to the seconds of the side. Each side has two cores.

`--kind wheels` makes a wheel of the kernels of all clients of a package for six architectures, as rows "wheels
PACKAGE". It records the size, and what a program's first module costs that none of 0, 1 or 10 such wheels has. With
MuJoCo Warp 3.17 installed, the row "wheels mujoco-warp 3.17.0" is of that version.

The clients' packages are pinned and unmodified. `--install` puts them into a virtual environment, with this project.
Without it nothing is installed, and a client whose packages `--python` lacks is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.client_scripts.steps import ARCH, CLIENTS, MORE_PACKAGES, PINNED, missing
from benchmarks.machine import ROOT, cpu_record
from benchmarks.processes import ProcessError, environment, remote_store, run_json
from benchmarks.runner import Row
from warp_tiles.store.packages import INDEX, NAMESPACE, KernelPackages

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
SIDES = ("warp", "tiles")
KINDS = ("steps", "starts", "wheels")
STARTS = ("warp", "list", "store", "first", "wheel", "warm")
WHEELS = ("mujoco-warp", "mujoco-warp 3.17.0", "newton")
ARCHS = "80,86,89,90,100,120"
STEPS = "benchmarks.client_scripts.steps"


class LeftOut(Exception):  # noqa: N818
    """The reason why a client was not measured."""


def install(folder: Path) -> Path:
    """Create a virtual environment with the pinned packages and this project. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pins = [f"{name}=={version}" for name, version in PINNED.items()]
    subprocess.run([str(python), "-m", "pip", "install", "-q", *pins, *MORE_PACKAGES, f"{ROOT}[remote]"], check=True)
    return python


def run_side(python: str, name: str, side: str, limit_s: float, *record: Path, **variables: str) -> Row:
    """Compile a client's step in a fresh process with empty caches.

    Args:
        python: The interpreter.
        *record: The start list of a start.
        **variables: More variables of its environment, or other caches.

    Raises:
        LeftOut: The process failed or took longer than the limit.
    """
    others = {key: value for key, value in os.environ.items() if not key.startswith("WARP_")}
    with tempfile.TemporaryDirectory() as folder:
        caches = {"WARP_CACHE_PATH": f"{folder}/warp", "WARP_TILES_CACHE_DIR": f"{folder}/tiles"}
        words = [name, side, f"{folder}/out", *map(str, record)]
        command = [python, "-m", "benchmarks.client_scripts.child", *words]
        try:
            environ = environment(others, **{**NO_GPU, **caches, **variables})
            found: dict[str, Any] = run_json(command, environ, folder=Path(folder), limit_s=limit_s)
        except ProcessError as error:
            raise LeftOut(f"{side}: {error.reason}") from None
    return found


def run_tiles(python: str, words: Sequence[str], folder: Path, limit_s: float, **variables: str) -> tuple[str, float]:
    """Run a command of ``warp-tiles`` in a folder. Returns what it prints, and its seconds.

    Raises:
        LeftOut: It failed.
    """
    command, environ = [python, "-m", "warp_tiles", *words], environment(**NO_GPU, **variables)
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, env=environ, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=True
        )
    except subprocess.CalledProcessError as error:
        raise LeftOut(f"{words[0]}: {error.stderr.strip().splitlines()[-1]}") from None
    except subprocess.TimeoutExpired:
        raise LeftOut(f"{words[0]} took longer than {limit_s:g} s") from None
    return done.stdout, round(time.perf_counter() - began, 2)


def make_wheel(python: str, names: Iterable[str], archs: str, folder: Path, limit_s: float) -> dict[str, Any]:
    """Make a wheel of the kernels of clients' steps. Returns what the command prints, and its seconds."""
    distribution = (*CLIENTS[next(iter(names))].packages, "warp-lang")[0]
    words = ["bundle", "--json", "--wheel", "kernels==1", "--client", distribution, "--arch", archs, "-o", str(folder)]
    text, seconds = run_tiles(python, [*words, "-m", *(f"{STEPS} {name}" for name in names)], folder, limit_s)
    return {**json.loads(text), "seconds": seconds}


def installed_wheel(python: str, name: str, folder: Path, limit_s: float) -> tuple[str, int]:
    """Make a wheel of a client's step, and install it. Returns a search path with it, and its bytes."""
    made = make_wheel(python, [name], str(ARCH), folder, limit_s)
    with zipfile.ZipFile(made["wheel"]) as archive:
        archive.extractall(folder / "site")
    return os.pathsep.join((str(folder / "site"), os.environ.get("PYTHONPATH", ""))), made["bytes"]


def compared(sides: Mapping[str, dict[str, Any]]) -> Row:
    """One client's entry of the result.

    Raises:
        LeftOut: The sides launched different modules.
    """
    launched = [[(row["kernels"], row["threads"]) for row in sides[side]["rows"]] for side in SIDES]
    if launched[0] != launched[1]:
        raise LeftOut("the sides launched different modules")
    with_functions = [pair for pair in zip(*(sides[side]["rows"] for side in SIDES)) if pair[0]["functions"]]
    totals = ("cpu_s", "wall_s", "setup_cpu_s", "cubin_bytes", "mathdx_builds", "own_builds")
    tile_cpu = {side: round(sum(pair[n]["cpu_s"] for pair in with_functions), 3) for n, side in enumerate(SIDES)}
    return {
        **{side: {field: sides[side][field] for field in totals} for side in SIDES},
        "ratio": round(sides["warp"]["cpu_s"] / sides["tiles"]["cpu_s"], 2),
        "modules": sides["warp"]["modules"],
        "tile_modules": {
            "modules": len(with_functions),
            "cpu_s": tile_cpu,
            "ratio": round(tile_cpu["warp"] / tile_cpu["tiles"], 2) if with_functions else None,
        },
        "versions": sides["warp"]["versions"],
    }


def start_sides(python: str, name: str, limit_s: float, folder: Path) -> dict[str, Callable[[], dict[str, Row]]]:
    """What returns the results of sides. It keeps files in a folder."""
    record = folder / "record.json"
    run = partial(run_side, python, name, limit_s=limit_s)

    def with_list() -> dict[str, Row]:
        """The first start writes the list."""
        return {title: run_side(python, name, "start", limit_s, record) for title in ("all", "record")}

    def with_store() -> dict[str, Row]:
        with remote_store(folder) as (filling, reading):
            run_side(python, name, "start", limit_s, folder / "other.json", **filling)  # signing takes time
            return {"store": run_side(python, name, "start", limit_s, folder / "new.json", **reading)}

    def with_wheel() -> dict[str, Row]:
        path, size = installed_wheel(python, name, folder, limit_s)
        return {"wheel": run("default_start", PYTHONPATH=path) | {"wheel_bytes": size}}

    def after_warm() -> dict[str, Row]:
        caches = {"WARP_CACHE_PATH": f"{folder}/warp", "WARP_TILES_CACHE_DIR": f"{folder}/tiles"}
        words = ("warm", "--start", str(folder / "warm.json"), "--arch", str(ARCH), "-m", STEPS, name)
        _, warm_s = run_tiles(python, words, folder, limit_s, **caches)
        found = run_side(python, name, "default_start", limit_s, folder / "warm.json", **caches)
        return {"warm": found | {"warm_seconds": warm_s}}

    return {
        "warp": lambda: {"warp": run("warp_start")},
        "list": with_list,
        "store": with_store,
        "first": lambda: {"first": run("default_start")},
        "wheel": with_wheel,
        "warm": after_warm,
    }


def measured_starts(name: str, options: argparse.Namespace) -> Row:
    """The entry of a client's whole starts.

    Raises:
        LeftOut: A side failed.
    """
    runs: dict[str, Row] = {}
    load = os.getloadavg()[0]  # wall seconds count only on an idle machine
    with tempfile.TemporaryDirectory() as folder:
        sides = start_sides(str(options.python), name, options.limit, Path(folder))
        for side in options.starts_sides:
            found = sides[side]()
            print(f"{name}, {side}: {json.dumps(found)}", file=sys.stderr, flush=True)
            runs |= found
    if len({run["modules"] for run in runs.values()}) > 1:
        raise LeftOut("the sides launched different modules")
    peer = runs.get("warp", {})
    later = {title: max(0.0, run["setup_wall_s"] - peer.get("setup_wall_s", math.inf)) for title, run in runs.items()}
    seconds = {title: round(run["wall_s"] + later[title], 3) for title, run in runs.items()}
    others = {title: value for title, value in seconds.items() if title != "warp" and peer}
    fields = ("cpu_s", "wall_s", "setup_wall_s", "found", "not_generated")
    return {
        **{title: {field: run[field] for field in fields} for title, run in runs.items()},
        "seconds": seconds,
        "ratios": {title: round(value / seconds["warp"], 3) for title, value in others.items()},
        **{name: run[name] for run in runs.values() for name in ("wheel_bytes", "warm_seconds") if name in run},
        "load_average_before": round(load, 2),
        "modules": next(iter(runs.values()))["modules"],
        "versions": options.versions,
    }


def first_question_ms(index: bytes, folder: Path, count: int) -> float:
    """CPU milliseconds until a process knows that none of some installed wheels has a module: median of 21.

    Args:
        index: The index of each wheel.
        folder: Where they are installed.
    """
    for number in range(count):
        package = folder / NAMESPACE / f"client_{number}"
        package.mkdir(parents=True)
        (package / INDEX).write_bytes(index)
    times = []
    for _ in range(21):
        began = time.thread_time()
        assert not KernelPackages("auto", "another Warp", [str(folder), *sys.path]).serve("another module")
        times.append(time.thread_time() - began)
    return round(statistics.median(times) * 1e3, 3)


def measured_wheel(package: str, python: str, limit_s: float) -> Row:
    """The size of a wheel of the kernels of all clients of a package, for :data:`ARCHS`.

    Raises:
        LeftOut: It could not be made.
    """
    names = [name for name, client in CLIENTS.items() if client.packages == (package,) and name != "newton_kernels"]
    with tempfile.TemporaryDirectory() as folder:
        made = make_wheel(python, names, ARCHS, Path(folder), limit_s)
        with zipfile.ZipFile(made["wheel"]) as archive:
            (index,) = (archive.read(name) for name in archive.namelist() if name.endswith(f"/{INDEX}"))
        questions = {count: first_question_ms(index, Path(folder, f"{count} wheels"), count) for count in (0, 1, 10)}
    modules = {row["key"] for row in made["modules"] if row["key"]}
    return {
        "first_question_ms": questions,
        "clients": names,
        "archs": ARCHS,
        "modules": len(modules),
        "bytes": made["bytes"],
        "seconds": made["seconds"],
    }


@dataclass(frozen=True)
class Case:
    """A client's step, its starts or its speed, or a wheel of a package's kernels."""

    kind: str
    client: str

    @property
    def name(self) -> str:
        return self.client if self.kind == "steps" else f"{self.kind} {self.client}"


def cases(options: argparse.Namespace) -> list[Case]:
    kind = options.kind
    if kind != "steps":
        options.only = [f"{kind} {name}" for name in options.only]
    return [Case(kind, name) for name in (WHEELS if kind == "wheels" else CLIENTS)]


def measure(case: Case, options: argparse.Namespace) -> Row:
    """All sides, or the reason why the client was left out."""
    python = str(options.python)
    try:
        if case.kind == "wheels":
            package, _, version = case.client.partition(" ")
            if (found := options.versions.get(package)) != (version or PINNED[package]):
                raise LeftOut(f"{package} is {found}")
            return {**measured_wheel(package, python, options.limit), "versions": options.versions}
        row = {"title": CLIENTS[case.client].title}
        if reason := missing(CLIENTS[case.client], options.versions):
            return row | {"left_out": reason}
        if case.kind == "starts":
            return row | measured_starts(case.client, options)
        return row | compared({side: run_side(python, case.client, side, options.limit) for side in reversed(SIDES)})
    except LeftOut as reason:
        return {"title": case.name, "left_out": str(reason)}


def conditions(options: argparse.Namespace) -> Row:
    if options.install:
        options.python = install(options.install.absolute())
    options.versions = run_json([str(options.python), "-m", "benchmarks.client_scripts.steps"], environment())
    if options.kind == "starts":
        os.environ["PYTHONHASHSEED"] = "0"
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # also of the sides
    return {**cpu_record(), "arch": ARCH}


def line_of(row: Row) -> str:
    """One line for the terminal: CPU seconds of all modules and of those that link functions, or ratios of starts."""
    if "left_out" in row:
        return f"left out: {row['left_out']}"
    if "bytes" in row:
        return f"{row['modules']} modules, {row['bytes'] / 1e6:.1f} MB, {row['seconds']} s"
    if "ratios" in row:
        return f"{row['seconds']} s, {row['ratios']}"
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
        "--kind": {"choices": KINDS, "default": "steps", "help": "what to measure"},
        "--limit": {"type": float, "default": 1200.0, "help": "seconds for one side of a client"},
        "--starts-sides": {"nargs": "+", "choices": STARTS, "default": STARTS, "help": "of starts"},
    },
    described=line_of,
)


if __name__ == "__main__":
    sys.exit(main())
