"""Python in a new process."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def python(
    *words: object, status: int = 0, folder: Path = REPOSITORY, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python, which finds this checkout. Its exit status must be this one."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == status, (
        f"{words} ended with {done.returncode}:\n{done.stdout[-9000:]}\n{done.stderr[-9000:]}"
    )
    return done
