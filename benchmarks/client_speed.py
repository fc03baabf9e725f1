"""Runs MuJoCo Warp and Newton on a GPU: unmodified Warp beside warp_tiles, in one run.

    python benchmarks/client_speed.py --json benchmarks/results/client_speed.json --only speed
    python benchmarks/client_speed.py --json benchmarks/results/client_speed.json --only "starts humanoid"

`humanoid`, `n_humanoid` and `aloha_pot` are models of `mujoco_warp/testspeed.py`, MuJoCo Warp's own benchmark.
`featherstone`, `ik` and `kamino` are the solvers of client_scripts/newton_speed.py. Each run is a fresh process.
`jit_s` is the time until the first step was made or captured, for which all modules of the step are loaded. Steps are
replayed as a graph. Sides alternate, and medians are compared.

Rows "speed" have cold runs, which start with empty caches, and warm runs of Warp, of warp_tiles, and of `own`, which
sets `mathdx_opt_out=own`. The first run of each side is not counted, because it also reads the machine's libraries from
disk; warm runs use its caches. Rows "starts" have cold runs alone, with `modules=all`: `all` is a first start, which
writes a start record; `record` a start with the record of `all`; `store` a start with a store, a folder behind Python's
HTTP server, which a run that is not counted has filled.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import ROOT, cpu_record, gpu_record
from benchmarks.processes import environment, served, trust_and_push
from benchmarks.runner import Row

MODELS = {  # of the package's test data, with the number of worlds and the options of its own benchmark
    "humanoid": ("humanoid/humanoid.xml", 8192, ("--nconmax=24", "--njmax=64")),
    "n_humanoid": ("humanoid/n_humanoid.xml", 1024, ("--nconmax=160", "--njmax=600")),
    "aloha_pot": ("aloha_pot/scene.xml", 1024, ("--nconmax=24", "--njmax=128")),
}
NEWTON = ("featherstone", "ik", "kamino")
NEWTON_WORLDS = 4096
ALL = {"WARP_TILES_MODULES": "all"}
SETTINGS: dict[str, dict[str, str] | None] = {
    "warp": None,
    "tiles": {},
    "own": {"WARP_TILES_MATHDX_OPT_OUT": "own"},
    "all": ALL,
    "record": ALL,
    "store": ALL,
}
FIELDS = ("steps_per_second", "converged_worlds", "ncon_mean", "nefc_mean", "solver_niter_mean")  # of testspeed.py
OF_WARM_RUNS = ("steps_per_second", "rounds", "kernels_us", "tile_kernel_us")  # too few steps in a cold run
SHOWN_LINES = 25  # of a failed program's output


SIDES = {"speed": ("warp", "tiles", "own"), "starts": ("warp", "all", "record", "store")}
PEER = "warp"


@dataclass(frozen=True)
class Client:
    """A program that prints measurements as lines of JSON.

    Attributes:
        name: Its name on the command line.
        script: The program, which runs unchanged on all sides.
        arguments: Its arguments on all runs.
        cold: More arguments of cold runs.
        warm: More arguments of warm runs.
        packages: Distributions whose versions are recorded.
    """

    name: str
    script: Path
    arguments: tuple[str, ...]
    cold: tuple[str, ...]
    warm: tuple[str, ...]
    packages: tuple[str, ...]

    def conditions(self) -> Row:
        words = [Path(word).name if word.endswith(".xml") else word for word in (*self.arguments, *self.warm)]
        packages = {name: metadata.version(name) for name in self.packages}
        return {"packages": packages, "arguments": " ".join(words)}


def package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed: pip install mujoco-warp==4.0.0 newton==1.8.0")
    return Path(spec.origin).parent


def newton(name: str, options: argparse.Namespace) -> Client:
    package_folder("newton")
    return Client(
        name,
        script=ROOT / "benchmarks" / "client_scripts" / "newton_speed.py",
        arguments=(name, f"--device={options.device}", f"--worlds={options.worlds or NEWTON_WORLDS}"),
        cold=("--steps=10", "--rounds=1"),
        warm=(f"--steps={options.steps}", "--rounds=5"),
        packages=("newton",),
    )


def mujoco(name: str, options: argparse.Namespace) -> Client:
    if options.device == "cpu":
        raise SystemExit(f"{name}: testspeed.py of MuJoCo Warp needs a GPU; use --only {' '.join(NEWTON)}")
    folder = package_folder("mujoco_warp")
    file, usual, sizes = MODELS[name]
    output = ("--format=json", "--overflow_behavior=continue")
    return Client(
        name,
        script=folder / "testspeed.py",
        arguments=(str(folder / "test_data" / file), f"--nworld={options.worlds or usual}", *sizes, *output),
        cold=("--nstep=10",),
        warm=(f"--nstep={options.steps}",),
        packages=("mujoco-warp", "mujoco"),
    )


def measured(line: str) -> Row:
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
        "cubins_to_warp": ratios(medians(cold, "cubin_bytes"), 3),
        "steps_to_warp": ratios(medians(warm, "steps_per_second"), 4),
        "tile_kernel_to_warp": ratios(medians(warm, "tile_kernel_us"), 3),
        "first_differs_by": differences(runs, "first"),
        "last_differs_by": differences(warm, "last"),
    }
    return {name: value for name, value in found.items() if value}


# ---- runs


@dataclass(frozen=True)
class Case:
    """A client, measured for its speed or for its starts.

    Attributes:
        scratch: Folder of the caches.
        store: Folder of the remote store, which ``url`` serves.
        limit_s: Seconds after which a run is ended.
        runs: All runs.
    """

    kind: str
    client: Client
    scratch: Path
    store: Path
    url: str
    limit_s: float
    runs: list[Row] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind} {self.client.name}"

    def caches(self, side: str) -> Path:
        """The caches that a first run fills and warm runs use."""
        return self.scratch / self.name / side

    def cold(self, side: str) -> None:
        """Run once with empty caches."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            self.run(side, "cold", Path(folder))

    def _start(self, side: str, phase: str, caches: Path) -> tuple[list[str], dict[str, str]]:
        """The options of ``warp-tiles run`` and the environment by which a program starts."""
        if side in ("all", "record"):
            file = self.scratch / self.name / "start.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            if side == "all":
                file.unlink(missing_ok=True)
            return ["--start", str(file)], {}
        if side != "store":
            return [], {}
        trust, push = trust_and_push(self.scratch)
        if phase == "first":
            return [], {**trust, **push, "WARP_TILES_REMOTE": self.store.as_uri()}
        return [], {**trust, "NO_PROXY": "127.0.0.1", "WARP_TILES_REMOTE": self.url}

    def run(self, side: str, phase: str, caches: Path) -> None:
        """Run the program in a fresh process, and keep what it prints, or its error."""
        given, client = SETTINGS[side], self.client
        caches.mkdir(parents=True, exist_ok=True)
        start_options, variables = self._start(side, phase, caches)
        prefix = [sys.executable] if given is None else [sys.executable, "-m", "warp_tiles", "run", *start_options]
        words = [*prefix, str(client.script), *client.arguments, *(client.warm if phase == "warm" else client.cold)]
        paths = {"WARP_CACHE_PATH": "warp", "WARP_TILES_CACHE_DIR": "tiles", "CUDA_CACHE_PATH": "driver"}
        folders = {name: caches / folder for name, folder in paths.items()}
        variables = environment(**folders, **variables, **(given or {}))
        run: Row = {"side": side, "phase": phase}
        self.runs.append(run)
        start = time.perf_counter()
        shown: deque[str] = deque(maxlen=SHOWN_LINES)
        with tempfile.TemporaryFile("w+") as errors:
            with subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
                timer = threading.Timer(self.limit_s, process.kill)
                timer.daemon = True
                timer.start()
                assert process.stdout is not None
                for line in process.stdout:
                    shown.append(line.rstrip())
                    run.update(measured(line))
            timer.cancel()
            errors.seek(0)
            shown.extend(errors.read().splitlines()[-SHOWN_LINES:])
        if phase != "warm":
            for name in OF_WARM_RUNS:
                run.pop(name, None)
            run["cubin_bytes"] = sum(path.stat().st_size for path in (caches / "warp").rglob("*.cubin"))
        run["process_s"] = round(time.perf_counter() - start, 2)
        if process.returncode or "jit_s" not in run:
            run["error"] = f"exit status {process.returncode}: " + "\n".join(shown)[-2000:]
        print(f"{self.name}, {side}, {phase}: {json.dumps(run)}", file=sys.stderr, flush=True)

    def measured(self, sides: Sequence[str], repeats: int) -> Row:
        if self.kind == "starts":
            if "store" in sides:
                self.run("store", "first", self.caches("store"))
            runner.alternately({side: partial(self.cold, side) for side in sides}, repeats)
        else:
            for side in sides:
                self.run(side, "first", self.caches(side))
            runner.alternately({side: partial(self.cold, side) for side in sides}, repeats)
            warm = {side: partial(self.run, side, "warm", self.caches(side)) for side in sides}
            runner.alternately(warm, repeats)
        return {**self.client.conditions(), "compared": compared(self.runs), "runs": self.runs}


