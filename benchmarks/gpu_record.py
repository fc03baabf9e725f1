"""Everything that a GPU decides, in one record: the GPU tests, Warp's own tests, the examples.

    python benchmarks/gpu_record.py --json benchmarks/results/gpu_tests.json [--workers 8]

Exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.resident_gemm import driver_version

ROOT = Path(__file__).resolve().parent.parent


def run(command: list[str], **environ: str) -> dict[str, Any]:
    """Run a command at the top of the checkout; its status, time and last lines."""
    start = time.time()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **environ}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).strip().splitlines()
    shown = " ".join(Path(part).name if part == sys.executable else part for part in command)
    print(f"{shown}: exit {done.returncode} in {time.time() - start:.0f} s", flush=True)
    if done.returncode:
        print("\n".join(lines[-40:]), flush=True)
    return {"exit": done.returncode, "seconds": round(time.time() - start, 1), "output": lines[-3:]}


def gpu_tests(workers: int, scratch: Path) -> dict[str, Any]:
    """``pytest -m gpu``: counts by outcome, and the names of failures."""
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


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1, help="processes of pytest-xdist")
    arguments = parser.parse_args()
    import warp as wp

    import warp_tiles
    from warp_tiles.toolchain import dotted, find_toolchain

    toolchain = find_toolchain()
    warp_examples = Path(wp.__file__).parent / "examples" / "tile"
    tiles_run = [sys.executable, "-m", "warp_tiles", "run"]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        caches = {"WARP_CACHE_PATH": str(scratch / "warp"), "WARP_TILES_CACHE_DIR": str(scratch / "tiles")}
        os.environ.update(caches)
        own = scratch / "own.json"
        examples = {
            "examples/gemm.py": run([*tiles_run, "examples/gemm.py", "--size", "1024"]),
            "examples/mlp_train.py": run([sys.executable, "examples/mlp_train.py"]),
            "examples/skip_adjoints.py": run([sys.executable, "examples/skip_adjoints.py"]),
            "example_tile_matmul.py": run([*tiles_run, str(warp_examples / "example_tile_matmul.py")]),
            "example_tile_mlp.py": run(
                [*tiles_run, str(warp_examples / "example_tile_mlp.py"), "--train-iters", "200", "--headless"]
            ),
        }
        tests = gpu_tests(arguments.workers, scratch)
        warp_tests = run([sys.executable, "-m", "tests.gpu.warp_own_tests", "--json", str(own)])
        warp_tests.update(json.loads(own.read_text()))
    record = {
        "date": datetime.date.today().isoformat(),
        "gpu": wp.get_device("cuda:0").name,
        "driver": driver_version(),
        "python": platform.python_version(),
        "versions": {
            "warp_tiles": warp_tiles.__version__,
            "warp-lang": wp.__version__,
            "cuda-core": importlib.metadata.version("cuda-core"),
            "NVRTC": dotted(toolchain.nvrtc_version),
            "nvJitLink": dotted(toolchain.nvjitlink_version),
            "nvidia-mathdx": toolchain.mathdx_version,
        },
        "pytest": tests,
        "warp_own_tests": warp_tests,
        "examples": examples,
    }
    arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    steps = [tests, warp_tests, *examples.values()]
    return 1 if any(step["exit"] for step in steps) else 0


if __name__ == "__main__":
    sys.exit(main())
