"""Runs MuJoCo Warp's own benchmark on a GPU: unmodified Warp beside warp_tiles, in one run.

    python benchmarks/client_speed.py --json benchmarks/results/client_speed.json [--only n_humanoid]

Each run is a fresh process of `mujoco_warp/testspeed.py`. It captures one step as a graph, which loads all modules of
the step (`jit_s`), and replays it. Cold runs start with empty caches. `again` is a cold run of a script that ran
before: the names of its modules are known, and nothing else is kept, so `prefetch` compiles them side by side. `own`
sets `without_mathdx=own`. A first run of each side is not counted, because it also reads the machine's libraries from
disk. The sides alternate. Medians are compared: of the cold runs, and of the steps a second of warm runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.machine import ROOT, gpu_record
from warp_tiles.launch.previous_run import FOLDER

MODELS = {  # of the package's test data, with the options of its own benchmark
    "humanoid": ("humanoid/humanoid.xml", "--nworld=8192", "--nconmax=24", "--njmax=64"),
    "n_humanoid": ("humanoid/n_humanoid.xml", "--nworld=1024", "--nconmax=160", "--njmax=600"),
}
SETTINGS = {"warp": None, "tiles": {"WARP_TILES_PREFETCH": "1"}, "own": {"WARP_TILES_WITHOUT_MATHDX": "own"}}
AGAIN = "again"
FIELDS = ("jit_duration", "steps_per_second", "converged_worlds", "ncon_mean", "nefc_mean", "solver_niter_mean")


@dataclass(frozen=True)
class Client:
    """MuJoCo Warp with one model.

    Attributes:
        folder: Folder of the package.
        model: Name of the model.
        scratch: Folder of the caches.
    """

    folder: Path
    model: str
    scratch: Path

    def run(self, side: str, caches: Path, steps: int) -> dict[str, Any]:
        """Run the benchmark in a fresh process. Returns its metrics and the seconds of the process."""
        file, *options = MODELS[self.model]
        script = [str(self.folder / "testspeed.py"), str(self.folder / "test_data" / file)]
        words = [*script, *options, f"--nstep={steps}", "--format=json", "--overflow_behavior=continue"]
        given = SETTINGS[side]
        prefix = [sys.executable] if given is None else [sys.executable, "-m", "warp_tiles", "run"]
        environment = {
            **os.environ,
            "WARP_CACHE_PATH": str(caches / "warp"),
            "WARP_TILES_CACHE_DIR": str(caches / "tiles"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            **(given or {}),
        }
        start = time.perf_counter()
        done = subprocess.run([*prefix, *words], env=environment, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise SystemExit(f"{self.model} {side}: {(done.stdout + done.stderr)[-2000:]}")
        metrics = json.loads(lines[-1])
        return {"process_s": round(seconds, 2), **{name: metrics[name] for name in FIELDS}}

    def cold(self, side: str, known: Path | None = None) -> tuple[dict[str, Any], Path]:
        """Run once with empty caches.

        Args:
            side: A name of ``SETTINGS``.
            known: Caches of an earlier run, whose record of modules is kept.

        Returns:
            The row and the caches.
        """
        caches = Path(tempfile.mkdtemp(dir=self.scratch))
        if known is not None:
            shutil.copytree(known / "tiles" / FOLDER, caches / "tiles" / FOLDER)
        found = self.run(side, caches, steps=10)
        cubins = sum(path.stat().st_size for path in (caches / "warp").rglob("*.cubin"))
        row = {"jit_s": round(found["jit_duration"], 2), "process_s": found["process_s"], "cubin_bytes": cubins}
        return row, caches

    def measure(self, repeats: int) -> dict[str, Any]:
        """All cold and warm runs, and the ratios of warp_tiles to Warp."""
        caches = {side: self.cold(side)[1] for side in SETTINGS}  # not counted
        cold: dict[str, list[dict[str, Any]]] = {side: [] for side in (*SETTINGS, AGAIN)}
        warm: dict[str, list[dict[str, Any]]] = {side: [] for side in SETTINGS}
        for _ in range(repeats):
            for side, runs in cold.items():
                known = caches["tiles"] if side == AGAIN else None
                runs.append(self.cold("tiles" if known else side, known)[0])
                print(f"{self.model}, {side}, cold: {runs[-1]}", flush=True)
            for side, runs in warm.items():
                runs.append(self.run(side, caches[side], steps=1000))
        jit = {side: statistics.median(run["jit_s"] for run in runs) for side, runs in cold.items()}
        speed = {side: statistics.median(run["steps_per_second"] for run in runs) for side, runs in warm.items()}
        return {
            "cold": cold,
            "warm": warm,
            "jit_to_warp": {side: round(seconds / jit["warp"], 3) for side, seconds in jit.items()},
            "steps_to_warp": {side: round(steps / speed["warp"], 4) for side, steps in speed.items()},
        }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=tuple(MODELS))
    parser.add_argument("--repeats", type=int, default=2, help="counted runs of each side")
    arguments = parser.parse_args()
    spec = importlib.util.find_spec("mujoco_warp")
    if spec is None or spec.origin is None:
        raise SystemExit("mujoco-warp is not installed: pip install mujoco-warp==4.0.0")
    known = json.loads(arguments.json.read_text())["models"] if arguments.json.exists() else {}
    record: dict[str, Any] = {
        **gpu_record("auto"),
        "mujoco_warp": metadata.version("mujoco-warp"),
        "mujoco": metadata.version("mujoco"),
        "models": known,
    }
    with tempfile.TemporaryDirectory() as scratch:
        for model in arguments.only:
            record["models"][model] = Client(Path(spec.origin).parent, model, Path(scratch)).measure(arguments.repeats)
            print(json.dumps({name: record["models"][model][name] for name in ("jit_to_warp", "steps_to_warp")}))
            arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
