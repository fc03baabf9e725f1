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

wp.config.log_level = wp.LOG_WARNING
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
@pytest.mark.parametrize("processes", some([2, 16], 1))
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
