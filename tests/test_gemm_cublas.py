"""The column of cuBLAS in the benchmark of products, without a GPU."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import warp as wp

from benchmarks import gemm
from benchmarks.runner import WrongResultError
from benchmarks.speed import cublas, timing
from benchmarks.speed.arrays import to_host
from benchmarks.speed.cells import PARTS, Entry, Part

SIZE = 128
RUN = {"gpu": "GPU", "warp": "1.19.0", "sources": "s", "provider": "auto"}
WHOLE = {name: replace(PARTS[name], size=SIZE) for name in ("loop", "backward_loop")}


class Tensor(np.ndarray[Any, Any]):
    """A NumPy array with the method of a tensor that the benchmark calls."""

    def to(self, dtype: Any) -> Any:
        return self.astype(dtype)


class Flags:
    """Notes what is set."""

    allow_tf32 = None


def stand_in_for_torch(matmul: Any = np.matmul) -> Any:
    """What the benchmark calls of torch."""
    cuda = SimpleNamespace(stream=lambda stream: contextlib.nullcontext(), is_available=lambda: True)
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=Flags()))
    version = SimpleNamespace(cuda="13.0")
    return SimpleNamespace(matmul=matmul, cuda=cuda, backends=backends, version=version, __version__="2.11.0")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in that computes by NumPy, on the CPU."""
    monkeypatch.setattr(wp, "to_torch", lambda array, requires_grad=None: array.numpy().view(Tensor))
    monkeypatch.setattr(wp, "stream_to_torch", lambda device: None)
    return stand_in_for_torch()


def entry_of(part: Part, types: str) -> Entry:
    return next(entry for entry in part.entries if entry.types == types)


def our_side(part: Part, types: str, wrong: bool = False) -> Any:
    """Our side of a row, with correct results unless they are to be wrong."""
    cell = entry_of(part, types).ours
    random = np.random.default_rng(0)
    a, b, g = (random.uniform(-1, 1, (SIZE, SIZE)) for _ in range(3))
    arrays = {name: wp.array(values, dtype=getattr(wp, dtype), device="cpu") for name, values, dtype in (
        ("a", a, cell.a), ("b", b, cell.b), ("gradient_of_c", g, cell.c)
    )}  # fmt: skip
    a, b, g = (to_host(array) for array in arrays.values())
    results = {"grad_a": g @ b.T, "grad_b": a.T @ g} if cell.backward else {"c": a @ b}
    results = {name: values[::17] * (1.5 if wrong else 1.0) for name, values in results.items()}
    command = SimpleNamespace(run=lambda: None, prepare=None)
    return SimpleNamespace(
        replays_product=True,
        cell=cell, part=part, device="cpu", rounds_to_half=False, results=lambda calls: results,
        launch=lambda calls, adjoint: command, **arrays,
    )  # fmt: skip


