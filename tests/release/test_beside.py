"""The project can be installed beside other packages with compilers of their own, and works there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import beside


def resolved(tmp_path: Path, *arguments: str) -> dict[str, str]:
    """The versions that pip would install into an empty environment, by name."""
    report = tmp_path / "report.json"
    words = ["install", "-q", "--dry-run", "--ignore-installed", "--report", str(report), *arguments]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {row["metadata"]["name"]: row["metadata"]["version"] for row in json.loads(report.read_text())["install"]}


@pytest.mark.slow
@pytest.mark.parametrize("torch", beside.TORCHES)
def test_pip_finds_versions_that_fit_torch(torch: str, tmp_path: Path) -> None:
    found = resolved(tmp_path, torch, str(beside.ROOT))
    assert found["torch"] == torch.partition("==")[2]
    assert {"warp-tiles", "nvidia-cuda-nvrtc", "nvidia-nvjitlink"} <= found.keys()


@pytest.mark.nightly
@pytest.mark.parametrize("package", [*beside.TORCHES, *beside.OTHERS])
def test_what_is_there_stays_as_it_is(package: str, tmp_path: Path) -> None:
    alone = resolved(tmp_path, package)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in alone.items()))
    resolved(tmp_path, "-c", str(constraints), package, str(beside.ROOT))


@pytest.mark.slow
def test_functions_are_built_beside_a_real_torch(tmp_path: Path) -> None:
    assert beside.problems(beside.TORCHES[-1], tmp_path) == []


def test_the_program_is_readmes_first() -> None:
    assert beside.readme_program().rstrip().endswith("# 16.0")
    assert beside.importing("jax[cuda12]") == "import jax\n"
