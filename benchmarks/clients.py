"""Compares the cold start of real programs: unmodified Warp beside warp_tiles in one run, without a GPU.

    python benchmarks/clients.py --install DIR --json benchmarks/results/clients.json
    python benchmarks/clients.py --python DIR/bin/python --only newton_ik tile_cholesky
    python benchmarks/clients.py --python DIR/bin/python --all-modules --json benchmarks/results/all_modules.json

One step of each client runs in a fresh process with empty caches, once with Warp alone and once with warp_tiles. Its
launches are noted and not executed, and each module that it launches is compiled for sm_90, one after another. A client
takes the branches that it takes on Warp's CPU device. CPU seconds include compiler processes, and exclude imports and
the building of models, which are recorded apart.

`--all-modules` measures the setting modules="all": Warp one module after another, Warp on a thread for each core,
warp_tiles in workers, and warp_tiles again with its own cache, Warp's being empty. It compares the bytes of all modules
without functions. Python's hashes of strings are fixed, because Warp orders variables of the source by them.

`--starts` measures whole starts with that setting, in which launches load their modules for a fake GPU: Warp; a first
start, which writes a start record; a first start beside its rehearsal; a start with that record; a start with a store,
which a run that does not count has filled, behind Python's HTTP server. All caches are empty. Compilations ahead of a
launch also run while the client is imported and its model is built, so if that phase takes longer than with Warp, the
difference is added to the seconds of the side.

The clients' packages are pinned and unmodified. `--install` puts them into a virtual environment, with this project.
Without it nothing is installed, and a client whose packages `--python` lacks is left out, with the reason.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.machine import ROOT, source_digest
from benchmarks.processes import environment
from benchmarks.remote import served, trust_and_push
from warp_tiles.tuning.key import processor

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


def run_side(
    python: Path, name: str, side: str, limit_s: float, kept: Path | None = None, *record: Path, **variables: str
) -> dict[str, Any]:
    """Compile a client's step in a fresh process with empty caches.

    Args:
        kept: Folder of the cache of warp_tiles; None for a new one.
        *record: The start record of the side `start`.
        **variables: More variables of its environment.

    Raises:
        LeftOut: The process failed or took longer than the limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        caches = {"WARP_CACHE_PATH": Path(folder, "warp"), "WARP_TILES_CACHE_DIR": kept or Path(folder, "tiles")}
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


