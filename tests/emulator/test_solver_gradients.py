"""Gradients of all solver builtins with ``solver_gradients="own"``, on the emulator: races, bounds and values.

Each drawn kernel has one builtin on dense, transposed or padded tiles. The other kernels use operands before a solver
replaces them, and several solvers in a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.generated import Runs, build
from tests.emulator.module import Machine
from tests.nightly import some
from tests.solver_gradients import Launch, chain_launches, chain_text, draw, launches_of, text_of

SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 49]
COLUMNS = [0, 0, 1, 2, 3, 5, 8, 16, 33]
MODULES = [("float32", 64), ("float64", 32), ("float32", 256), ("float64", 96), ("float32", 32), ("float64", 128)]
CASES = 24  # of a module
TOLERANCES = {"float32": 1e-4, "float64": 1e-12}  # of the largest element
CHAIN_SHAPES = [(5, 0), (17, 3), (32, 33)]


def check(kernels: Runs, launches: Iterable[Launch], tolerance: float) -> None:
    """Launches the adjoints. Errors are compared with the largest element."""
    for launch in launches:
        given = [*map(np.zeros_like, launch.arrays[:2]), *launch.seeds]
        arrays = kernels.run(launch.kernel, (1,), launch.arrays, given)
        found = [values for name, values in arrays.items() if name.startswith("adj_")]
        for expected, values in zip(launch.expected, found):
            atol = tolerance * max(np.max(np.abs(expected)), 1e-3)
            np.testing.assert_allclose(values, expected, rtol=0, atol=atol, err_msg=launch.title)


@pytest.mark.slow
@pytest.mark.parametrize("number", some(range(len(MODULES)), 1))
def test_drawn_kernels(machine: Machine, tmp_path: Path, number: int) -> None:
    dtype, threads = MODULES[number]
    seeds = range(number * CASES, (number + 1) * CASES)
    cases = [draw(seed, SIZES, COLUMNS) for seed in seeds]
    built = build(machine, tmp_path / "generated", text_of(cases, dtype), threads, solver_gradients="own")
    check(built, launches_of(cases, seeds, dtype), TOLERANCES[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", some(["float64", "float32"], 1))
def test_operands_that_are_used_before_and_after_a_solver_in_place(
    machine: Machine, tmp_path: Path, dtype: str
) -> None:
    built = build(machine, tmp_path / "generated", chain_text(dtype, CHAIN_SHAPES), solver_gradients="own")
    check(built, chain_launches(dtype, CHAIN_SHAPES), TOLERANCES[dtype])
