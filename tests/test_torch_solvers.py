"""The column of torch.linalg in the benchmark of solver functions, without a GPU."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import warp as wp

from benchmarks import solver_errors, solvers, torch_solvers
from benchmarks.speed import timing
from benchmarks.speed.builds import Build

RUN = {"gpu": "GPU", "driver": "1", "warp": "1.19.0", "warp_tiles": "0.1.0", "date": "2026-01-01T00:00:00"}


def cell(threads: int, function: str = "cholesky", **changes: Any) -> solvers.Cell:
    return solvers.Cell(**{"function": function, "types": "fp32", "n": 8, "columns": 0, "threads": threads} | changes)


class Tensor(np.ndarray[Any, Any]):
    """A NumPy array with the methods of a tensor that the benchmark calls."""

    def unsqueeze(self, axis: int) -> Tensor:
        return np.expand_dims(self, axis).view(Tensor)

    def squeeze(self, axis: int = -1) -> Tensor:  # type: ignore[override]
        return np.squeeze(np.asarray(self), axis).view(Tensor)

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return np.asarray(self)


def stand_in_for_torch() -> Any:
    """What the benchmark calls of torch, computed by NumPy."""

    def solve(a: Any, b: Any, upper: bool) -> Any:
        return np.linalg.solve(np.triu(a) if upper else np.tril(a), b).view(Tensor)

    linalg = SimpleNamespace(
        cholesky_ex=lambda a: SimpleNamespace(L=np.linalg.cholesky(a).view(Tensor)), solve_triangular=solve
    )
    cuda = SimpleNamespace(stream=lambda stream: contextlib.nullcontext(), has_magma=True, is_available=lambda: True)
    return SimpleNamespace(
        linalg=linalg,
        cholesky_solve=lambda b, lower: np.linalg.solve(lower @ np.swapaxes(lower, 1, 2), b).view(Tensor),
        cuda=cuda,
        backends=SimpleNamespace(cuda=SimpleNamespace(preferred_linalg_library=lambda name: None)),
        no_grad=contextlib.nullcontext,
        version=SimpleNamespace(cuda="13.0"),
        __version__="2.11.0",
    )


def triangles(function: str) -> tuple[Any, Any, Any]:
    """Matrices and right-hand sides in float64, and the result of a function."""
    row = solver_errors.Row(function, "fp64", 8, 1e2)
    drawn = solver_errors.draw(row)
    return drawn["a"], drawn["b"], solver_errors.exact(function, *(drawn[name] for name in "abg"))["x"]


@pytest.mark.parametrize("function", solver_errors.FUNCTIONS)
@pytest.mark.parametrize("wrong", [False, True])
def test_a_row_beside_torch(monkeypatch: pytest.MonkeyPatch, function: str, wrong: bool) -> None:
    times = {"tiles": 10.0, "default": 50.0, "cusolver": 30.0}
    monkeypatch.setattr(wp, "to_torch", lambda array: array.view(Tensor))
    monkeypatch.setattr(wp, "stream_to_torch", lambda device: None)
    monkeypatch.setattr(torch_solvers, "host_time", lambda run, device: 40.0)
    monkeypatch.setattr(
        timing,
        "time_alternately",
        lambda launches, device: {name: timing.Times(times[name], 1.0, 1.9) for name in launches},
    )
    a, b, result = triangles(function)
    loaded = SimpleNamespace(a=a, b=b, run=None, results=lambda: {"x": result[::63] * (2.0 if wrong else 1.0)})
    row = torch_solvers.measure(cell(64, function), loaded, stand_in_for_torch(), 1e-12, "cpu")  # type: ignore[arg-type]
    assert (row["name"], row["threads"], row["kind"]) == (f"{function} fp32 n8", 64, function)
    assert (row["library"], row["ratio"]) == ("cusolver", 3.0)
    assert row["torch"]["default"]["host_us"] == 40.0
    assert ("wrong" in row) == wrong
    assert ("WRONG" in torch_solvers.line_of(row)) == wrong
    assert solvers.summary([row])[f"{function} fp32"]["geometric_mean"] == 3.0


class NoBuilds(solvers.BuildStore):
    """A store that builds nothing, and notes what it was asked for."""

    asked: list[Build[Any]]

    def __init__(self, root: Path, provider: str) -> None:
        super().__init__(root, provider)
        NoBuilds.asked = []

    def fill(self, builds: Any, workers: int, again: bool = False) -> None:
        NoBuilds.asked += builds


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``solvers.main`` with arguments, on stand-ins for the GPU and its results."""

    def time_beside(one: solvers.Cell, *_: Any) -> dict[str, Any]:
        row = {"name": torch_solvers.name_of(one), "kind": one.kind, "types": one.types, "threads": one.threads}
        return row | {"tiles": {"median_us": 1.0}, "torch": {"default": {"median_us": 3.0}}, "ratio": 3.0}

    def time_cell(one: solvers.Cell, *_: Any) -> dict[str, Any]:
        sides: dict[str, Any] = {side: {"median_us": float(one.threads)} for side in solvers.SIDES}
        return {"name": one.label, "kind": one.kind, "types": one.types, "ratio": 1.0, **sides}

    def run(*arguments: str, torch: Any = None) -> int:
        monkeypatch.setattr(solvers, "BuildStore", NoBuilds)
        monkeypatch.setattr(solvers, "Loaded", lambda *_: None)
        monkeypatch.setattr(solvers, "measure", time_cell)
        monkeypatch.setattr(solvers, "gpu_record", lambda provider: dict(RUN))
        monkeypatch.setattr(timing, "warm_up", lambda device: None)
        monkeypatch.setattr(torch_solvers, "measure", time_beside)
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(sys, "argv", ["solvers.py", *arguments])
        return solvers.main()

    return run


def test_runs_with_and_without_torch(benchmark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "solvers.json"
    only = ("--json", str(path), "--only", "cholesky fp32 n8 t*", "lower_solve fp64 n4 t*")
    with pytest.raises(SystemExit):
        benchmark(*only, "--only-torch", torch=stand_in_for_torch())
    assert benchmark(*only) == 0
    first = json.loads(path.read_text())
    assert (first["torch"], len(first["rows"])) == (None, 8)
    assert "not installed" in first["torch_note"]
    assert benchmark(*only, "--only-torch") == 1

    assert benchmark(*only, "--only-torch", "--build-only") == 0
    assert [build.module for build in NoBuilds.asked] == ["tiles_cholesky_fp32_n8_t32", "tiles_lower_solve_fp64_n4_t32"]
    assert benchmark(*only, "--only-torch", torch=stand_in_for_torch()) == 0
    second = json.loads(path.read_text())
    assert "torch_note" not in second
    assert {key: second[key] for key in first if not key.startswith("torch")} == {
        key: first[key] for key in first if not key.startswith("torch")
    }
    assert [row["name"] for row in second["torch"]["rows"]] == ["cholesky fp32 n8", "lower_solve fp64 n4"]
    assert second["torch"]["summary"]["all"]["geometric_mean"] == 3.0
    assert (second["torch"]["gpu"], second["torch"]["torch"]) == ("GPU", "2.11.0")

    assert benchmark(*only[:3], "cholesky fp32 n6 t*", torch=stand_in_for_torch()) == 0
    third = json.loads(path.read_text())
    assert (len(third["rows"]), len(third["torch"]["rows"])) == (12, 3)
    assert benchmark(*only) == 0  # without torch, a known column stays
    assert json.loads(path.read_text())["torch"] == third["torch"]
    assert "beside torch: all" in capsys.readouterr().err
