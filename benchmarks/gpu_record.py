"""Runs the GPU tests, Warp's own tests and the examples, and writes one record of their results.

    python benchmarks/gpu_record.py --json benchmarks/results/gpu_tests.json [--workers 8] [--parts ...]

Parts that are in the file already are kept, so that long parts can be run one by one. The exit status is 1 if
anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.machine import ROOT, gpu_record, source_digest
from benchmarks.processes import environment


def run(command: list[str], **environ: str) -> dict[str, Any]:
    """Run a command at the top of the checkout. Returns its status, time and last lines."""
    start = time.time()
    done = subprocess.run(command, cwd=ROOT, env=environment(**environ), capture_output=True, text=True)
    lines = (done.stdout + done.stderr).strip().splitlines()
    shown = " ".join(Path(part).name if part == sys.executable else part for part in command)
    print(f"{shown}: exit {done.returncode} in {time.time() - start:.0f} s", flush=True)
    if done.returncode:
        print("\n".join(lines[-40:]), flush=True)
    return {"exit": done.returncode, "seconds": round(time.time() - start, 1), "output": lines[-3:]}


def gpu_tests(workers: int, scratch: Path) -> dict[str, Any]:
    """Run ``pytest -m gpu``. Returns the counts by outcome, and the names of failures."""
    report = scratch / "junit.xml"
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", f"--junitxml={report}", "-p", "no:cacheprovider"]
    if workers > 1:
        command += ["-n", str(workers), "-p", "no:benchmark"]
    result = run(command, WARP_TILES_JOBS="3" if workers > 1 else "0")
    suite = ElementTree.parse(report).getroot()
    suite = suite if suite.tag == "testsuite" else suite[0]
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = []
    for case in suite.iter("testcase"):
        for problem in (*case.findall("failure"), *case.findall("error")):
            failed.append(f"{case.get('classname')}::{case.get('name')}: {problem.get('message', '')[:300]}")
    return {**result, "counts": counts, "failed": failed}


def examples() -> dict[str, Any]:
    """Run this project's examples, and Warp's own unmodified ones."""
    import warp as wp

    tiles_run = [sys.executable, "-m", "warp_tiles", "run"]
    own = Path(wp.__file__).parent / "examples" / "tile"
    commands = {
        "examples/gemm.py": [*tiles_run, "examples/gemm.py", "--size", "1024"],
        "examples/mlp_train.py": [sys.executable, "examples/mlp_train.py"],
        "examples/skip_adjoints.py": [sys.executable, "examples/skip_adjoints.py"],
        "example_tile_matmul.py": [*tiles_run, str(own / "example_tile_matmul.py")],
        "example_tile_mlp.py": [*tiles_run, str(own / "example_tile_mlp.py"), "--train-iters", "200", "--headless"],
    }
    results = {name: run(command) for name, command in commands.items()}
    return {"exit": max(result["exit"] for result in results.values()), "scripts": results}


def warp_own_tests(scratch: Path) -> dict[str, Any]:
    """Run Warp's own tile tests, without and with warp_tiles."""
    outcome = scratch / "own.json"
    result = run([sys.executable, "-m", "tests.gpu.warp_own_tests", "--json", str(outcome)])
    return {**result, **json.loads(outcome.read_text())}


def main() -> int:
    parts = ("pytest", "warp_own_tests", "examples")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1, help="processes of pytest-xdist")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    arguments = parser.parse_args()
    known = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    record: dict[str, Any] = {**gpu_record(), **{part: known[part] for part in parts if part in known}}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        os.environ.update(WARP_CACHE_PATH=str(scratch / "warp"), WARP_TILES_CACHE_DIR=str(scratch / "tiles"))
        run_part = {
            "pytest": lambda: gpu_tests(arguments.workers, scratch),
            "warp_own_tests": lambda: warp_own_tests(scratch),
            "examples": examples,
        }
        for part in arguments.parts:
            record[part] = {**run_part[part](), "sources": source_digest()}
            arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return max(int(record[part]["exit"]) for part in arguments.parts)


if __name__ == "__main__":
    sys.exit(main())
