"""Runs MuJoCo Warp and Newton on a GPU: unmodified Warp beside warp_tiles, in one run.

    python benchmarks/client_speed.py --json benchmarks/results/client_speed.json [--only featherstone ik]
    python benchmarks/client_speed.py --json /tmp/rough.json --phases cold --parallel-cold 8

`humanoid`, `n_humanoid` and `aloha_pot` are models of `mujoco_warp/testspeed.py`, MuJoCo Warp's own benchmark.
`featherstone`, `ik` and `kamino` are the solvers of client_scripts/newton_speed.py. Each run is a fresh process.
`jit_s` is the time until the first step was made or captured, for which all modules of the step are loaded. Steps are
replayed as a graph.

Cold runs start with empty caches. `own` sets `mathdx_opt_out=own`. `all`, `rehearsed`, `record` and `store` set
`modules=all`. `all` is a first start, which writes a start record; `rehearsed` a first start with `--rehearse`;
`record` a start with the record of `all`, which has to come before it; `store` a start with a store, a folder behind
Python's HTTP server, which a run that is not counted has filled. The first run of each side is not counted, because
it also reads the machine's libraries from disk; warm runs use its caches. The sides alternate. Medians are compared:
of the cold runs, and of the steps a second of warm runs.

The file is written after each measurement. Runs of the same sources, machine and sizes are added to those in the file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.client_record import Record, Run
from benchmarks.machine import ROOT, cpu_record, gpu_record, source_digest
from benchmarks.processes import environment
from benchmarks.remote import served, trust_and_push

MODELS = {  # of the package's test data, with the number of worlds and the options of its own benchmark
    "humanoid": ("humanoid/humanoid.xml", 8192, ("--nconmax=24", "--njmax=64")),
    "n_humanoid": ("humanoid/n_humanoid.xml", 1024, ("--nconmax=160", "--njmax=600")),
    "aloha_pot": ("aloha_pot/scene.xml", 1024, ("--nconmax=24", "--njmax=128")),
}
NEWTON = ("featherstone", "ik", "kamino")
NEWTON_WORLDS = 4096
ALL = {"WARP_TILES_MODULES": "all"}
SETTINGS = {
    "warp": None,
    "tiles": {},
    "own": {"WARP_TILES_MATHDX_OPT_OUT": "own"},
    "all": ALL,
    "rehearsed": ALL,
    "record": ALL,
    "store": ALL,
}
USUAL_SIDES = ("warp", "tiles", "own")  # of MuJoCo Warp
PHASES = ("cold", "warm")
FIELDS = ("steps_per_second", "converged_worlds", "ncon_mean", "nefc_mean", "solver_niter_mean")  # of testspeed.py
OF_WARM_RUNS = ("steps_per_second", "rounds", "kernels_us", "tile_kernel_us")  # too few steps in a cold run
FILLED = "filled"  # a file beside caches of a run that ended well
SHOWN_LINES = 25  # of a failed program's output


@dataclass(frozen=True)
class Client:
    """A program that prints measurements as lines of JSON.

    Attributes:
        name: Its name on the command line.
        script: The program, which runs unchanged on all sides.
        arguments: Its arguments on all runs.
        cold: More arguments of cold runs.
        warm: More arguments of warm runs.
        sides: Sides that are measured unless others are asked for.
        packages: Distributions whose versions are recorded.
    """

    name: str
    script: Path
    arguments: tuple[str, ...]
    cold: tuple[str, ...]
    warm: tuple[str, ...]
    sides: tuple[str, ...]
    packages: tuple[str, ...]

    def conditions(self, machine: Mapping[str, Any]) -> dict[str, Any]:
        """The machine, the versions and the sizes, as JSON values."""
        words = [Path(word).name if word.endswith(".xml") else word for word in (*self.arguments, *self.warm)]
        packages = {name: metadata.version(name) for name in self.packages}
        return {**machine, "packages": packages, "arguments": " ".join(words)}


def package_folder(package: str) -> Path:
    """The folder of an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed: pip install mujoco-warp==4.0.0 newton==1.8.0")
    return Path(spec.origin).parent


