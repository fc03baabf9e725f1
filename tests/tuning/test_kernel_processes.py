"""Tuned kernels in several processes: one after the other, and many at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import some

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON_PATH = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

PROGRAM = """
import json, sys

import numpy as np
import warp as wp

wp.config.quiet = True
import warp_tiles


@warp_tiles.autotune([{"tile": 8}, {"tile": 16}, {"tile": 32}], key=("x",), dim=lambda c, args: args.x.shape[0])
def scale(tile):
    @wp.kernel(module="unique", enable_backward=False)
    def kernel(x: wp.array(dtype=float), y: wp.array(dtype=float)):
        i = wp.tid()
        y[i] = x[i] * float(tile)

    return kernel


x, y = wp.array(np.ones(64, np.float32), device="cpu"), wp.zeros(64, dtype=float, device="cpu")
scale.launch(inputs=[x], outputs=[y], device="cpu")
best = scale.best({"x": x, "y": y}, "cpu")
record = scale.record({"x": x, "y": y}, "cpu")
print(json.dumps({
    "launched": float(y.numpy()[0]), "winner": best.config["tile"], "searches": scale.counters.searches,
    "known": len(record.timings),
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", some([4, 16], 1))
def test_one_of_many_processes_tunes_and_all_launch_its_winner(tmp_path: Path, processes: int) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {
        **os.environ,
        "PYTHONPATH": PYTHON_PATH,
        "WARP_CACHE_PATH": str(tmp_path / "warp"),
        "WARP_TILES_CACHE_DIR": str(tmp_path / "tiles"),
    }
    running = [
        subprocess.Popen(
            [sys.executable, tmp_path / "program.py"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    ended = [(process.communicate(timeout=300), process.returncode) for process in running]
    assert all(status == 0 for _, status in ended), "\n".join(err for (_, err), status in ended if status)
    found = [json.loads(out.splitlines()[-1]) for (out, _), _ in ended]
    assert sum(one["searches"] for one in found) == 1
    assert len({one["winner"] for one in found}) == 1
    assert all(one["launched"] == one["winner"] for one in found)
    assert {one["known"] for one in found} == {3}


_CHILD = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
import warp as wp
wp.config.log_level = wp.LOG_WARNING
sys.path.insert(0, "examples")
import autotune_gemm
from tests.tuning.fake_stores import FileStore
from warp_tiles.tuning.measure import Effort
store = FileStore(Path(sys.argv[1]))
gemm = autotune_gemm.tuned_gemm("fp32", store=lambda now: store, effort=Effort(warmup=1, runs=2, iterations=2))
args = autotune_gemm.operands((40, 24, 50), "fp32", "cpu")
gemm.launch(**args, device="cpu")
print(json.dumps({**vars(gemm.counters), "error": autotune_gemm.error_of(args)}))
"""


@pytest.mark.slow
def test_a_new_process_with_a_record_builds_and_measures_nothing(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", _CHILD, str(tmp_path / "records.json")]
        run = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=True)
        found.append(json.loads(run.stdout.splitlines()[-1]))
    assert (found[0]["searches"], found[0]["builds"], found[0]["measurements"]) == (1, 24, 24)
    assert (found[1]["searches"], found[1]["builds"], found[1]["measurements"]) == (0, 0, 0)
    assert found[1]["lookups"] == 1
    assert max(run["error"] for run in found) < 1e-5
