"""The examples, and the commands of the README."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.commands import command
from tests.interpreter import python
from warp_tiles.reports.descriptions import functions, module_title

ROOT = Path(__file__).resolve().parent.parent


def printed(*words: object) -> str:
    """What a command of warp_tiles, which must succeed, writes to standard output."""
    done = command(*words, as_json=False)
    assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


@pytest.mark.slow
def test_gemm_through_run(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    text = printed("run", "--report", report, ROOT / "examples" / "gemm.py")
    assert "forward" in text
    assert "skip" in text
    assert re.search(r"largest error \d", text)
    built = [module for module in json.loads(report.read_text())["modules"] if module["arch"] is not None]
    assert built, "the example compiles for a GPU"
    assert built[0]["lto_builds"] + built[0]["lto_hits"] == 0, "its loop has stages"


def test_gemm_refuses_an_invalid_size() -> None:
    assert "multiple of 64, got 100" in python("examples/gemm.py", "--size", "100", status=2).stderr


@pytest.mark.slow
def test_mlp_train_draws_its_loss(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra 'plot')")
    picture = tmp_path / "loss.png"
    text = python("examples/mlp_train.py", "--steps", "100", "--plot", picture).stdout
    assert "gradients differ from NumPy's by at most" in text
    first, last = map(float, re.findall(r": ([\d.]+) -> ([\d.]+) in 100 steps", text)[0])
    assert last < 0.1 * first
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_recorded_training() -> None:
    text = python("examples/recorded_training.py", "--steps", "100", "--device", "cpu").stdout
    assert "gradients of the recorded launches equal wp.Tape's bit for bit" in text
    first, last = map(float, re.findall(r": ([\d.]+) -> ([\d.]+) in 100 steps", text)[0])
    assert last < 0.1 * first
    assert "CUDA graph        not run: no GPU" in text


@pytest.mark.slow
def test_matmul() -> None:
    text = python("examples/matmul.py", "--size", "64").stdout
    found = dict(re.findall(r"^(.+) on .*: differs from NumPy by ([\d.e-]+) of", text, re.MULTILINE))
    assert set(found) == {
        *("gelu(x @ w + bias)", "gradient of x", "gradient of w", "gradient of bias", "2 a^T @ b + c / 2")
    }


@pytest.mark.slow
def test_solves() -> None:
    text = python("examples/solves.py", "--size", "70").stdout
    assert set(re.findall(r"^(.+) on .*: differs from NumPy by", text, re.MULTILINE)) == {"x", "gradient of y", "L"}
    assert "matrix 42 is not positive definite: its leading minor of order 8 is not positive" in text


@pytest.mark.slow
@pytest.mark.nightly  # Warp builds seven functions with libmathdx
def test_skip_adjoints() -> None:
    text = python("examples/skip_adjoints.py", "--size", "8").stdout
    rows = re.findall(r"^(.{20})(Warp|warp_tiles) +(\d+)", text, re.MULTILINE)
    counts = {(name.strip(), who): int(count) for name, who, count in rows}
    assert counts == {
        ("with adjoints", "Warp"): 3,
        ("with adjoints", "warp_tiles"): 3,
        ("module option off", "Warp"): 1,
        ("module option off", "warp_tiles"): 1,
        ("kernel option off", "Warp"): 3,
        ("kernel option off", "warp_tiles"): 1,
    }


@pytest.mark.slow
def test_warps_own_example_runs_unmodified() -> None:
    import warp as wp

    script = Path(wp.__file__).parent / "examples" / "tile" / "example_tile_matmul.py"
    assert "Example matrix multiplication passed" in printed("run", script)


@pytest.mark.slow
def test_the_program_of_the_readme_runs_and_prints(tmp_path: Path) -> None:
    (program,) = re.findall(
        r"^```python\n(import numpy.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "program.py").write_text(program)
    assert python(tmp_path / "program.py").stdout.splitlines()[-1] == "16.0"
    (shown,) = re.findall(r"^```\n(module .*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (module,) = json.loads(printed("plan", "--json", tmp_path / "program.py"))["modules"]
    title, *cells = shown.splitlines()
    assert title == f"module {module_title(module)}, kernels: {', '.join(module['kernels'])}"
    forward = functions(module)[0]
    assert cells == [
        f"function: {forward.title}",
        f"dtypes: {forward.planned['dtypes']}",
        f"kernels: {', '.join(forward.planned['kernels'])}",
        "state: to build",
        f"provider, tile: {forward.provider}",
        f"reason: {forward.reason}",
    ]


def readme_commands() -> list[str]:
    return re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_readme_has_two_commands_and_ci_runs_the_second() -> None:
    first, second = readme_commands()
    assert "warp-tiles run examples/gemm.py" in first
    assert second.endswith('-m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "not slow and not gpu"')
    script = (ROOT / ".ci" / "run").read_text()
    assert "README.md" in script
    assert all(part in second for part in re.findall(r"(?:quick|workers)='(.*?)'", script)), "CI removes these parts"
    assert len(re.findall(r"(?:quick|workers)='(.*?)'", script)) == 2


@pytest.mark.nightly  # pip installs all dependencies once more; .ci/run installs them with the second command
def test_the_readmes_first_command_in_a_clean_copy(tmp_path: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout, so its files are unknown")
    for name in tracked.stdout.splitlines():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, target)
    outside = {"PYTHONPATH": "", "WARP_CACHE_PATH": str(tmp_path / "w"), "WARP_TILES_CACHE_DIR": str(tmp_path / "t")}
    outside["PIP_COMPILE"] = "0"  # most modules of the packages are never imported
    done = subprocess.run(
        ["bash", "-c", readme_commands()[0]],
        cwd=tmp_path, env={**os.environ, **outside}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "largest error" in done.stdout
