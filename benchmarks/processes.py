"""The fresh processes that benchmarks measure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT


def environment(inherited: Mapping[str, str] = os.environ, /, **changes: str | Path) -> dict[str, str]:
    """The environment of a process that imports this checkout, as an installed package is imported: with bytecode.

    Args:
        inherited: The variables to start from.
        **changes: Other values of variables.
    """
    given = {**inherited, **changes}
    given.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each process would compile all that it imports
    given["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), str(given.get("PYTHONPATH", "")))))
    return {name: str(value) for name, value in given.items()}


def run_in(state: Path, program: str, given: Any) -> Any:
    """What a fresh process of a state of this checkout prints in its last line, as JSON. Its caches are empty.

    Args:
        state: A worktree of the state, from which the process imports.
        program: The text of its Python program.
        given: What the program reads as JSON from its standard input.

    Raises:
        SystemExit: The process failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        caches = {"WARP_CACHE_PATH": f"{scratch}/warp", "WARP_TILES_CACHE_DIR": f"{scratch}/tiles"}
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(given),
            env={**environment(**caches), "PYTHONPATH": str(state.resolve())},
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{state}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def commit_of(state: Path) -> str:
    """The short name of the commit of a worktree."""
    describe = ["git", "-C", str(state), "rev-parse", "--short", "HEAD"]
    return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
