"""The repository passes its formatter, its linter and its type checker. A missing tool is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def check(*command: str) -> None:
    """Run a tool of the test extra in the root of the repository."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_ruff_check() -> None:
    check("ruff", "check", ".")


def test_ruff_format() -> None:
    check("ruff", "format", "--check", ".")


@pytest.mark.slow
def test_mypy() -> None:
    check("mypy")
