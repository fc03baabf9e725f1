"""Records of the modules that a script loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from warp_tiles.cache._sealed import seal, unseal
from warp_tiles.launch import previous_run
from warp_tiles.launch.previous_run import PreviousRuns
from warp_tiles.plan.planning import LoadedModule

MODULES = (LoadedModule("a", ("k", "l"), 64, "cuda:0"), LoadedModule("b", (), 256, "cpu"))


def stored(root: Path) -> list[Path]:
    return sorted((root / previous_run.FOLDER).glob("*.json"))


def test_a_record_is_read_back(tmp_path: Path) -> None:
    script, runs = tmp_path / "train.py", PreviousRuns(tmp_path / "cache")
    assert runs.read(script) == ()
    runs.write(script, MODULES)
    assert PreviousRuns(tmp_path / "cache").read(script) == MODULES
    (path,) = stored(tmp_path / "cache")
    assert path.stat().st_mode & 0o777 == 0o600
    assert unseal(path.read_bytes())["script"] == str(script)


def test_a_script_is_identified_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = PreviousRuns(tmp_path)
    runs.write(Path("a.py"), MODULES)
    assert runs.read(tmp_path / "a.py") == MODULES
    assert runs.read(Path("b.py")) == ()


@pytest.mark.parametrize(
    "body",
    [{}, {"format": 2, "modules": []}, {"format": 1}, {"format": 1, "modules": 7},
     *({"format": 1, "modules": [row]} for row in
       (["a"], ["a", 3, 64, "cpu"], ["a", [], "x", "cpu"], ["a", [], 1e999, "cpu"]))],
)  # fmt: skip
def test_a_record_of_another_form_counts_as_none(
    tmp_path: Path, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = PreviousRuns(tmp_path)
    monkeypatch.setattr(runs._documents, "read", lambda _: body)
    assert runs.read(tmp_path / "train.py") == ()


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, seal({})[:-1]])
def test_a_damaged_record_is_removed(tmp_path: Path, data: bytes) -> None:
    script, runs = tmp_path / "train.py", PreviousRuns(tmp_path)
    runs.write(script, MODULES)
    (path,) = stored(tmp_path)
    path.write_bytes(data)
    assert runs.read(script) == ()
    assert stored(tmp_path) == []


def test_the_oldest_records_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previous_run, "MAX_SCRIPTS", 2)
    runs = PreviousRuns(tmp_path)
    for number in range(4):
        runs.write(tmp_path / f"{number}.py", MODULES)
        for path in stored(tmp_path):
            os.utime(path, ns=(0, path.stat().st_mtime_ns - 1_000_000_000))  # a clock may tick slowly
    assert [runs.read(tmp_path / f"{number}.py") != () for number in range(4)] == [False, False, True, True]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / previous_run.FOLDER).write_text("in the way")
    script, runs = tmp_path / "train.py", PreviousRuns(tmp_path)
    runs.write(script, MODULES)
    assert runs.read(script) == ()