def newton(name: str, options: argparse.Namespace) -> Client:
    """A client of newton_speed.py."""
    package_folder("newton")
    return Client(
        name,
        script=ROOT / "benchmarks" / "client_scripts" / "newton_speed.py",
        arguments=(name, f"--device={options.device}", f"--worlds={options.worlds or NEWTON_WORLDS}"),
        cold=("--steps=10", "--rounds=1"),
        warm=(f"--steps={options.steps}", "--rounds=5"),
        sides=("warp", "tiles"),
        packages=("newton",),
    )


def mujoco(name: str, options: argparse.Namespace) -> Client:
    """A client of MuJoCo Warp's testspeed.py."""
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
        sides=USUAL_SIDES,
        packages=("mujoco-warp", "mujoco"),
    )


def measured(line: str) -> Run:
    """The values of a line that a program printed; empty for other lines."""
    if not line.startswith("{"):
        return {}
    found: Run = json.loads(line)
    if "jit_duration" in found:  # testspeed.py
        return {"jit_s": round(found["jit_duration"], 2), **{name: found[name] for name in FIELDS}}
    return found


@dataclass(frozen=True)
class Runner:
    """Runs clients and records each measurement.

    Attributes:
        record: The results.
        scratch: Folder of the caches.
        store: Folder of the remote store, which ``url`` serves.
        limit_s: Seconds after which a run is ended.
        failures: Runs that failed.
    """

    record: Record
    scratch: Path
    store: Path
    url: str
    limit_s: float
    failures: list[str] = field(default_factory=list)

    def caches(self, client: Client, side: str) -> Path:
        """The caches that a first run fills and warm runs use."""
        return self.scratch / client.name / side

    def filled(self, client: Client, side: str) -> bool:
        """Returns True if a run has filled the caches of warm runs."""
        return (self.caches(client, side) / FILLED).exists()

    def cold(self, client: Client, side: str, phase: str = "cold", together: int = 1) -> bool:
        """Run once with empty caches. They are kept for warm runs if there are none yet.

        Args:
            client: The program.
            side: A name of ``SETTINGS``.
            phase: "cold", or "first" for a run that is not counted.
            together: Number of runs at the same time, this one included.

        Returns:
            True if the run succeeded.
        """
        if self.filled(client, side):
            with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
                return self.run(client, side, Path(folder), phase, together)
        caches = self.caches(client, side)
        shutil.rmtree(caches, ignore_errors=True)  # of a run that was interrupted
        caches.mkdir(parents=True)
        succeeded = self.run(client, side, caches, phase, together)
        if succeeded:
            (caches / FILLED).touch()
        return succeeded

    def warm(self, client: Client, side: str) -> None:
        """Run once with the caches of an earlier run."""
        if self.filled(client, side):
            self.run(client, side, self.caches(client, side), "warm", 1)

    def _start(self, client: Client, side: str, phase: str, caches: Path) -> tuple[list[str], dict[str, str]]:
        """The options of ``warp-tiles run`` and the environment by which a program starts."""
        if side in ("all", "record"):
            file = self.scratch / client.name / "start.json"
            if side == "all":
                file.unlink(missing_ok=True)
            return ["--start", str(file)], {}
        if side == "rehearsed":
            return ["--rehearse", "--start", str(caches / "start.json")], {}
        if side != "store":
            return [], {}
        trust, push = trust_and_push(self.scratch)
        if phase == "first":
            return [], {**trust, **push, "WARP_TILES_REMOTE": self.store.as_uri()}
        return [], {**trust, "NO_PROXY": "127.0.0.1", "WARP_TILES_REMOTE": self.url}

    def run(self, client: Client, side: str, caches: Path, phase: str, together: int) -> bool:
        """Run the program in a fresh process. Each line of values is recorded at once.

        Returns:
            True if the program succeeded.
        """
        given = SETTINGS[side]
        start_options, variables = self._start(client, side, phase, caches)
        prefix = [sys.executable] if given is None else [sys.executable, "-m", "warp_tiles", "run", *start_options]
        words = [*prefix, str(client.script), *client.arguments, *(client.warm if phase == "warm" else client.cold)]
        paths = {"WARP_CACHE_PATH": "warp", "WARP_TILES_CACHE_DIR": "tiles", "CUDA_CACHE_PATH": "driver"}
        folders = {name: caches / folder for name, folder in paths.items()}
        variables = environment(**folders, **variables, **(given or {}))
        run: Run = {"side": side, "phase": phase, "together": together}
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
                    values = measured(line)
                    if values and phase != "warm":
                        values = {name: value for name, value in values.items() if name not in OF_WARM_RUNS}
                        values["cubin_bytes"] = sum(path.stat().st_size for path in (caches / "warp").rglob("*.cubin"))
                    if values:
                        self.note(client, run, values)
            timer.cancel()
            errors.seek(0)
            shown.extend(errors.read().splitlines()[-SHOWN_LINES:])
        values = {"process_s": round(time.perf_counter() - start, 2)}
        succeeded = process.returncode == 0 and "jit_s" in run
        if not succeeded:
            self.failures.append(f"{client.name} {side} {phase}")
            values["error"] = f"exit status {process.returncode}: " + "\n".join(shown)[-2000:]
        self.note(client, run, values)
        return succeeded

    def note(self, client: Client, run: Run, values: Run) -> None:
        """Add values to a run, record it and print them."""
        run.update(values)
        self.record.put(client.name, run)
        print(f"{client.name}, {run['side']}, {run['phase']}: {json.dumps(values)}", flush=True)