@pytest.mark.parametrize("part", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("types", ["fp16", "tf32", "fp32", "fp64"])
def test_the_products_are_those_of_our_side(torch: Any, part: Part, types: str) -> None:
    row: dict[str, Any] = {"difference": {}}
    found = cublas.load(torch, our_side(part, types), row)
    assert found is not None
    assert found.flops == (4 if "backward" in part.name else 2) * SIZE**3
    assert set(row["difference"]["cublas"]) == ({"grad_a", "grad_b"} if "backward" in part.name else {"c"})
    assert set(row["cublas"]["dtypes"]) == {entry_of(part, types).ours.a}  # the result has the operands' dtype
    assert torch.backends.cuda.matmul.allow_tf32 == (types == "tf32")


def test_wrong_results_are_an_error_and_those_of_torch_are_recorded(torch: Any) -> None:
    row: dict[str, Any] = {"difference": {}}
    with pytest.raises(WrongResultError, match="c differs"):
        cublas.load(torch, our_side(WHOLE["loop"], "fp32", wrong=True), row)

    def fails(*_: Any, out: Any) -> None:
        raise RuntimeError("no memory")

    assert cublas.load(stand_in_for_torch(fails), our_side(WHOLE["loop"], "fp32"), row) is None
    assert row["cublas"]["error"] == "RuntimeError: no memory"


@pytest.fixture
def measured(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measures an fp16 row of a part with fake times."""
    times = {"tiles": 30.0, "warp": 60.0, "cublas": 15.0, "tiles forward": 10.0, "warp forward": 20.0}

    def load_sides(entry: Entry, store: Any, device: str, row: gemm.Row) -> dict[str, Any]:
        row |= {"tiles": {}, "warp": {}, "builds": []}
        return {name: our_side(WHOLE[entry.part], "fp16") for name in ("tiles", "warp")}

    monkeypatch.setattr(gemm, "load_sides", load_sides)
    monkeypatch.setattr(gemm, "PARTS", WHOLE)
    monkeypatch.setattr(
        timing,
        "time_alternately",
        lambda launches, device: {name: timing.Times(times[name], 1.0, 1.9) for name in launches},
    )
    return lambda part, torch: gemm.measure(entry_of(part, "fp16"), SimpleNamespace(), "cpu", torch)


def test_a_row_of_gradients_counts_two_products_of_cublas(torch: Any, measured: Any) -> None:
    row = measured(WHOLE["backward_loop"], torch)
    assert (row["to_cublas"], row["adjoint_ratio"]) == (0.5, 2.0)
    assert row["cublas"]["tflops"] == round(4 * SIZE**3 / 15e6, 3)
    assert row["tiles"]["tflops"] == round(6 * SIZE**3 / 30e6, 3)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs ``gemm.main`` on stand-ins for builds, GPU and times. Returns its record."""
    path = tmp_path / "gemm.json"

    def measure(entry: Entry, store: Any, device: str, torch: Any) -> gemm.Row:
        row = row_of(entry)
        return row if torch and PARTS[entry.part].whole else {key: row[key] for key in row if "cublas" not in key}

    def main(torch: Any, *arguments: str) -> Any:
        store = SimpleNamespace(fill=lambda *_: None)
        monkeypatch.setattr(gemm, "BuildStore", lambda *_: store)
        monkeypatch.setattr(gemm, "measure", measure)
        monkeypatch.setattr(gemm, "gpu_record", lambda provider: dict(RUN))
        monkeypatch.setattr(timing, "warm_up", lambda device: None)
        monkeypatch.setattr(timing, "is_usable", lambda device: True)
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert gemm.main(["--json", str(path), *arguments]) == 0
        return json.loads(path.read_text())

    return main


def row_of(entry: Entry, tflops: float = 40.0, peer_tflops: float = 80.0) -> gemm.Row:
    """A row whose times fit one product."""
    sides = (("tiles", tflops), ("warp", 20.0), ("loads", tflops * 1.1), ("cublas", peer_tflops))
    row: gemm.Row = {"part": entry.part, "types": entry.types, **asdict(entry.ours), "ratio": 2.0, "builds": []}
    row |= {side: {"tflops": rate, "median_us": 2 * 4096**3 / rate / 1e6} for side, rate in sides}
    cublas.add_ratio(row)
    return row


def test_runs_with_and_without_torch(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    only = ("--only", "loop fp64 64x64x16 128", "small fp64 4x4x4 32")
    first = run(None, *only)
    assert "cuBLAS: torch is not installed" in capsys.readouterr().err
    assert first["runs"][0]["cublas"].startswith("torch is not installed")
    assert all("to_cublas" not in row for row in first["rows"])

    second = run(stand_in_for_torch(), *only, "--missing")  # measures what a run without torch lacks
    rows = {row["part"]: row for row in second["rows"]}
    assert rows["loop"]["to_cublas"] == 0.5
    assert second["runs"][rows["loop"]["run"]]["torch"] == "2.11.0"
    assert second["parts"]["loop"]["summary"]["fp64"]["to_cublas"]["geometric_mean"] == 0.5
    assert "to_cublas" not in rows["small"]
    assert "0.50 of cuBLAS's speed" in capsys.readouterr().out

    assert run(stand_in_for_torch(), *only, "--missing")["rows"] == second["rows"], "now nothing is missing"
