"""Runs MuJoCo Warp and Newton on a GPU: unmodified Warp beside warp_tiles, in one run.

    python benchmarks/client_speed.py --json benchmarks/results/client_speed.json --only speed
    python benchmarks/client_speed.py --json benchmarks/results/client_speed.json --only "starts humanoid" --repeats 1
    python benchmarks/client_speed.py --json benchmarks/results/client_speed.json --only "wheel *" --repeats 1

`humanoid`, `n_humanoid` and `aloha_pot` are models of `mujoco_warp/testspeed.py`, MuJoCo Warp's own benchmark.
`featherstone`, `ik` and `kamino` are the solvers of client_scripts/newton_speed.py. Each run is a fresh process.
`jit_s` is the time until the first step was made or captured, for which all modules of the step are loaded. Steps are
replayed as a graph. Sides alternate, and medians are compared.

Rows "speed" have warm runs of Warp, of warp_tiles, and of `own`, which sets `mathdx_opt_out=own`. The first run of each
side fills its caches, and is not counted.

Rows "starts" have cold runs, which begin with empty caches. All sides but `all` have the default settings:

    warp     unmodified Warp
    tiles    warp_tiles, for the first time
    all      the same with `modules=all`, which writes a start list
    list     with the list of `all`
    warm     after `warp-tiles warm`, whose seconds are `warm_s`
    store    with a store behind Python's HTTP server, which a run that is not counted has filled
    wheel    with an installed wheel of kernels; the row has its bytes, and the seconds of `warp-tiles bundle --wheel`

Rows "wheel" have only the sides `warp` and `wheel` of these. `start_keys` counts what the modules of a cold run say of
their start keys, and `cubins` the files in Warp's kernel cache: if both are the number of modules found, nothing was
generated, compiled or linked.

The solver of `kamino` counts limits and contacts by launches, so no script without launches shows what it loads. Its
`warm` and `wheel` are made from a start list, which a run that is not counted has written, and the wheel has the start
keys of that run's cache.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.clients import Case
from benchmarks.machine import ROOT, gpu_record
from benchmarks.processes import environment, remote_store
from benchmarks.runner import Row

MODELS = {  # of the package's test data, with the number of worlds and the options of its own benchmark
    "humanoid": ("humanoid/humanoid.xml", 8192, ("--nconmax=24", "--njmax=64")),
    "n_humanoid": ("humanoid/n_humanoid.xml", 1024, ("--nconmax=160", "--njmax=600")),
    "aloha_pot": ("aloha_pot/scene.xml", 1024, ("--nconmax=24", "--njmax=128")),
}
NEWTON, NEWTON_WORLDS = ("featherstone", "ik", "kamino"), 4096
NEEDS_LAUNCHES = ("kamino",)
SETTINGS: dict[str, dict[str, str] | None] = {
    "warp": None, "tiles": {}, "own": {"WARP_TILES_MATHDX_OPT_OUT": "own"}, "all": {"WARP_TILES_MODULES": "all"},
    "list": {}, "warm": {}, "store": {}, "wheel": {},
}  # fmt: skip
FIELDS = ("steps_per_second", "converged_worlds", "ncon_mean", "nefc_mean", "solver_niter_mean")  # of testspeed.py
OF_WARM_RUNS = ("steps_per_second", "rounds", "kernels_us", "tile_kernel_us")  # too few steps in a cold run
SHOWN = 4000  # characters of a failed program's output
SIDES = {
    "speed": ("warp", "tiles", "own"),
    "starts": ("warp", "tiles", "all", "list", "warm", "store", "wheel"),
    "wheel": ("warp", "wheel"),
}
PEER = "warp"
TILES = (sys.executable, "-m", "warp_tiles")


CASES = [Case(kind, client) for kind in SIDES for client in (*MODELS, *NEWTON)]


@dataclass(frozen=True)
class Program:
    """A program that prints measurements as lines of JSON, and runs unchanged on all sides.

    Attributes:
        words: The script and its arguments.
        cold, warm: More arguments of cold and of warm runs.
        packages: Distributions whose versions are recorded.
    """

    words: tuple[str, ...]
    cold: tuple[str, ...]
    warm: tuple[str, ...]
    packages: tuple[str, ...]

    def conditions(self) -> Row:
        words = [Path(word).name if word.endswith(".xml") else word for word in (*self.words[1:], *self.warm)]
        return {"packages": {name: metadata.version(name) for name in self.packages}, "arguments": " ".join(words)}


def package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed: pip install mujoco-warp==4.0.0 newton==1.8.0")
    return Path(spec.origin).parent


def program(client: str, options: argparse.Namespace) -> Program:
    if client in NEWTON:
        package_folder("newton")
        script = str(ROOT / "benchmarks" / "client_scripts" / "newton_speed.py")
        worlds = options.worlds or NEWTON_WORLDS
        scene = (script, client, "--device=cuda:0", f"--worlds={worlds}")
        return Program(scene, ("--steps=10", "--rounds=1"), (f"--steps={options.steps}", "--rounds=5"), ("newton",))
    folder = package_folder("mujoco_warp")
    file, usual, sizes = MODELS[client]
    words = (str(folder / "testspeed.py"), str(folder / "test_data" / file), f"--nworld={options.worlds or usual}")
    output = ("--format=json", "--overflow_behavior=continue")
    return Program((*words, *sizes, *output), ("--nstep=10",), (f"--nstep={options.steps}",), ("mujoco-warp", "mujoco"))


def printed(line: str) -> Row:
    """The values of a line that a program printed; empty for other lines."""
    if not line.startswith("{"):
        return {}
    found: Row = json.loads(line)
    if "jit_duration" in found:  # testspeed.py
        return {"jit_s": round(found["jit_duration"], 2), **{name: found[name] for name in FIELDS}}
    return found


# ---- comparisons


def medians(runs: Iterable[Row], value: str) -> dict[str, float]:
    """The median of a value for each side that has it."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if value in run and "error" not in run:
            found.setdefault(run["side"], []).append(run[value])
    return {side: statistics.median(values) for side, values in found.items()}


