"""Compares this state of the project with another one on the CPU: cold compiles of loops, and planning.

    git worktree add ../before COMMIT
    python benchmarks/states.py --before ../before --json FILE

Both states build and plan the same modules, in fresh processes with empty caches that alternate; the first process of
each does not count. A row of a loop of ``tests/staged_cases.py`` has the wall seconds of ``wp.compile_aot_module`` for
sm_90: code generation, the functions of the products and the link. The row ``planning`` has the CPU milliseconds of
``warp_tiles.plan()`` with Warp's code generation: the median over the modules of ``tests/loop_forms.py``. Without
``--before``, only this state is measured. `benchmarks/against.py` compares the speed on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import ROOT, cpu_record
from benchmarks.processes import environment, run_json
from benchmarks.runner import Row
from tests.loop_forms import FORMS
from tests.staged_cases import Case as Staged

_IMPORT = """
import importlib.util, json, pathlib, sys, time
import warp as wp
import warp_tiles
wp.config.log_level = wp.LOG_WARNING
count = 0

def imported(text):
    global count
    count += 1
    path = pathlib.Path(f"module_{count}.py").resolve()
    path.write_text("import warp as wp\\n\\n" + text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

texts, threads, repeats = json.loads(sys.stdin.read())
"""
COMPILE = """
wp.init()
module = imported(texts[0])
wp.set_module_options({"block_dim": threads}, module=module)
with warp_tiles.enabled():
    start = time.perf_counter()
    wp.compile_aot_module(module, arch=90, module_dir="out", use_ptx=False)
    print(json.dumps([[time.perf_counter() - start], warp_tiles.__file__]))
"""
PLAN = """
def plan_ms(text):
    module = imported(text)
    start = time.process_time()
    warp_tiles.plan(module.__name__, arch=90, block_dim=threads)
    return (time.process_time() - start) * 1e3

with warp_tiles.enabled():
    for text in texts:
        plan_ms(text)  # finds the toolchain, digests its files and imports what planning needs
    times = [sorted(plan_ms(text) for _ in range(repeats))[repeats // 2] for text in texts]
    print(json.dumps([times, warp_tiles.__file__]))
"""


@dataclass(frozen=True)
class Case:
    """Modules, and the program that measures them. Its unit is ``s`` or ``ms``."""

    name: str
    texts: tuple[str, ...]
    threads: int
    program: str
    unit: str

    def measured(self, state: Path) -> float:
        """The median time of the modules in one process of a state, which has empty caches."""
        command = [sys.executable, "-c", _IMPORT + self.program]
        with tempfile.TemporaryDirectory() as scratch:
            caches = {"WARP_CACHE_PATH": f"{scratch}/warp", "WARP_TILES_CACHE_DIR": f"{scratch}/tiles"}
            environ = {**environment(**caches), "PYTHONPATH": str(state.resolve())}
            times, file = run_json(command, environ, [self.texts, self.threads, 5], Path(scratch))
        if not Path(file).is_relative_to(state.resolve()):
            raise SystemExit(f"{state}: the process imported {file}")
        return float(statistics.median(times))


def _loop(dtype: str, precision: str, m: int, n: int, k: int, threads: int, backward: bool) -> Case:
    text = Staged(m, n, k, 0, 0, 4096, dtype=dtype, precision=precision).text("multiply", backward=backward)
    shown = "tf32" if precision == "tf32" else dtype
    name = f"{shown} {m}x{n}x{k} {threads} threads{', with adjoint' if backward else ''}"
    return Case(name, (text,), threads, COMPILE, "s")


CASES = [
    Case("planning", tuple(form.text for form in FORMS.values()), 64, PLAN, "ms"),
    *(
        _loop(*sizes, backward)
        for backward in (False, True)
        for sizes in (
            ("float16", "default", 64, 64, 64, 128),
            ("float16", "default", 128, 128, 64, 256),
            ("float16", "default", 128, 256, 64, 256),
            ("float32", "tf32", 64, 64, 32, 128),
            ("float32", "tf32", 128, 128, 32, 256),
            ("float32", "default", 64, 64, 32, 128),
            ("float64", "default", 64, 64, 16, 128),
        )
    ),
]


def commit_of(state: Path) -> str:
    """The short name of the commit of a worktree."""
    describe = ["git", "-C", str(state), "rev-parse", "--short", "HEAD"]
    return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()


def measure(case: Case, options: argparse.Namespace) -> Row:
    """The median times of a case in both states, and their ratio."""
    states = ({"before": options.before} if options.before else {}) | {"now": ROOT}
    sides = {name: partial(case.measured, state) for name, state in states.items()}
    times = runner.alternately(sides, options.repeats, warm=1)
    row: Row = {f"{name}_{case.unit}": round(statistics.median(found), 3) for name, found in times.items()}
    return row | (runner.ratio(times["now"], times["before"]) if "before" in times else {})


main = runner.command(
    __doc__,
    CASES,
    measure,
    lambda options: cpu_record() | ({"before": commit_of(options.before)} if options.before else {}),
    options={"--before": {"type": Path, "help": "a worktree of the other state"}},
    repeats=5,
)


if __name__ == "__main__":
    sys.exit(main())
