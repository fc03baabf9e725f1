"""Compares the cold start of real programs: unmodified Warp beside warp_tiles in one run, without a GPU.

    python benchmarks/clients.py --install DIR --json benchmarks/results/clients.json
    python benchmarks/clients.py --python DIR/bin/python --only newton_ik tile_cholesky

One step of each client runs in a fresh process with empty caches, once with Warp alone and once with warp_tiles. Its
launches are noted and not executed, and each module that it launches is compiled for sm_90, one after another. A client
takes the branches that it takes on Warp's CPU device. CPU seconds include compiler processes, and exclude imports and
the building of models, which are recorded apart.

`--starts` measures whole starts with the setting modules="all", in which launches load their modules for a fake GPU, as
rows "starts CLIENT": Warp; a first start, which writes a start record; a start with that record; a start with a store,
which a run that does not count has filled, behind Python's HTTP server; and a start with the default settings and an
installed wheel of the step's kernels for sm_90, whose size is recorded. All caches are empty. Compilations ahead of a
launch also run while the client is imported and its model is built, so if that phase takes longer than with Warp, the
difference is added to the seconds of the side.

The clients' packages are pinned and unmodified. `--install` puts them into a virtual environment, with this project.
Without it nothing is installed, and a client whose packages `--python` lacks is left out, with the reason.
"""

from __future__ import annotations

import json
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
from benchmarks.machine import ROOT, cpu_record
from benchmarks.processes import environment, served, trust_and_push

ARCH = 90
SIDES = ("warp", "tiles")
PINNED = {"warp-lang": "1.19.0", "mujoco-warp": "4.0.0", "newton": "1.8.0", "warp-nn": "0.4.1"}
MORE_PACKAGES = ("pillow",)  # example_tile_mlp reads a picture with it; the version has no influence


@dataclass(frozen=True)
class Client:
    """A program that uses Warp's tile functions.

    Attributes:
        title: Its name in tables.
        packages: Its distributions besides Warp, by name.
    """

    title: str
    packages: tuple[str, ...] = ()


CLIENTS = {  # by the names of benchmarks/client_scripts/steps.py
    "mujoco_humanoid": Client("MuJoCo Warp, humanoid", ("mujoco-warp",)),
    "mujoco_n_humanoid": Client("MuJoCo Warp, n_humanoid", ("mujoco-warp",)),
    "mujoco_aloha_pot": Client("MuJoCo Warp, aloha_pot", ("mujoco-warp",)),
    "newton_featherstone": Client("Newton, Featherstone", ("newton",)),
    "newton_ik": Client("Newton, inverse kinematics (LM)", ("newton",)),
    "newton_kamino": Client("Newton, Kamino's blocked LLT", ("newton",)),
    "newton_kernels": Client("Newton, other solvers", ("newton",)),
    "warp_nn_mlp": Client("warp-nn, MLP", ("warp-nn",)),
    "tile_mlp": Client("example_tile_mlp", ("pillow",)),
    "tile_block_cholesky": Client("example_tile_block_cholesky"),
    "tile_cholesky": Client("example_tile_cholesky"),
}


class LeftOut(Exception):  # noqa: N818
    """The reason why a client was not measured."""


# ---- environments


def install(folder: Path) -> Path:
    """Create a virtual environment with the pinned packages and this project. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pins = [f"{name}=={version}" for name, version in PINNED.items()]
    subprocess.run([str(python), "-m", "pip", "install", "-q", *pins, *MORE_PACKAGES, f"{ROOT}[remote]"], check=True)
    return python


_INSTALLED = """
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def installed(python: Path) -> dict[str, str]:
    """Versions of the clients' packages in an environment, by name."""
    command = [str(python), "-c", _INSTALLED, *PINNED, *MORE_PACKAGES]
    found: dict[str, str] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def require(client: Client, versions: Mapping[str, str]) -> None:
    """Check that a client's packages are there.

    Raises:
        LeftOut: A package is missing, or has another version than the pinned one.
    """
    for name in ("warp-lang", *client.packages):
        if name not in versions:
            raise LeftOut(f"{name} is not installed")
        if versions[name] != PINNED.get(name, versions[name]):
            raise LeftOut(f"{name} is {versions[name]}, and the benchmark is for {PINNED[name]}")


# ---- measurements


