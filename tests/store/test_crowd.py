"""64 processes of one machine that ask for one cold key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROCESSES = 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "expected"),
    [("one", "0 failed, 1 builds, 0 requests\n"), ("fetch", "0 failed, 0 builds, 1 requests\n")],
)
def test_one_build_or_one_request(tmp_path: Path, kind: str, expected: str) -> None:
    command = [sys.executable, "-m", "tests.store.crowd", str(tmp_path), str(PROCESSES), kind]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env=environment)
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert done.stdout == expected