def ratios(values: Mapping[str, float], digits: int) -> dict[str, float]:
    """Each side's value divided by that of unmodified Warp; empty if the latter is missing or zero."""
    return {side: round(value / values[PEER], digits) for side, value in values.items()} if values.get(PEER) else {}


def differences(runs: Iterable[Row], digest: str) -> dict[str, dict[str, float]]:
    """How far each number of a side's latest digest is from that of unmodified Warp."""
    latest = {run["side"]: run[digest] for run in runs if digest in run}
    peer = latest.pop(PEER, {})
    found = {side: {name: abs(value[name] - peer[name]) for name in peer} for side, value in latest.items()}
    return {side: values for side, values in found.items() if values}


def compared(runs: Sequence[Row]) -> Row:
    """Ratios to unmodified Warp of cold and of warm runs, and differences of results after the first and the last step.

    First runs and failed ones do not count.
    """
    warm = [run for run in runs if run["phase"] == "warm"]
    cold = [run for run in runs if run["phase"] == "cold"]
    found = {
        "jit_to_warp": ratios(medians(cold, "jit_s"), 3),
        "warm_to_warp": ratios(medians(cold, "warm_s") | {PEER: medians(cold, "jit_s").get(PEER, 0.0)}, 3),
        "cubins_to_warp": ratios(medians(cold, "cubin_bytes"), 3),
        "steps_to_warp": ratios(medians(warm, "steps_per_second"), 4),
        "tile_kernel_to_warp": ratios(medians(warm, "tile_kernel_us"), 3),
        "first_differs_by": differences(runs, "first"),
        "last_differs_by": differences(warm, "last"),
    }
    return {name: value for name, value in found.items() if value}


# ---- runs


def start(options: argparse.Namespace, side: str, phase: str) -> tuple[list[str], dict[str, str | Path]]:
    """The options of ``warp-tiles run`` and the environment by which a program starts."""
    if side in ("all", "list"):
        if side == "all":
            options.list.unlink(missing_ok=True)
        return ["--start", str(options.list)], {}
    if side == "wheel":
        return [], {"PYTHONPATH": os.pathsep.join((str(options.site), os.environ.get("PYTHONPATH", "")))}
    if side == "store":
        return [], options.filling if phase == "first" else options.reading
    return [], {}


