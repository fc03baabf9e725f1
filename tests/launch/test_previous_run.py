"""Records of the modules that a script loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warp_tiles.launch import previous_run
from warp_tiles.plan.loads import LoadedModule

MODULES = (LoadedModule("a", ("k", "l"), 64, "cuda:0"), LoadedModule("b", (), 256, "cpu"))


def test_a_record_is_read_back(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    path = previous_run.record_path(tmp_path / "cache", script)
    assert previous_run.read(path) == ()
    previous_run.write(path, script, MODULES)
    assert previous_run.read(path) == MODULES
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_script_is_identified_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {previous_run.record_path(tmp_path, script) for script in (Path("a.py"), tmp_path / "a.py")}
    assert len(paths) == 1
    assert previous_run.record_path(tmp_path, Path("b.py")) not in paths


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "[]", "null", '{"format": 2, "modules": []}', '{"format": 1}',
     *(f'{{"format": 1, "modules": [{row}]}}' for row in
       ('["a"]', '["a", 3, 64, "cpu"]', '["a", [], "x", "cpu"]', '["a", [], Infinity, "cpu"]'))],
)  # fmt: skip
def test_a_damaged_record_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    assert previous_run.read(path) == ()


def test_the_oldest_records_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previous_run, "MAX_SCRIPTS", 2)
    paths = []
    for number in range(4):
        script = tmp_path / f"{number}.py"
        paths.append(previous_run.record_path(tmp_path, script))
        previous_run.write(paths[-1], script, MODULES)
    assert [path.exists() for path in paths][-1]
    assert sum(path.exists() for path in paths) == 2


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / previous_run.FOLDER).write_text("in the way")
    script = tmp_path / "train.py"
    previous_run.write(previous_run.record_path(tmp_path, script), script, MODULES)


def test_a_record_names_its_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    path = previous_run.record_path(tmp_path, script)
    previous_run.write(path, script, MODULES)
    assert json.loads(path.read_text())["script"] == str(script)
