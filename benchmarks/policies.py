"""Measures the build time of each compile policy, from a cold start and with caches.

    python benchmarks/policies.py --json benchmarks/results/policies.json

Each figure is the median of its repeats. Each repeat runs in a fresh process with its own caches. No GPU is needed.
"off" takes minutes and is built once.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.compile_time import ARCH, THREADS, machine, median_of
from benchmarks.measure import Job, Kernel, build

KERNEL = Kernel(64, 64, 64).source(None)
ODD_THREADS = 48  # not a multiple of a warp, which mma does not support
COLD = ("off", "scalar", "fast", "auto")


def compiled(policy: str, threads: int, folder: Path, *, again: str = "") -> dict[str, Any]:
    """Compile one module under a policy. With ``again``, compile it once more under that policy, from cached LTO-IR."""
    result: dict[str, Any] = {}
    for number, name in enumerate((policy, again) if again else (policy,)):
        settings = (("WARP_TILES_POLICY", name),)
        out = str(folder / str(number))
        job = Job((KERNEL,), True, ARCH, threads, str(folder / f"warp{number}"), str(folder / "tiles"), out, settings)
        result = build(job)
    return result


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="leave out the policy off")
    arguments = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {}

    def note(name: str, result: dict[str, Any]) -> None:
        results.setdefault(name, []).append(result)
        print(f"{name:32} {json.dumps(result)}", flush=True)

    for repeat in range(arguments.repeats):
        for policy in COLD:
            if policy != "off" or not (repeat or arguments.quick):
                with tempfile.TemporaryDirectory() as folder:
                    note(f"{policy}, cold", compiled(policy, THREADS, Path(folder)))
        for policy in ("fast", "auto"):
            with tempfile.TemporaryDirectory() as folder:
                note(f"{policy}, {ODD_THREADS} threads, cold", compiled(policy, ODD_THREADS, Path(folder)))
        with tempfile.TemporaryDirectory() as folder:
            note("locked, LTO-IR cached by auto", compiled("auto", THREADS, Path(folder), again="locked"))
    rows = {name: {**median_of(found), "repeats": len(found)} for name, found in results.items()}
    if arguments.json:
        text = json.dumps({**machine(), "arch": ARCH, "threads": THREADS, "rows": rows}, indent=2)
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