def ended(command: Sequence[str], environ: Mapping[str, str], limit_s: float) -> tuple[int, str, float]:
    """The exit status of a process, or -9 at its limit, what it wrote, and its seconds."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        try:
            status = subprocess.run(
                command, env=environ, stdout=output, stderr=subprocess.STDOUT, timeout=limit_s
            ).returncode
        except subprocess.TimeoutExpired:
            status = -9
        output.seek(0)
        return status, output.read(), round(time.perf_counter() - began, 2)


def emptied(caches: Path, **more: str | Path) -> dict[str, str]:
    """The environment of a process whose caches lie in a folder."""
    paths = {"WARP_CACHE_PATH": "warp", "WARP_TILES_CACHE_DIR": "tiles", "CUDA_CACHE_PATH": "driver"}
    paths_there = {name: caches / folder for name, folder in paths.items()}
    return environment(PYTHONHASHSEED="0", **paths_there, **more)  # docs/cache.md: what a list for others needs


def run(case: Case, options: argparse.Namespace, side: str, phase: str) -> Row:
    """Run a program in a fresh process. Returns what it prints, or its error. A cold run has empty caches."""
    made, given = program(case.client, options), SETTINGS[side]
    words, variables = start(options, side, phase)
    program_words = [*made.words, *(made.warm if phase == "warm" else made.cold)]
    found: Row = {"side": side, "phase": phase}
    with tempfile.TemporaryDirectory(dir=options.scratch) as empty:
        caches = Path(empty) if phase == "cold" else options.scratch / case.name / side
        caches.mkdir(parents=True, exist_ok=True)
        environ, failed = emptied(caches, **variables, **(given or {})), ""
        if side == "warm":
            given_list = case.client in NEEDS_LAUNCHES
            source = ["--record", str(options.list)] if given_list else ["--allow-incomplete", *program_words]
            status, text, found["warm_s"] = ended([*TILES, "warm", *source], environ, options.limit)
            failed = f"warm: exit status {status}: {text[-SHOWN:]}" if status else ""
        report = Path(empty, "report.json")
        prefix = [sys.executable] if given is None else [*TILES, "run", "--report", str(report), *words]
        status, text, found["process_s"] = ended([*prefix, *program_words], environ, options.limit)
        for line in text.splitlines():
            found.update(printed(line))
        if phase != "warm":
            found = {name: value for name, value in found.items() if name not in OF_WARM_RUNS}
            sizes = [path.stat().st_size for path in (caches / "warp").rglob("*.cubin")]
            found |= {"cubins": len(sizes), "cubin_bytes": sum(sizes)}
        if report.exists():
            modules = json.loads(report.read_text("utf-8"))["modules"]
            found["start_keys"] = Counter(module["start_key"] for module in modules if "start_key" in module)
    if status or "jit_s" not in found:
        failed = f"exit status {status}: {text[-SHOWN:]}"
    if failed:
        found["error"] = failed
    print(f"{case.name}, {side}, {phase}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


def install_wheel(case: Case, options: argparse.Namespace) -> Row:
    """Make a wheel of what a program launches, and install it. Returns its bytes and the seconds that it took."""
    made, folder = program(case.client, options), options.scratch / case.name / "wheel"
    options.site = folder / "site"
    words = ["bundle", "--wheel", "kernels==1", "--client", made.packages[0], "--arch", options.archs]
    is_listed = case.client in NEEDS_LAUNCHES
    script = str(options.list) if is_listed else shlex.join((*made.words, *made.cold))
    words += ["--allow-incomplete", "-o", str(folder), script]
    caches = folder.with_name("all") if is_listed else folder  # of the run that has written the list
    status, text, seconds = ended([*TILES, *words], emptied(caches), options.limit)
    wheels = list(folder.glob("*.whl"))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(options.site)
    found: Row = {"archs": options.archs, "bundle_s": seconds, "wheel_bytes": sum(one.stat().st_size for one in wheels)}
    if status:
        found["error"] = text[-SHOWN:]
    print(f"{case.name}, wheel: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


def measure(case: Case, options: argparse.Namespace) -> Row:
    sides = options.sides or SIDES[case.kind]
    if case.kind == "speed":
        first, counted = sides, "warm"
    else:
        first, counted = [side for side in sides if side == "store"], "cold"
    if case.client in NEEDS_LAUNCHES and {"warm", "wheel"} & {*sides}:
        first = ["all", *first]
    runs = [run(case, options, side, "first") for side in first]
    row = {"wheel": install_wheel(case, options)} if "wheel" in sides else {}

    def again(side: str) -> None:
        runs.append(run(case, options, side, counted))

    runner.alternately({side: partial(again, side) for side in sides}, options.repeats)
    return {**program(case.client, options).conditions(), **row, "compared": compared(runs), "runs": runs}


def conditions(options: argparse.Namespace) -> Row:
    options.scratch = Path(options.stack.enter_context(tempfile.TemporaryDirectory()))
    options.list = options.scratch / "start.json"
    options.filling, options.reading = options.stack.enter_context(remote_store(options.scratch))
    return gpu_record()


main = runner.command(
    __doc__,
    CASES,
    measure,
    conditions,
    options={
        "--sides": {"nargs": "+", "choices": SETTINGS, "help": "the usual ones of each row if omitted"},
        "--archs": {"default": "90", "help": "architectures of the wheels"},
        "--worlds": {"type": int, "help": "worlds or problems instead of the usual number"},
        "--steps": {"type": int, "default": 1000, "help": "steps or solves of a warm run"},
        "--limit": {"type": float, "default": 1500.0, "help": "seconds for one process"},
    },
    repeats=2,
    required=True,
    described=lambda row: json.dumps(row["compared"]),
    is_bad=lambda row: any("error" in run for run in row["runs"]),
)


if __name__ == "__main__":
    sys.exit(main())
