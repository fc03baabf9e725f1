"""Random kernels on the emulator: values and gradients equal the NumPy model, and every access is checked.

The environment variable ``RANDOM_KERNELS=FIRST:COUNT`` replaces the fixed seeds.
"""

from __future__ import annotations

import functools
import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import warp as wp

from tests.emulator.generated import EmulatedKernels, generate
from tests.emulator.module import Machine
from tests.nightly import some
from tests.random_kernels import shared_names
from tests.random_kernels.execute import PAD_VALUE, Result, difference, import_kernel, of_model, placed, replaced
from tests.random_kernels.generate import draw
from tests.random_kernels.kernel import ArrayArgument, RandomKernel, ScalarArgument

COUNT = 32
SHARED_COUNT = 12
_FIRST, _, _COUNT = os.environ.get("RANDOM_KERNELS", "").partition(":")
BLOCK_DIM = 64  # of all, because kernels with one block size share the precompiled headers, which take longest


@functools.cache
def seeds() -> list[int]:
    """The fixed seeds."""
    return list(itertools.islice((seed for seed in itertools.count() if draw(seed).block_dim == BLOCK_DIM), COUNT))


@functools.cache
def shared() -> list[RandomKernel]:
    """The kernels whose loops have the same names."""
    return list(itertools.islice(shared_names.kernels(BLOCK_DIM), SHARED_COUNT))


def emulated(machine: Machine, kernel: RandomKernel, folder: Path) -> Result:
    """The emulator's results, in the same form as those of a run."""
    module = import_kernel(kernel, folder)
    wp.set_module_options({"block_dim": kernel.block_dim}, module=module)
    kernels = EmulatedKernels(machine, generate(module, folder / "generated", 90, kernel.block_dim))
    values, upper = kernel.values(), kernel.upper_gradients()
    bases = {a.name: placed(kernel, a, values[a.name], PAD_VALUE) for a in kernel.arrays}
    grads = {a.name: placed(kernel, a, upper.get(a.name, np.zeros(a.shape)), 0.0) for a in kernel.arrays}
    arguments = [
        bases[argument.name][1]
        if isinstance(argument, ArrayArgument)
        else argument.passed(vars(module))
        if isinstance(argument, ScalarArgument)
        else bytes(argument.passed(vars(module))._ctype)
        for argument in kernel.arguments
    ]
    gradients = [grads[argument.name][1] if argument.name in grads else None for argument in kernel.arguments]
    arrays = kernels.run(module.kernel, kernel.grid, arguments)
    written = {a.name: replaced(kernel, a, bases[a.name][0], arrays[a.name]) for a in kernel.arrays}
    if not kernel.gradients:
        return Result(written, {})
    arrays = kernels.run(module.kernel, kernel.grid, arguments, gradients)
    read = (a for a in kernel.arrays if a.read and not a.written)
    return Result(written, {a.name: replaced(kernel, a, grads[a.name][0], arrays[f"adj_{a.name}"]) for a in read})


@pytest.mark.slow
@pytest.mark.parametrize("number", some(range(SHARED_COUNT), 4))
def test_loops_with_the_same_names(machine: Machine, number: int, tmp_path: Path) -> None:
    kernel = shared()[number]
    assert difference(emulated(machine, kernel, tmp_path), of_model(kernel)) == "", kernel.source


@pytest.mark.slow
@pytest.mark.parametrize("number", range(int(_COUNT)) if _COUNT else some(range(COUNT), 10))
def test_a_random_kernel(machine: Machine, number: int, tmp_path: Path) -> None:
    kernel = draw(int(_FIRST) + number if _COUNT else seeds()[number])
    assert difference(emulated(machine, kernel, tmp_path), of_model(kernel)) == "", kernel.source