def measured_all(name: str, python: Path, limit_s: float) -> dict[str, Any]:
    """The entry of a client with the setting modules="all".

    Raises:
        LeftOut: A side failed.
    """
    os.environ["PYTHONHASHSEED"] = "0"
    load = os.getloadavg()[0]  # wall seconds count only on an idle machine
    with tempfile.TemporaryDirectory() as kept:
        runs = {side: run_side(python, name, side, limit_s) for side in ("warp", "warp_threads")}
        runs |= {title: run_side(python, name, "all", limit_s, Path(kept)) for title in ("all", "known")}
    plain = [(a["sha256"], b["sha256"]) for a, b in zip(runs["warp"]["digests"], runs["all"]["digests"])]
    plain = [pair for pair in plain if pair[0]]
    fields = ("cpu_s", "wall_s", "found")
    return {
        **{title: {field: run[field] for field in fields} for title, run in runs.items()},
        "ratio": round(runs["all"]["wall_s"] / runs["warp"]["wall_s"], 3),
        "ratio_known": round(runs["known"]["wall_s"] / runs["warp"]["wall_s"], 3),
        "load_average_before": round(load, 2),
        "modules": runs["warp"]["modules"],
        "without_functions": len(plain),
        "equal": sum(first == second for first, second in plain),
        "versions": runs["warp"]["versions"],
        "python": runs["warp"]["python"],
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
        run_side(python, name, "start", limit_s, None, folder / "other.json", **to_store)  # signing takes time
        runs["first"] = run_side(python, name, "start", limit_s, None, record)
        runs["rehearsed"] = run_side(python, name, "rehearsed", limit_s, None, folder / "third.json")
        runs["record"] = run_side(python, name, "start", limit_s, None, record)
        with served(store) as url:
            from_store = {**trust, "NO_PROXY": "127.0.0.1", "WARP_TILES_REMOTE": url}
            runs["store"] = run_side(python, name, "start", limit_s, None, folder / "new.json", **from_store)
    if len({run["modules"] for run in runs.values()}) > 1:
        raise LeftOut("the sides launched different modules")
    later = {title: max(0.0, run["setup_wall_s"] - runs["warp"]["setup_wall_s"]) for title, run in runs.items()}
    seconds = {title: round(run["wall_s"] + later[title], 3) for title, run in runs.items()}
    fields = ("cpu_s", "wall_s", "setup_wall_s", "found")
    return {
        **{title: {field: run[field] for field in fields} for title, run in runs.items()},
        "seconds": seconds,
        "ratios": {title: round(value / seconds["warp"], 3) for title, value in seconds.items() if title != "warp"},
        "load_average_before": round(load, 2),
        "modules": runs["warp"]["modules"],
        "versions": runs["warp"]["versions"],
        "python": runs["warp"]["python"],
    }


def measure(
    name: str, python: Path, versions: Mapping[str, str], limit_s: float, *, how: str = "step"
) -> dict[str, Any]:
    """All sides of a client, or the reason why it was left out.

    Args:
        how: ``step``, ``all`` for :func:`measured_all`, or ``starts`` for :func:`measured_starts`.
    """
    client = CLIENTS[name]
    entry: dict[str, Any] = {
        "title": client.title,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cpu": processor(), "cores": len(os.sched_getaffinity(0)), "gpu": None},
        "sources": source_digest(),
        "arch": ARCH,
    }
    try:
        require(client, versions)
        if how != "step":
            return entry | (measured_all if how == "all" else measured_starts)(name, python, limit_s)
        return entry | compared({side: run_side(python, name, side, limit_s) for side in reversed(SIDES)})
    except LeftOut as reason:
        return entry | {"left_out": str(reason)}


# ---- output


COLUMNS = (  # heading, width, path in an entry, format
    ("modules", 8, ("modules",), "d"),
    ("builds", 8, ("warp", "mathdx_builds"), "d"),
    ("remain", 8, ("tiles", "mathdx_builds"), "d"),
    ("CPU s", 8, ("warp", "cpu_s"), ".1f"),
    ("tiles", 8, ("tiles", "cpu_s"), ".1f"),
    ("ratio", 7, ("ratio",), ".1f"),
    ("in modules", 12, ("tile_modules", "modules"), "d"),
    ("CPU s", 8, ("tile_modules", "cpu_s", "warp"), ".1f"),
    ("tiles", 8, ("tile_modules", "cpu_s", "tiles"), ".1f"),
    ("ratio", 7, ("tile_modules", "ratio"), ".1f"),
    ("kB", 9, ("warp", "cubin_bytes"), "kb"),
    ("tiles", 8, ("tiles", "cubin_bytes"), "kb"),
)


def _cell(entry: Mapping[str, Any], path: Sequence[str], form: str) -> str:
    value: Any = entry
    for key in path:
        value = value[key]
    if value is None:
        return ""
    return f"{value / 1e3:.0f}" if form == "kb" else format(value, form)


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """A line for each client: Warp's LTO-IR builds and those that remain; CPU seconds of all modules, and of those that
    link functions.
    """
    lines = [f"{'':32}" + "".join(f"{heading:>{width}}" for heading, width, *_ in COLUMNS)]
    for entry in entries:
        if "left_out" in entry:
            cells = f"  left out: {entry['left_out']}"
        else:
            cells = "".join(f"{_cell(entry, path, form):>{width}}" for _, width, path, form in COLUMNS)
        lines.append(f"{entry['title']:32}{cells}")
    return "\n".join(lines)


def table_of_all(entries: Sequence[Mapping[str, Any]]) -> str:
    """A line for each client with the setting modules="all": wall seconds, ratios and equal modules."""
    lines = [
        f"{'':32}{'modules':>9}{'Warp':>8}{'threads':>9}{'all':>8}{'ratio':>7}{'known':>8}{'ratio':>7}{'equal':>10}"
    ]
    for entry in entries:
        if "left_out" in entry:
            lines.append(f"{entry['title']:32}  left out: {entry['left_out']}")
            continue
        seconds = [entry[title]["wall_s"] for title in ("warp", "warp_threads", "all", "known")]
        equal = f"{entry['equal']}/{entry['without_functions']}"
        cells = f"{entry['modules']:>9}{seconds[0]:>8.1f}{seconds[1]:>9.1f}{seconds[2]:>8.1f}{entry['ratio']:>7.2f}"
        lines.append(f"{entry['title']:32}{cells}{seconds[3]:>8.1f}{entry['ratio_known']:>7.3f}{equal:>10}")
    return "\n".join(lines)


def table_of_starts(entries: Sequence[Mapping[str, Any]]) -> str:
    """A line for each client with whole starts: seconds of Warp, and ratios to it."""
    titles = ("first", "rehearsed", "record", "store")
    lines = [f"{'':32}{'modules':>9}{'Warp s':>9}" + "".join(f"{title:>10}" for title in titles)]
    for entry in entries:
        if "left_out" in entry:
            lines.append(f"{entry['title']:32}  left out: {entry['left_out']}")
        else:
            ratios = "".join(f"{entry['ratios'][title]:>10.3f}" for title in titles)
            lines.append(f"{entry['title']:32}{entry['modules']:>9}{entry['seconds']['warp']:>9.1f}{ratios}")
    return "\n".join(lines)


def markdown(entries: Sequence[Mapping[str, Any]]) -> str:
    """The rows of the table in docs/clients.md."""
    lines = []
    for entry in entries:
        if "left_out" in entry:
            lines.append(f"| {entry['title']} | left out: {entry['left_out']} | | | | | |")
            continue
        warp, tiles, inner = entry["warp"], entry["tiles"], entry["tile_modules"]
        cells = (
            f"{entry['modules']}; {inner['modules']}",
            f"{warp['mathdx_builds']}; {tiles['mathdx_builds']}",
            f"{warp['cpu_s']:.1f}; {tiles['cpu_s']:.1f}",
            f"{entry['ratio']:.1f}",
            f"{inner['ratio']:.1f}" if inner["ratio"] else "",
            f"{warp['cubin_bytes'] / 1e6:.2f}; {tiles['cubin_bytes'] / 1e6:.2f}",
        )
        lines.append(f"| {entry['title']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="interpreter with the clients")
    parser.add_argument("--install", type=Path, metavar="DIR", help="create a virtual environment there and use it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument(
        "--markdown", action="store_true", help="print the rows of docs/clients.md from --json, and end"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--all-modules", action="store_const", dest="how", const="all", help='measure the setting modules="all"'
    )
    kinds.add_argument("--starts", action="store_const", dest="how", const="starts", help="measure whole starts")
    parser.set_defaults(how="step")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds for one side of a client")
    arguments = parser.parse_args()
    if arguments.markdown:
        print(markdown(list(json.loads(arguments.json.read_text())["clients"].values())), end="")
        return
    python = install(arguments.install.absolute()) if arguments.install else arguments.python
    path: Path | None = arguments.json
    entries: dict[str, Any] = json.loads(path.read_text())["clients"] if path and path.exists() else {}
    versions = installed(python)
    show = {"step": table, "all": table_of_all, "starts": table_of_starts}[arguments.how]
    for name in arguments.only:
        entries[name] = measure(name, python, versions, arguments.limit, how=arguments.how)
        print(show([entries[name]]).splitlines()[-1], file=sys.stderr, flush=True)
        if path:
            ordered = {key: entries[key] for key in CLIENTS if key in entries}
            path.write_text(json.dumps({"clients": ordered}, indent=1) + "\n")
    print(show([entries[name] for name in arguments.only]))


if __name__ == "__main__":
    main()
