"""Loops of products beside each other, in other loops and in branches, on the emulator: results are exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.generated import Runs
from tests.emulator.module import Machine
from tests.emulator.test_loop_forms import GRID, compile_forms, integers
from tests.loop_texts import LOAD_A, LOAD_B, START, STORE, K, M, Matrix, N, kernel


def step(depth: int, k: str, number: int = 0, c: str = "c") -> str:
    """The text that loads two tiles, with numbered names, and multiplies them."""
    a, b = f"a{number}", f"b{number}"
    lines = (LOAD_A.format(k=k).replace("a =", f"{a} ="), LOAD_B.format(k=k).replace("b =", f"{b} ="))
    return "".join(f"{' ' * 4 * depth}{line}\n" for line in (*lines, f"wp.tile_matmul({a}, {b}, {c})"))


ONCE = "for part in range(A.shape[1] // 320):\n"
KERNELS: dict[str, tuple[str, Callable[[Matrix, Matrix], Matrix]]] = {
    "two loops of one C in a loop": (
        kernel(
            START,
            f"{ONCE}    for s in range(0, A.shape[1] // 2, 16):\n{step(2, 's')}"
            f"    for t in range(A.shape[1] // 2, A.shape[1], 16):\n{step(2, 't', 1)}",
            STORE,
        ),
        np.matmul,
    ),
    "a product and a loop of one C in a loop": (
        kernel(START, f"{ONCE}{step(1, '0')}    for t in range(16, A.shape[1], 16):\n{step(2, 't', 1)}", STORE),
        np.matmul,
    ),
    "two loops of two C in a loop": (
        kernel(
            START,
            START.replace("c =", "d ="),
            f"{ONCE}    for s in range(0, A.shape[1], 16):\n{step(2, 's')}"
            f"    for t in range(0, A.shape[1], 16):\n{step(2, 't', 1, 'd')}",
            "e = c + d",
            STORE.replace("C, c", "C, e"),
        ),
        lambda a, b: 2 * (a @ b),
    ),
    "an outer loop stores C": (
        kernel(
            START,
            f"for part in range(A.shape[1] // 160):\n    for s in range(0, A.shape[1] // 2, 16):\n"
            f"{step(2, 's + part * 160')}    {STORE}",
        ),
        np.matmul,
    ),
    "two loops in sequence": (
        kernel(
            START,
            f"for s in range(0, A.shape[1] // 2, 16):\n"
            f"{step(1, 's')}for t in range(A.shape[1] // 2, A.shape[1], 16):\n{step(1, 't', 1)}",
            STORE,
        ),
        np.matmul,
    ),
    "a loop in either branch": (
        kernel(
            START,
            f"if A.shape[0] > 1000:\n    for s in range(0, A.shape[1], 16):\n{step(2, 's')}"
            f"else:\n    for t in range(0, A.shape[1], 16):\n{step(2, 't', 1)}",
            STORE,
        ),
        np.matmul,
    ),
    "an outer loop with a break": (
        kernel(
            START,
            "for part in range(A.shape[1]):\n    if part == 2:\n        break\n"
            f"    for s in range(0, A.shape[1] // 2, 16):\n{step(2, 's + part * 160')}",
            STORE,
        ),
        np.matmul,
    ),
    "a branch that is not taken in one unrolled iteration": (
        kernel(START, f"for s in range(1):\n    if A.shape[0] > 1000:\n{step(2, 's')}", STORE),
        lambda a, b: np.zeros((M, N)),
    ),
    "a view that moves with the loop": (
        kernel(
            START,
            "for k in range(0, A.shape[1], 8):",
            "    a0 = wp.tile_load(A, shape=(32, 16), offset=(i * 32, k // 16 * 16), storage='shared')",
            "    a = wp.tile_view(a0, offset=(0, k % 16), shape=(32, 8))",
            "    b = wp.tile_load(B, shape=(8, 32), offset=(k, j * 32), storage='shared')",
            "    wp.tile_matmul(a, b, c)",
            STORE,
        ),
        np.matmul,
    ),
}


def check_nested(kernels: Runs, name: str) -> None:
    a, b = integers(1, M, K), integers(2, K, N)
    found = kernels.run(name, GRID, [a, b, np.full((M, N), np.nan, dtype=np.float32)])["C"]
    assert np.array_equal(found, KERNELS[name][1](a.astype(float), b.astype(float))), name


@pytest.mark.slow
def test_results(machine: Machine, tmp_path: Path) -> None:
    kernels = compile_forms(machine, tmp_path / "m", {name: text for name, (text, _) in KERNELS.items()})
    for name in KERNELS:
        check_nested(kernels, name)
