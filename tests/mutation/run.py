"""Runs the mutations: ``python -m tests.mutation.run [--only TEXT] [--made N] [--seed N] [--jobs N] [--record]``.

It runs all that have names, and some of each file that are made. Each job has a copy of the tree, applies one mutation
at a time to it and runs the mutation's tests. The same tests must first pass without a mutation.
"""

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.mutation.table import ROOT, Mutation, drawn, named

RECORD = ROOT / "benchmarks" / "results" / "mutations.json"
SECONDS = 300.0  # of the tests of one mutation
_PYTEST = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestConfigWarning"]
_ALSO_NIGHTLY = ["-m", "not gpu"]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
_NOT_COMPILED = " does not compile:\n"  # tests/emulator/emulator.py
_PASSED, _TESTS_FAILED = 0, 1  # exit statuses of pytest


@dataclass(frozen=True)
class Outcome:
    """The run of one mutation.

    Attributes:
        mutation: The mutation.
        state: ``killed``, ``survived``, ``timed out``, ``invalid`` if a made one does not compile, or ``broken`` if the
            tests could not be run.
        test: The first test that failed.
    """

    mutation: Mutation
    state: str
    test: str = ""


class Tree:
    """A copy of the files of the repository, without those that git ignores.

    Args:
        root: The repository.
        folder: Where the copy goes; it does not exist yet.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder / "tree"
        self._scratch = folder / "scratch"
        self._emulator = folder / "emulator"
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, cwd=root, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            if (root / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.folder / name)

    def test(self, tests: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Run pytest. Returns its exit status, or None if it took too long, and its output."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "EMULATOR_CACHE": str(self._emulator),
            "EMULATED_PRODUCTS": "200",
        }
        environment.pop("PYTEST_ADDOPTS", None)  # those of a run around this one
        command = [sys.executable, *_PYTEST, *_ALSO_NIGHTLY, f"--basetemp={self._scratch}", *tests]
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, encoding="utf-8", errors="replace", start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the compilers that the tests have started
            process.communicate()
            return None, ""
        return process.returncode, output

    def run(self, mutation: Mutation, seconds: float = SECONDS) -> Outcome:
        """Apply a mutation, run its tests and take it back."""
        path = self.folder / mutation.file
        text = path.read_text("utf-8")
        path.write_text(mutation.applied(text), "utf-8")
        try:
            status, output = self.test(mutation.tests, seconds)
        finally:
            path.write_text(text, "utf-8")
        states = {None: "timed out", _PASSED: "survived", _TESTS_FAILED: "killed"}
        state = "killed" if status is not None and status < 0 else states.get(status, "broken")  # by a signal
        if state == "killed" and _NOT_COMPILED in output:
            state = "invalid"
        failed = _FAILED.search(output)
        return Outcome(mutation, state, failed[1] if failed else "")


def record(outcomes: Sequence[Outcome], path: Path = RECORD) -> dict[str, Any]:
    """Write the outcomes. Those of other mutations stay, unless they are no longer in the tables."""
    before = json.loads(path.read_text("utf-8"))["files"] if path.exists() else {}
    now = {(item.mutation.file, item.mutation.name): item for item in outcomes if item.state != "invalid"}
    found: dict[str, dict[str, Any]] = {}
    for mutation in dict.fromkeys([*named(), *(item.mutation for item in now.values())]):
        item = now.get((mutation.file, mutation.name))
        result = {"state": item.state, "test": item.test} if item else before.get(mutation.file, {}).get(mutation.name)
        if result:
            found.setdefault(mutation.file, {})[mutation.name] = result
    states = [result["state"] for results in found.values() for result in results.values()]
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    written = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip(),
        "total": len(states),
        "killed": states.count("killed"),
        "files": found,
    }
    path.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    return written


def run_all(chosen: Sequence[Mutation], jobs: int, folder: Path) -> list[Outcome]:
    """Run mutations and print each outcome.

    Raises:
        RuntimeError: Tests fail without a mutation.
    """
    trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for number in range(jobs):
        trees.put(Tree(ROOT, folder / str(number)))

    @contextmanager
    def free_tree() -> Iterator[Tree]:
        tree = trees.get()
        try:
            yield tree
        finally:
            trees.put(tree)

    def baseline(file: str) -> str:
        tests = list(dict.fromkeys(test for mutation in chosen if mutation.file == file for test in mutation.tests))
        with free_tree() as tree:
            status, output = tree.test(tests, 4 * SECONDS)
        return "" if status == _PASSED else f"{file}: without a mutation, pytest ends with {status}:\n{output[-3000:]}"

    def outcome(mutation: Mutation) -> Outcome:
        with free_tree() as tree:
            found = tree.run(mutation)
        print(f"{found.state:9} {mutation.file}: {mutation.name}  {found.test}", flush=True)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        failures = [text for text in pool.map(baseline, dict.fromkeys(mutation.file for mutation in chosen)) if text]
        if failures:
            raise RuntimeError("\n".join(failures))
        return list(pool.map(outcome, chosen))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status: 1 if a mutation is not killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run")
    parser.add_argument("--only", default="", help="mutations whose file or name contains this text")
    parser.add_argument("--made", type=int, default=2, help="made mutations of each file; 2 by default")
    parser.add_argument("--seed", type=int, default=0, help="draws the made ones")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="mutations at a time")
    parser.add_argument("--record", action="store_true", help=f"write the outcomes to {RECORD.relative_to(ROOT)}")
    given = parser.parse_args(arguments)
    chosen = [m for m in (*named(), *drawn(given.made, given.seed)) if given.only in f"{m.file}: {m.name}"]
    with tempfile.TemporaryDirectory(prefix="warp_tiles_mutations_") as folder:
        outcomes = run_all(chosen, given.jobs, Path(folder))
    if given.record:
        written = record(outcomes)
        print(f"{written['killed']} of {written['total']} on record are killed")
    valid = [item for item in outcomes if item.state != "invalid"]
    alive = [f"{item.state} {item.mutation.file}: {item.mutation.name}" for item in valid if item.state != "killed"]
    print(f"{len(valid) - len(alive)} of {len(valid)} are killed", *alive, sep="\n")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
