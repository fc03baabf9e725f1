"""Each builtin calls its functions on the emulator: without one of them, its results are wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warp_tiles
from tests.emulator.generated import EmulatedKernels, Generated, generate
from tests.emulator.module import Machine
from tests.integration.helpers import gemm, load
from tests.integration.solvers import CALLS, solver

TEXTS = {"tile_matmul": gemm(name="run"), **{call: solver(call, name="run") for call in CALLS}}


def without(generated: Generated, symbol: str, parameters: int) -> Generated:
    """The module with a function that returns at once in place of another one."""
    stub = f'extern "C" void {symbol}({", ".join(["void*"] * parameters)}) {{ }}'
    functions = tuple(stub if f"void {symbol}(" in unit else unit for unit in generated.functions)
    assert functions != generated.functions
    return replace(generated, functions=functions)


def results(
    machine: Machine, generated: Generated, kernel: Any, arrays: list[Any], gradients: list[Any]
) -> list[bytes]:
    """What a launch and its adjoint leave in the arrays, or their errors."""
    kernels = EmulatedKernels(machine, generated)
    outcomes = [
        kernels.forward(kernel, (1,), [array.copy() for array in arrays]),
        kernels.backward(kernel, (1,), [array.copy() for array in arrays], [array.copy() for array in gradients]),
    ]
    return [outcome.error.encode() or b"".join(v.tobytes() for v in outcome.arrays.values()) for outcome in outcomes]


@pytest.mark.parametrize("builtin", TEXTS)
def test_every_function_is_needed(builtin: str, machine: Machine, tmp_path: Path) -> None:
    with warp_tiles.override(solver_gradients="own"):
        module = load(TEXTS[builtin])
        generated = generate(module, tmp_path / "m", 90, 64)
    random = np.random.default_rng(1)
    shapes = [(16, 16)] * 3 if builtin == "tile_matmul" else [(16, 16), (16, 4)]
    arrays, gradients = ([random.standard_normal(shape).astype(np.float32) for shape in shapes] for _ in range(2))
    if builtin != "tile_matmul":
        arrays[0] = arrays[0] @ arrays[0].T + 16 * np.eye(16, dtype=np.float32)
    called = dict(re.findall(r"^void (wt_\w+)\((.*)\);$", generated.source, re.M))
    assert len(called) == (3 if builtin == "tile_matmul" else 2)
    expected = results(machine, generated, module.run, arrays, gradients)
    for symbol, parameters in called.items():
        changed = without(generated, symbol, parameters.count(",") + 1)
        assert results(machine, changed, module.run, arrays, gradients) != expected, symbol
