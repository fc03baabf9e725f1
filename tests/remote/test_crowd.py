"""Rounds of 64 processes that ask for one cold key: of 64 machines with one store, and of one machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROCESSES = 64


@pytest.mark.slow
@pytest.mark.parametrize(("machines", "rounds"), [("many", 10), ("one", 2)])
def test_one_build(tmp_path: Path, machines: str, rounds: int) -> None:
    command = [sys.executable, "-m", "tests.remote.crowd", str(tmp_path), str(rounds), str(PROCESSES), machines]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert done.stdout == "0 failed, 1 builds\n" * rounds
    claims = [path for path in tmp_path.rglob("claims/*/*") if path.is_file()]
    assert claims == []