def main(arguments: list[str] | None = None) -> int:
    names = [f"{kind} {client}" for kind in SIDES for client in (*MODELS, *NEWTON)]
    parser = runner.parser(__doc__, repeats=2, required=True)
    parser.add_argument("--sides", nargs="+", choices=SETTINGS, help="the usual ones of each row if omitted")
    parser.add_argument("--device", default="cuda:0", help="cpu is for trying the script, with few worlds")
    parser.add_argument("--worlds", type=int, help="worlds or problems instead of the usual number")
    parser.add_argument("--steps", type=int, default=1000, help="steps or solves of a warm run")
    parser.add_argument("--limit", type=float, default=1500.0, help="seconds for one process")
    options = parser.parse_args(arguments)
    run = cpu_record() if options.device == "cpu" else gpu_record()
    record = runner.Record(options.json, run, names)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scratch, store, cases = Path(folder), Path(folder) / "store", []
        store.mkdir()
        url = stack.enter_context(served(store))
        for name in (name for name in names if runner.is_wanted(name, options.only)):
            kind, _, client = name.partition(" ")
            made = (newton if client in NEWTON else mujoco)(client, options)
            cases.append(Case(kind, made, scratch, store, url, options.limit))
        status = runner.measure(
            cases,
            record,
            options,
            lambda case: case.measured(options.sides or SIDES[case.kind], options.repeats),
            lambda row: json.dumps(row["compared"]),
        )
    failed = [f"{case.name} {one['side']} {one['phase']}" for case in cases for one in case.runs if "error" in one]
    if failed:
        print(f"failed: {', '.join(failed)}; the file has the programs' output", file=sys.stderr)
    return int(status or bool(failed))


if __name__ == "__main__":
    sys.exit(main())
