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

from tests.emulator.generated import Argument, EmulatedKernels, generate
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.nightly import some
from tests.random_kernels import shared_names
from tests.random_kernels.execute import (
    PAD_VALUE,
    Result,
    _pad,
    _view,
    difference,
    embedded,
    import_kernel,
    of_model,
)
from tests.random_kernels.generate import draw
from tests.random_kernels.kernel import ArrayArgument, RandomKernel, ScalarArgument

pytestmark = pytest.mark.slow  # the emulator compiles for seconds

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

    def placed(argument: ArrayArgument, given: Values, padding: float) -> tuple[Values, Values]:
        base = embedded(kernel, argument, given, padding).astype(argument.dtype)
        return base, _view(base, argument, _pad(kernel))

    bases: dict[str, Values] = {}
    arguments: list[Argument | bytes] = []
    gradients: list[Values | None] = []
    for argument in kernel.arguments:
        if isinstance(argument, ArrayArgument):
            bases[argument.name], view = placed(argument, values[argument.name], PAD_VALUE)
            given = upper.get(argument.name, np.zeros(argument.shape))
            arguments.append(view)
            gradients.append(placed(argument, given, 0.0)[1])
            continue
        gradients.append(None)
        if isinstance(argument, ScalarArgument):
            arguments.append(argument.value)
        else:
            struct = getattr(module, argument.type_name)()
            for member, value in argument.members:
                setattr(struct, member, value)
            arguments.append(bytes(struct._ctype))
    outcome = kernels.forward(module.kernel, kernel.grid, arguments)
    assert outcome.error == ""
    written = {}
    for argument in kernel.arrays:  # the outcome has the view, without the rest of its base
        base = bases[argument.name].copy()
        _view(base, argument, _pad(kernel))[...] = outcome.arrays[argument.name]
        written[argument.name] = base
    grads = {}
    if kernel.gradients:
        arrays = kernels.run(module.kernel, kernel.grid, arguments, gradients)
        for argument in kernel.arrays:
            if argument.read and not argument.written:
                base, view = placed(argument, np.zeros(argument.shape), 0.0)
                view[...] = arrays[f"adj_{argument.name}"]
                grads[argument.name] = base
    return Result(written, grads)


@pytest.mark.parametrize("number", some(range(SHARED_COUNT), 4))
def test_loops_with_the_same_names(machine: Machine, number: int, tmp_path: Path) -> None:
    kernel = shared()[number]
    assert difference(emulated(machine, kernel, tmp_path), of_model(kernel)) == "", kernel.source


@pytest.mark.parametrize("number", range(int(_COUNT)) if _COUNT else some(range(COUNT), 10))
def test_a_random_kernel(machine: Machine, number: int, tmp_path: Path) -> None:
    kernel = draw(int(_FIRST) + number if _COUNT else seeds()[number])
    assert difference(emulated(machine, kernel, tmp_path), of_model(kernel)) == "", kernel.source
