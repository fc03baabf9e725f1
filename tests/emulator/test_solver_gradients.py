"""Gradients of all solver builtins with ``solver_gradients="own"``, on the emulator: races, bounds and values.

Each drawn kernel has one builtin on dense, transposed or padded tiles. The other kernels use operands before a solver
replaces them, and several solvers in a row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.emulator.generated import build
from tests.emulator.module import Machine, Outcome
from tests.nightly import some
from tests.solver_gradients import CHAINS, GradientCase, chain_gradients, chain_text, draw, text_of
from tests.solver_kernels import inputs

SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 49]
COLUMNS = [0, 0, 1, 2, 3, 5, 8, 16, 33]
MODULES = [("float32", 64), ("float64", 32), ("float32", 256), ("float64", 96), ("float32", 32), ("float64", 128)]
CASES = 24  # of a module
TOLERANCES = {"float32": 1e-4, "float64": 1e-12}  # of the largest element
CHAIN_SHAPES = [(5, 0), (17, 3), (32, 33)]


def check(outcome: Outcome, expected: dict[str, np.ndarray], dtype: str, name: str) -> None:  # type: ignore[type-arg]
    assert outcome.error == "", name
    for array, values in expected.items():
        largest = max(np.max(np.abs(values)), 1e-3)
        np.testing.assert_allclose(
            outcome.arrays[array], values, rtol=0, atol=TOLERANCES[dtype] * largest, err_msg=f"{array} of {name}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("number", some(range(len(MODULES)), 1))
def test_drawn_kernels(machine: Machine, tmp_path: Path, number: int) -> None:
    dtype, threads = MODULES[number]
    seeds = range(number * CASES, (number + 1) * CASES)
    cases: list[GradientCase] = [draw(seed, SIZES, COLUMNS) for seed in seeds]
    built = build(machine, tmp_path / "generated", text_of(cases, dtype), threads, solver_gradients="own")
    for index, (case, seed) in enumerate(zip(cases, seeds)):
        t, y, gradient = case.inputs(seed, dtype)
        outcome = built.emulated.backward(
            getattr(built.module, f"kernel{index}"),
            (1,),
            [t, y, np.zeros_like(gradient)],
            [np.zeros_like(t), np.zeros_like(y), gradient],
        )
        of_t, of_y = case.gradients(*(each.astype(float) for each in (t, y, gradient)))
        check(outcome, {"adj_T": of_t, "adj_Y": of_y}, dtype, str(case))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", some(["float64", "float32"], 1))
def test_operands_that_are_used_before_and_after_a_solver_in_place(
    machine: Machine, tmp_path: Path, dtype: str
) -> None:
    built = build(machine, tmp_path / "generated", chain_text(dtype, CHAIN_SHAPES), solver_gradients="own")
    for index, (shape, name) in enumerate((shape, name) for shape in CHAIN_SHAPES for name in CHAINS):
        a, b = inputs(*shape, dtype)
        random_numbers = np.random.default_rng(index)
        seeds = tuple(random_numbers.uniform(-1, 1, each.shape).astype(dtype) for each in (a, b))
        outcome = built.emulated.backward(
            getattr(built.module, f"kernel{index}"),
            (1,),
            [a, b, np.zeros_like(a), np.zeros_like(b)],
            [np.zeros_like(a), np.zeros_like(b), *seeds],
        )
        of_a, of_b = chain_gradients(name, a.astype(float), b.astype(float), seeds)
        check(outcome, {"adj_A": of_a, "adj_B": of_b}, dtype, f"{name} {shape}")
