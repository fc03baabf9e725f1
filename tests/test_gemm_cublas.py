"""The products of cuBLAS in the benchmark of products, computed by NumPy."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import warp as wp

from benchmarks.runner import WrongResultError
from benchmarks.speed import sides
from benchmarks.speed.cells import PARTS, Entry, Part
from benchmarks.speed.sides import Cublas, compare, to_host

SIZE = 128
WHOLE = {name: replace(PARTS[name], size=SIZE) for name in ("loop", "backward_loop")}


class Tensor(np.ndarray[Any, Any]):
    """A NumPy array with the method of a tensor that the benchmark calls."""

    def to(self, dtype: Any) -> Any:
        return self.astype(dtype)


class Flags:
    """Notes what is set."""

    allow_tf32 = None


def stand_in_for_torch() -> Any:
    """What the benchmark calls of torch."""
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=Flags()))
    return SimpleNamespace(matmul=np.matmul, backends=backends)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in that computes by NumPy, on the CPU."""
    monkeypatch.setattr(wp, "to_torch", lambda array, requires_grad=None: array.numpy().view(Tensor))
    monkeypatch.setattr(sides, "DEVICE", "cpu")
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
        cell=cell, part=part, rounds_to_half=False, results=lambda calls: results,
        launch=lambda calls, adjoint: command, **arrays,
    )  # fmt: skip


@pytest.mark.parametrize("part", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("types", ["fp16", "tf32", "fp32", "fp64"])
def test_the_products_are_those_of_our_side(torch: Any, part: Part, types: str) -> None:
    ours = our_side(part, types)
    found = Cublas(torch, ours)
    assert found.flops == (4 if "backward" in part.name else 2) * SIZE**3
    assert set(compare(ours, found)) == ({"grad_a", "grad_b"} if "backward" in part.name else {"c"})
    assert found.cell.c == entry_of(part, types).ours.a, "the result has the operands' dtype"
    assert torch.backends.cuda.matmul.allow_tf32 == (types == "tf32")


def test_wrong_results_are_an_error(torch: Any) -> None:
    ours = our_side(WHOLE["loop"], "fp32", wrong=True)
    with pytest.raises(WrongResultError, match="c differs"):
        compare(ours, Cublas(torch, ours))