def fill(runner: Runner, clients: Sequence[tuple[Client, Sequence[str]]], at_once: int) -> None:
    """Run a cold start of each side of each client, several at a time. Their times are rough."""
    jobs = [(client, side) for client, sides in clients for side in sides]
    together = min(at_once, len(jobs))
    with ThreadPoolExecutor(together) as pool:
        for job in [pool.submit(runner.cold, *job, "cold", together) for job in jobs]:
            job.result()


def measure(runner: Runner, client: Client, sides: Sequence[str], options: argparse.Namespace) -> None:
    """All runs of a client, one at a time."""
    counted = set()
    for side in sides:
        if not runner.filled(client, side):
            counts = options.count_first and side != "store"  # which is empty
            runner.cold(client, side, "cold" if counts else "first")
            if counts:
                counted.add(side)
    for number in range(options.repeats):
        for side in sides if "cold" in options.phases else ():
            if number or side not in counted:
                runner.cold(client, side)
        for side in sides if "warm" in options.phases else ():
            runner.warm(client, side)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*MODELS, *NEWTON)
    parser.add_argument("--json", type=Path, required=True, help="results; they are added to those in the file")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="clients")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--sides", nargs="+", choices=SETTINGS, help="the usual ones of each client if omitted")
    parser.add_argument("--repeats", type=int, default=2, help="counted runs of each side")
    parser.add_argument("--count-first", action="store_true", help="count a first run as the first cold run")
    parser.add_argument(
        "--parallel-cold",
        type=int,
        default=1,
        metavar="N",
        help="make one cold run of each side of each client, N at a time; the times are rough and recorded as such",
    )
    parser.add_argument("--scratch", type=Path, help="folder that keeps the caches of warm runs for later commands")
    parser.add_argument("--device", default="cuda:0", help="cpu is for trying the script, with few worlds")
    parser.add_argument("--worlds", type=int, help="worlds or problems instead of the usual number")
    parser.add_argument("--steps", type=int, default=1000, help="steps or solves of a warm run")
    parser.add_argument("--limit", type=float, default=1500.0, help="seconds for one process")
    return parser.parse_args()


def main() -> None:
    """Entry point."""
    options = parse()
    clients = [(newton if name in NEWTON else mujoco)(name, options) for name in options.only]
    machine = cpu_record() if options.device == "cpu" else gpu_record("auto")
    record = Record(options.json)
    for client in clients:
        record.begin(client.name, client.conditions(machine))
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        scratch = (options.scratch or Path(temporary)) / source_digest()
        store = scratch / "store"
        store.mkdir(parents=True, exist_ok=True)
        runner = Runner(record, scratch, store, stack.enter_context(served(store)), options.limit)
        planned = [(client, options.sides or client.sides) for client in clients]
        if options.parallel_cold > 1 and "cold" in options.phases:
            fill(runner, planned, options.parallel_cold)
            options.phases = [phase for phase in options.phases if phase != "cold"]
        for client, sides in planned:
            measure(runner, client, sides, options)
            print(f"{client.name}: {json.dumps(record.compared(client.name))}", flush=True)
    if runner.failures:
        raise SystemExit(f"failed: {', '.join(runner.failures)}; the file has the programs' output")


if __name__ == "__main__":
    main()
