"""Installs this project beside other packages in fresh environments, and builds a function of each provider there.

    python tools/beside.py                  all packages of BESIDE, which takes gigabytes and half an hour
    python tools/beside.py torch==2.14.1    these alone

The package is installed first. Installing the project must change nothing that is there, ``doctor`` must find no
problem, and README's first program and a build with each of ``own`` and ``cublasdx`` must succeed in a process that has
imported the package first.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCHES = ("torch==2.9.1", "torch==2.11.0", "torch==2.12.1", "torch==2.14.1")  # of CUDA 12.8, and of CUDA 13.0
OTHERS = ("torch", "jax[cuda12]", "jax[cuda13]", "cupy-cuda12x", "cupy-cuda13x", "numba-cuda", "numba-cuda[cu12]",
          "numba-cuda[cu13]", "warp-lang")  # fmt: skip
MODULES = {
    "torch": "torch",
    "jax": "jax",
    "cupy": "cupy",
    "numba": "numba.cuda",
    "warp": "warp",
}  # by the beginning of the package's name
PROVIDERS = ("own", "cublasdx")


def readme_program() -> str:
    """The first program of README.md."""
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    return blocks[0]


def importing(requirement: str) -> str:
    """The statement that imports a package."""
    name = re.split(r"[^a-z]", requirement)[0]
    return f"import {MODULES[name]}\n"


class Environment:
    """A fresh virtual environment in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=True)

    def run(self, *words: str, **variables: str) -> str:
        """Standard output of the environment's Python.

        Raises:
            RuntimeError: The exit status is not 0.
        """
        python = self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WARP_TILES"))}
        done = subprocess.run(
            [python, *words], env=inherited | variables, cwd=self.folder, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def install(self, requirement: str) -> None:
        """Install a requirement."""
        self.run("-m", "pip", "install", "-q", "--no-compile", requirement)

    def versions(self) -> dict[str, str]:
        """The versions of the installed packages, by name."""
        rows = json.loads(self.run("-m", "pip", "list", "--format", "json"))
        return {row["name"]: row["version"] for row in rows}


def problems(requirement: str, folder: Path) -> list[str]:
    """What is wrong in a fresh environment with a package and this project, a text for each."""
    environment = Environment(folder / "env")
    environment.install(requirement)
    before = environment.versions()
    environment.install(str(ROOT))
    after = environment.versions()
    found = [f"{name} {before[name]} became {after.get(name)}" for name in before if before[name] != after.get(name)]
    variables = {"WARP_TILES_CACHE_DIR": str(folder / "cache"), "WARP_CACHE_PATH": str(folder / "warp")}
    findings = json.loads(environment.run("-m", "warp_tiles", "doctor", "--json", **variables))["findings"]
    found += [f"doctor: {one['subject']}: {one['detail']}" for one in findings if one["state"] == "problem"]
    script = folder / "program.py"
    script.write_text(importing(requirement) + readme_program())
    if (printed := environment.run(str(script), **variables).split()[-1]) != "16.0":
        found.append(f"the program printed {printed}")
    for provider in PROVIDERS:
        words = ("-m", "warp_tiles", "compile", "--json", "-o", str(folder / provider), str(script))
        (module,) = json.loads(environment.run(*words, **variables, WARP_TILES_PROVIDER=provider))["modules"]
        if not module["lto_builds"]:
            found.append(f"{provider} built no function")
    return found


def main(arguments: Sequence[str]) -> int:
    """Check each package in turn. The status is the number of those with problems."""
    failed = 0
    for requirement in arguments or (*TORCHES, *OTHERS):
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = problems(requirement, Path(folder))
            except RuntimeError as error:
                found = [str(error)]
        failed += bool(found)
        print(f"{requirement}: {'; '.join(found) or 'ok'}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
