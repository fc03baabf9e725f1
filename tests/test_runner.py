"""The runner of benchmarks: repeats that alternate, summaries, files of results. A clock is a list."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import runner
from benchmarks.runner import WrongResultError
from benchmarks.speed.builds import BuildStore


@dataclass(frozen=True)
class Case:
    name: str


CASES = [Case("loop a"), Case("loop b"), Case("small a")]


def test_sides_alternate_in_both_orders_and_some_have_fewer_repeats() -> None:
    calls: list[str] = []

    def side(name: str) -> Any:
        return lambda: calls.append(name) or len(calls)

    found = runner.alternately({"a": side("a"), "b": side("b")}, 3, most={"b": 2})
    assert calls == ["a", "b", "b", "a", "a"]
    assert found == {"a": [1, 4, 5], "b": [2, 3]}


def test_a_difference_that_is_too_large_or_no_number_is_an_error() -> None:
    assert runner.require_close(1e-3, 1e-2, "float64") == 1e-3
    for found in (1e-1, float("nan")):
        with pytest.raises(WrongResultError, match="differs from float64 by"):
            runner.require_close(found, 1e-2, "float64")


def run(path: Path, sources: str, *arguments: str, values: dict[str, Any]) -> int:
    """A run in which a case has a value, or is an error."""

    def measured(case: Case, options: Any) -> runner.Row:
        if isinstance(values[case.name], Exception):
            raise values[case.name]
        return {"value": values[case.name]}

    def total(rows: list[runner.Row]) -> runner.Row:
        return {"total": sum(row.get("value", 0) for row in rows)}

    main = runner.command("", CASES, measured, lambda options: {"sources": sources}, summarize=total)
    return main(["--json", str(path), *arguments])


def test_a_file_keeps_the_rows_that_are_not_measured_again_and_the_runs_that_rows_name(tmp_path: Path) -> None:
    path, values = tmp_path / "result.json", {"loop a": 1, "loop b": 2, "small a": 4}
    assert run(path, "first", "--only", "small a", "loop a", values=values) == 0
    assert run(path, "second", "--only", "loop b", values=values) == 0
    data = json.loads(path.read_text())
    assert [(row["name"], row["run"]) for row in data["rows"]] == [("loop a", 0), ("loop b", 1), ("small a", 0)]
    assert (data["runs"], data["total"]) == ([{"sources": "first"}, {"sources": "second"}], 7)
    values["loop b"] = 8
    assert run(path, "second", "--missing", values=values) == 0
    data = json.loads(path.read_text())
    assert data["total"] == 7, "what the second sources had is not missing"
    assert [run["sources"] for run in data["runs"]] == ["second", "second"], "no row names the first run any more"


def test_a_wrong_result_is_kept_and_is_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, values = tmp_path / "result.json", {"loop a": WrongResultError("c differs"), "loop b": 2, "small a": 4}
    assert run(path, "s", values=values) == 1
    assert "loop a: WRONG RESULT: c differs" in capsys.readouterr().err
    assert json.loads(path.read_text())["rows"][0] == {"name": "loop a", "wrong": "c differs", "run": 0}
    assert run(path, "s", "--missing", values=values | {"loop a": 1}) == 0, "it counts as missing"
    assert json.loads(path.read_text())["total"] == 7


def test_a_run_ends_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "result.json", "s", "--seconds", "-1", values={}) == 0
    assert "out of time" in capsys.readouterr().err


def test_a_run_ends_when_the_gpu_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    gpu = SimpleNamespace(warm_up=lambda: calls.append("warm"), is_usable=lambda: len(calls) < 3)
    monkeypatch.setattr(runner, "timing", lambda: gpu)
    main = runner.command("", CASES, lambda case, options: calls.append(case.name) or {}, lambda options: {}, gpu=True)
    assert main([]) == 2
    assert calls == ["warm", "loop a", "loop b"], "the clock is raised before the first row"


def test_a_row_may_be_bad_or_missing(tmp_path: Path) -> None:
    path, rows = tmp_path / "result.json", {"loop a": {"ratio": 3}, "loop b": None, "small a": {"ratio": 1}}
    main = runner.command(
        "", CASES, lambda case, options: rows[case.name], lambda options: {}, is_bad=lambda row: row["ratio"] > 2
    )
    assert main(["--json", str(path)]) == 1
    assert [row["name"] for row in json.loads(path.read_text())["rows"]] == ["loop a", "small a"]
    assert main(["--only", "small"]) == 0


@pytest.mark.parametrize(
    ("arguments", "measured"), [([], ["conditions", "loop a", "loop b", "small a", "closed"]), (["--build-only"], [])]
)
def test_cases_are_built_before_they_are_measured(
    arguments: list[str], measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setattr(BuildStore, "fill", lambda self, builds, *_: log.append(f"build {', '.join(builds)}"))

    def conditions(options: Any) -> runner.Row:
        options.stack.callback(log.append, "closed")
        log.append("conditions")
        return {}

    main = runner.command(
        "", CASES, lambda case, options: log.append(case.name) or {}, conditions,
        builds=lambda case, options: [case.name],
    )  # fmt: skip
    assert main(["--builds", str(tmp_path), *arguments]) == 0
    assert log == ["build loop a, loop b, small a", *measured]
