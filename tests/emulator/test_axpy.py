"""``wp.tile_axpy`` on the emulator: it changes its second tile, in loops, before stores and in the reverse pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.emulator.generated import build
from tests.emulator.module import Machine

HEADER = """import warp as wp

matrix = wp.array2d(dtype=float)

"""
LOOP = """
@wp.kernel
def scaled(A: matrix, B: matrix, S: matrix, C: matrix):
    s = wp.tile_load(S, shape=(16, 16))
    for k in range(A.shape[1] // 16):
        a = wp.tile_load(A, shape=(16, 16), offset=(0, k * 16))
        b = wp.tile_load(B, shape=(16, 16), offset=(k * 16, 0))
        p = wp.tile_matmul(a, b)
        wp.tile_axpy({arguments})
        wp.tile_store(C, {stored})
"""
STORE = """
@wp.kernel
def scaled(A: matrix, B: matrix, S: matrix, C: matrix):
    a = wp.tile_load(A, shape=(16, 16))
    b = wp.tile_load(B, shape=(16, 16))
    s = wp.tile_load(S, shape=(16, 16))
    p = wp.tile_matmul(a, b) + s
    wp.tile_axpy({arguments})
    wp.tile_store(C, {stored})
"""


@pytest.mark.parametrize("arguments", ["2.0, s, p", "2.0, p, s"])
@pytest.mark.parametrize("text", [LOOP, STORE], ids=["loop", "store"])
def test_the_second_tile_changes(text: str, arguments: str, machine: Machine, tmp_path: Path) -> None:
    stored = arguments[-1]
    found = build(machine, tmp_path / "m", HEADER + text.format(arguments=arguments, stored=stored))
    random = np.random.default_rng(1)
    k = 32 if text is LOOP else 16
    a, b, s = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((16, k), (k, 16), (16, 16)))
    outcome = found.emulated.forward(found.module.scaled, (1,), [a, b, s, np.full((16, 16), np.nan, np.float32)])
    assert outcome.error == ""
    steps = [a[:, i : i + 16] @ b[i : i + 16] for i in range(0, k, 16)]
    if text is STORE:
        expected = 3 * s + steps[0] if stored == "p" else s + 2 * (steps[0] + s)
    else:
        expected = steps[-1] + 2 * s if stored == "p" else s + 2 * sum(steps)
    assert np.array_equal(outcome.arrays["C"], expected)
    if text is STORE:
        g = random.integers(-3, 4, (16, 16)).astype(np.float32)
        zeros = [np.zeros_like(a), np.zeros_like(b), np.zeros_like(s)]
        arrays = found.emulated.run(found.module.scaled, (1,), [a, b, s, np.zeros_like(s)], [*zeros, g])
        of_sum = g if stored == "p" else 2 * g
        assert np.array_equal(arrays["adj_S"], 3 * g)
        assert np.array_equal(arrays["adj_A"], of_sum @ b.T)
