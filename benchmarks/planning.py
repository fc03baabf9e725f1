"""Compares the time of planning with that of another state of this checkout.

    git worktree add ../before COMMIT
    python benchmarks/planning.py --before ../before [--json FILE]

Each state plans the modules of this checkout's ``tests/loop_forms.py`` in fresh processes, which alternate. A time is
the CPU time of ``warp_tiles.plan()`` for a new module, with Warp's code generation. Ratios are those of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.machine import ROOT, cpu_record
from benchmarks.processes import commit_of, run_in
from tests.loop_forms import FORMS

CHILD = """
import importlib.util, json, pathlib, sys, tempfile, time
import warp as wp
import warp_tiles
wp.config.log_level = wp.LOG_WARNING
texts, repeats = json.loads(sys.stdin.read())
folder = pathlib.Path(tempfile.mkdtemp())
count = 0

def plan_ms(text):
    global count
    count += 1
    path = folder / f"planned_{count}.py"
    path.write_text("import warp as wp\\n\\n" + text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    start = time.process_time()
    warp_tiles.plan(path.stem, arch=90, block_dim=64)
    return (time.process_time() - start) * 1e3

with warp_tiles.enabled():
    for text in texts.values():
        plan_ms(text)  # finds the toolchain, digests its files and imports what planning needs
    print(json.dumps({name: [plan_ms(text) for _ in range(repeats)] for name, text in texts.items()}))
"""


def times_ms(state: Path, texts: dict[str, str], repeats: int) -> dict[str, list[float]]:
    """CPU times of one process of a state, by form."""
    found: dict[str, list[float]] = run_in(state, CHILD, [texts, repeats])
    return found


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a worktree of the other state")
    parser.add_argument("--processes", type=int, default=3, help="processes of each state")
    parser.add_argument("--repeats", type=int, default=5, help="plans of each form in a process")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    texts = {name: form.text for name, form in FORMS.items()}
    times: dict[str, dict[str, list[float]]] = {"before": {}, "now": {}}
    for _ in range(arguments.processes):
        for side, state in (("before", arguments.before), ("now", ROOT)):
            for name, found in times_ms(state, texts, arguments.repeats).items():
                times[side].setdefault(name, []).extend(found)
    medians = {side: {name: statistics.median(found) for name, found in forms.items()} for side, forms in times.items()}
    ratios = {name: medians["now"][name] / medians["before"][name] for name in texts}
    record: dict[str, Any] = {
        **cpu_record(),
        "before": commit_of(arguments.before),
        "modules": len(texts),
        "before_ms": round(statistics.median(medians["before"].values()), 2),
        "now_ms": round(statistics.median(medians["now"].values()), 2),
        "ratio": round(sum(medians["now"].values()) / sum(medians["before"].values()), 3),
        "largest_ratio": round(max(ratios.values()), 3),
        "largest_ratio_of": max(ratios, key=lambda name: ratios[name]),
    }
    print(json.dumps(record, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
