"""Blocked factorizations, solves and inverses as clients write them: values and every access, on the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warp_tiles
from tests.blocked_solves import BLOCKS, MOST, matrices, solution, text
from tests.emulator.generated import EmulatedKernels, generate
from tests.emulator.module import Machine
from tests.integration.helpers import WARP_VERSION, load

pytestmark = pytest.mark.skipif(WARP_VERSION < (1, 19), reason="headers and launches of Warp 1.19 are emulated")
THREADS = 64
WORLDS = 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_solves_and_inverses(dtype: str, machine: Machine, tmp_path: Path) -> None:
    module: Any = load(text(dtype), block_dim=THREADS)
    kernels = EmulatedKernels(machine, generate(module, tmp_path / "m", 90, THREADS))
    tolerance = {"float32": 2e-5, "float64": 1e-12}[dtype]
    for n in BLOCKS:
        a, b = matrices(MOST, WORLDS, dtype)
        given = [a, b, MOST, np.zeros_like(a), np.zeros_like(b)]
        arrays = kernels.run(getattr(module, f"solve_{n}"), (WORLDS,), given)
        np.testing.assert_allclose(arrays["x"], solution(a, b, MOST), rtol=0, atol=tolerance)
        lower = np.linalg.cholesky(a.astype(np.float64))
        identity, zeros = np.eye(MOST, dtype=dtype), np.zeros_like(a)
        given = [lower.astype(dtype), identity, MOST, zeros, zeros]
        results = kernels.run(getattr(module, f"invert_{n}"), (WORLDS,), given)
        expected = np.linalg.inv(lower @ lower.swapaxes(1, 2))
        np.testing.assert_allclose(results["inverse"], expected, rtol=0, atol=tolerance)


def test_the_plan_keeps_all_sums_in_registers(enabled: None) -> None:
    plan = warp_tiles.plan(load(text("float32"), block_dim=THREADS), arch=90, block_dim=THREADS)
    assert len(plan.loops) == 5 * len(BLOCKS)
    assert {loop.state for loop in plan.loops} <= {"register_accumulators", "pipelined"}
