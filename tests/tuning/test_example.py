"""The example and the documentation's code, with records on disk."""

import json
import re
from pathlib import Path

import pytest

from tests.interpreter import python

ROOT = Path(__file__).resolve().parent.parent.parent


def run(folder: Path, *command: str) -> str:
    """Standard output of a Python program with its own records."""
    return python(*command, WARP_TILES_CACHE_DIR=str(folder / "tiles")).stdout


@pytest.mark.slow
def test_the_second_run_measures_nothing(tmp_path: Path) -> None:
    """With three of its tiles, because each takes seconds to build. The next test builds them all."""
    three = "from examples import autotune_gemm as example; del example.CONFIGS[3:]; example.main()"
    command = ("-c", three, "--precision", "fp32", "--shape", "48x33x70")
    assert "builds=3, measurements=3" in run(tmp_path, *command)
    assert "searches=0, builds=0, measurements=0" in run(tmp_path, *command)


@pytest.mark.nightly
def test_default_beside_tuned(tmp_path: Path) -> None:
    result = tmp_path / "compare.json"
    shapes = ("--shape", "16x16x16", "--shape", "100x20x30")
    text = run(
        tmp_path, "examples/autotune_gemm.py", "--compare", "--precision", "tf32", *shapes, "--json", str(result)
    )
    assert "geometric mean" in text
    found = json.loads(result.read_text())
    assert [row["shape"] for row in found["rows"]] == [[16, 16, 16], [100, 20, 30]]
    assert all(row["ratio"] > 0 and row["error"] < 5e-3 and not row["failed"] for row in found["rows"])
    assert found["machine"]["warp"]


@pytest.mark.slow
def test_the_documented_kernel_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tuning.md").read_text()
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "autotune" in block]
    assert len(blocks) == 1
    program = tmp_path / "documented.py"
    then = "print(np.array_equal(y.numpy(), 2 * x.numpy()), scale.counters)"
    program.write_text(f"{blocks[0]}\n{then}\n")
    best, counters = run(tmp_path, str(program)).splitlines()[-2:]
    assert best.startswith("Timing(config={'tile'")
    assert counters.startswith("True Counters(")
