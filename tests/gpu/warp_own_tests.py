"""Run Warp's own tile tests without and with warp_tiles and compare the outcome of each test.

    python -m tests.gpu.warp_own_tests --json FILE

Every module runs in two separate processes, and all of them run at once. The exit status is 1 if a test that
docs/warp_tests.md does not list has another outcome with warp_tiles than without.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

MODULES = [
    "test_tile_matmul",
    "test_tile_matmul_strides",
    "test_tile_mlp",
    "test_tile_cholesky",
    "test_tile_cholesky_no_mathdx",
    "test_tile_solve",
    "test_tile_solve_no_mathdx",
]
DEVICE_SUFFIX = r"_(cpu|cuda_\d+)$"
LISTED = Path(__file__).resolve().parents[2] / "docs" / "warp_tests.md"


class Outcomes(unittest.TextTestResult):
    """Keeps the outcome of every test by name."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.outcomes: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        self.outcomes[test.id()] = "passed"

    def addFailure(self, test: unittest.TestCase, err: object) -> None:  # type: ignore[override]  # noqa: N802
        super().addFailure(test, err)  # type: ignore[arg-type]
        self.outcomes[test.id()] = "failed"

    def addError(self, test: unittest.TestCase, err: object) -> None:  # type: ignore[override]  # noqa: N802
        super().addError(test, err)  # type: ignore[arg-type]
        self.outcomes[test.id()] = "error"

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self.outcomes[test.id()] = "skipped"


def run_one(module: str, enable: bool, outcome_file: Path) -> None:
    """Run one test module and write its outcomes; in a child process."""
    if enable:
        import warp_tiles

        warp_tiles.enable()
    suite = unittest.defaultTestLoader.loadTestsFromName(f"warp.tests.tile.{module}")
    runner = unittest.TextTestRunner(resultclass=Outcomes, verbosity=2)
    result = runner.run(suite)
    outcome_file.write_text(json.dumps(result.outcomes))  # type: ignore[attr-defined]


def spawn(module: str, enable: bool, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start one child process with its own caches."""
    name = f"{module}_{'with' if enable else 'without'}"
    outcome_file = folder / f"{name}.json"
    caches = {"WARP_CACHE_PATH": str(folder / f"{name}_warp"), "WARP_TILES_CACHE_DIR": str(folder / f"{name}_lto")}
    command = [sys.executable, "-m", "tests.gpu.warp_own_tests", "--one", module, str(outcome_file)]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *(["--enable"] if enable else [])],
            env={**os.environ, **caches, "WARP_TILES_JOBS": "4"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return process, outcome_file


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path, help="folder for the logs")
    parser.add_argument("--modules", nargs="+", choices=MODULES, default=MODULES)
    parser.add_argument("--one", nargs=2, metavar=("MODULE", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--enable", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        run_one(arguments.one[0], arguments.enable, Path(arguments.one[1]))
        return 0
    listed = LISTED.read_text("utf-8") if LISTED.exists() else ""
    folder = arguments.logs or Path(tempfile.mkdtemp(prefix="warp_own_tests_"))
    folder.mkdir(parents=True, exist_ok=True)
    start = time.time()
    running = {(m, enable): spawn(m, enable, folder) for m in arguments.modules for enable in (False, True)}
    outcomes: dict[str, dict[str, dict[str, str]]] = {}
    for (module, enable), (process, outcome_file) in running.items():
        process.wait()
        found = json.loads(outcome_file.read_text()) if outcome_file.exists() else {"": "crashed"}
        outcomes.setdefault(module, {})["with" if enable else "without"] = found
    different = []
    for module, both in outcomes.items():
        names = sorted(set(both["with"]) | set(both["without"]))
        for name in names:
            pair = (both["without"].get(name, "absent"), both["with"].get(name, "absent"))
            if pair[0] != pair[1]:
                known = f"`{re.sub(DEVICE_SUFFIX, '', name.split('.')[-1])}`" in listed
                different.append({"test": name, "without": pair[0], "with": pair[1], "listed": known})
        print(f"{module}: {len(names)} tests, {sum(v == 'passed' for v in both['with'].values())} pass with warp_tiles")
    for row in different:
        print(row)
    if arguments.json:
        counts = {
            module: {side: {o: list(t.values()).count(o) for o in set(t.values())} for side, t in both.items()}
            for module, both in outcomes.items()
        }
        record = {"seconds": round(time.time() - start), "counts": counts, "different": different}
        arguments.json.write_text(json.dumps(record, indent=1))
    return 1 if any(not row["listed"] for row in different) else 0


if __name__ == "__main__":
    sys.exit(main())