def run_side(python: Path, name: str, side: str, limit_s: float, *record: Path, **variables: str) -> dict[str, Any]:
    """Compile a client's step in a fresh process with empty caches.

    Args:
        *record: The start record of the side `start`.
        **variables: More variables of its environment.

    Raises:
        LeftOut: The process failed or took longer than the limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        caches = {"WARP_CACHE_PATH": Path(folder, "warp"), "WARP_TILES_CACHE_DIR": Path(folder, "tiles")}
        others = {key: value for key, value in os.environ.items() if not key.startswith("WARP_")}
        words = [name, side, str(Path(folder, "out")), *map(str, record)]
        try:
            run = subprocess.run(
                [str(python), "-m", "benchmarks.client_scripts.child", *words],
                env=environment(others, **caches, **variables),
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            raise LeftOut(f"{side}: it took longer than {limit_s:g} s") from None
    if run.returncode:
        lines = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
        raise LeftOut(f"{side}: {lines[-1]}")
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


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


def compared(sides: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """One client's entry of the result.

    Raises:
        LeftOut: The sides launched different modules.
    """
    launched = [[(row["kernels"], row["threads"]) for row in sides[side]["rows"]] for side in SIDES]
    if launched[0] != launched[1]:
        raise LeftOut("the sides launched different modules")
    tile_rows, others = [], dict.fromkeys(SIDES, 0.0)
    for pair in zip(*(sides[side]["rows"] for side in SIDES)):
        if pair[0]["functions"]:
            fields = ("cpu_s", "wall_s", "cubin_bytes", "mathdx_builds", "functions")
            row = {"first_kernel": pair[0]["kernels"][0], "threads": pair[0]["threads"]}
            tile_rows.append(row | {s: {field: r[field] for field in fields} for s, r in zip(SIDES, pair)})
        else:
            others = {side: others[side] + row["cpu_s"] for side, row in zip(SIDES, pair)}
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
        "other_modules": {"cpu_s": {side: round(seconds, 3) for side, seconds in others.items()}},
        "versions": sides["warp"]["versions"],
        "python": sides["warp"]["python"],
    }


def measured_starts(name: str, python: Path, limit_s: float) -> dict[str, Any]:
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
        "python": runs["warp"]["python"],
    }


@dataclass(frozen=True)
class Case:
    """A client's step, or its whole starts."""

    client: str
    starts: bool

    @property
    def name(self) -> str:
        return f"starts {self.client}" if self.starts else self.client

    def measured(self, python: Path, versions: Mapping[str, str], limit_s: float) -> runner.Row:
        """All sides, or the reason why the client was left out."""
        client = CLIENTS[self.client]
        try:
            require(client, versions)
            if self.starts:
                return {"title": client.title, **measured_starts(self.client, python, limit_s)}
            sides = {side: run_side(python, self.client, side, limit_s) for side in reversed(SIDES)}
            return {"title": client.title, **compared(sides)}
        except LeftOut as reason:
            return {"title": client.title, "left_out": str(reason)}


def line_of(row: runner.Row) -> str:
    """One line for the terminal: CPU seconds of all modules and of those that link functions, or ratios of starts."""
    if "left_out" in row:
        return f"left out: {row['left_out']}"
    if "ratios" in row:
        return f"{row['seconds']['warp']} s with Warp, {row['ratios']}"
    seconds = [(row[side]["cpu_s"], row["tile_modules"]["cpu_s"][side]) for side in SIDES]
    return f"{row['modules']} modules, CPU s, in all and of those with functions: Warp {seconds[0]}, tiles {seconds[1]}"


def main(arguments: list[str] | None = None) -> int:
    parser = runner.parser(__doc__)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="interpreter with the clients")
    parser.add_argument("--install", type=Path, metavar="DIR", help="create a virtual environment there and use it")
    parser.add_argument("--starts", action="store_true", help="measure whole starts")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds for one side of a client")
    options = parser.parse_args(arguments)
    python = install(options.install.absolute()) if options.install else options.python
    versions = installed(python)
    cases = [Case(name, options.starts) for name in CLIENTS if runner.is_wanted(name, options.only)]
    order = [Case(name, starts).name for starts in (False, True) for name in CLIENTS]
    record = runner.Record(options.json, {**cpu_record(), "arch": ARCH}, order)
    return runner.measure(cases, record, options, lambda case: case.measured(python, versions, options.limit), line_of)


if __name__ == "__main__":
    sys.exit(main())
