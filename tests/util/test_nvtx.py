"""Ranges for profilers: only if they are asked for, and one warning if the package is missing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.bench import ALIGNED, Bench
from tests.build.test_module_build import Case
from tests.launch.recorded_kernels import CPU, blend
from warp_tiles.launch.recorded import RecordedLaunch
from warp_tiles.util import nvtx
from warp_tiles.util.warn import WarnedTexts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ranges that begin and end, as a stand-in for the package nvtx gets them."""
    seen: list[str] = []

    @contextlib.contextmanager
    def annotate(message: str, domain: str) -> Iterator[None]:
        assert domain == "warp_tiles"
        seen.append(message)
        yield
        seen.append(f"end of {message}")

    stand_in: Any = types.ModuleType("nvtx")
    stand_in.annotate = annotate
    monkeypatch.setitem(sys.modules, "nvtx", stand_in)
    return seen


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.setattr(nvtx, "_warned", WarnedTexts())


def test_a_block_is_a_range_of_the_domain(ranges: list[str]) -> None:
    with nvtx.marked(True, "plan m"):
        ranges.append("the block")
    assert ranges == ["plan m", "the block", "end of plan m"]


def test_nothing_is_imported_or_marked_if_the_setting_is_off(
    ranges: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)  # an import would fail
    with nvtx.marked(False, "plan m"):
        pass
    assert ranges == []


def test_a_missing_package_is_one_warning_with_the_remedy(without_package: None) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3):
            with nvtx.marked(True, "plan m"):
                pass
    assert [str(item.message) for item in found] == [
        "warp_tiles: the setting nvtx is on, and the package nvtx is not installed, so no ranges are marked. "
        "Remedy: pip install 'warp-tiles[nvtx]'"
    ]


def test_a_build_and_a_link_are_ranges(ranges: list[str], bench: Bench, tmp_path: Path) -> None:
    bench.engine.start([ALIGNED])[ALIGNED].result(20)
    assert ranges == []
    with warp_tiles.override(nvtx=True):
        bench.engine.start([ALIGNED])[ALIGNED].result(20)
        Case(tmp_path).build()
    assert [name for name in ranges if not name.startswith("end")] == [f"build {ALIGNED.describe()}", "link module"]
    assert len(ranges) == 4


def test_replays_are_ranges_if_the_recording_was_made_so(ranges: list[str]) -> None:
    arrays = [wp.array(np.full(4, 2.0, np.float32), device=CPU, requires_grad=True) for _ in range(4)]
    arguments = ([*arrays[:3], 2.0, 1.0], arrays[3:])

    def replayed() -> type:
        recorded = warp_tiles.record(blend, 4, *arguments, device=CPU)
        recorded.forward()
        recorded.adjoint()
        assert arrays[3].numpy().tolist() == [10.0] * 4
        return type(recorded)

    assert replayed() is RecordedLaunch, "without the setting, a replay has no code for ranges"
    assert ranges == []
    with warp_tiles.override(nvtx=True):
        assert issubclass(replayed(), RecordedLaunch)
    assert [name for name in ranges if not name.startswith("end")] == ["replay blend", "replay blend, adjoint"]


def test_the_setting_does_not_change_a_modules_hash() -> None:
    from warp_tiles._warp.hooks import _code_settings

    before = _code_settings()
    with warp_tiles.override(nvtx=True):
        assert _code_settings() == before


SCRIPT = """
import warp as wp, warp_tiles
warp_tiles.enable()

@wp.kernel(enable_backward=False)
def gemm(A: wp.array2d(dtype=float), C: wp.array2d(dtype=float)):
    a = wp.tile_load(A, shape=(8, 8))
    wp.tile_store(C, wp.tile_matmul(a, a))

plan = warp_tiles.plan(gemm, arch=90, block_dim=32)
print([v.provider for v in plan.variants])
"""


def test_a_plan_is_a_range(tmp_path: Path) -> None:
    (tmp_path / "nvtx.py").write_text(
        "import contextlib\n@contextlib.contextmanager\ndef annotate(message, domain):\n    print(message)\n    yield\n"
    )
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "WARP_TILES_NVTX": "1", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "plan __main__" in done.stdout.splitlines()
