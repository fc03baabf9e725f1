"""Runs a random kernel on a device and compares the results."""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import warp as wp

from tests.random_kernels.kernel import ArrayArgument, RandomKernel

PAD_VALUE = 3.0  # of elements outside a view


@dataclass(frozen=True)
class Result:
    """The arrays after a run, with the elements outside their views, and the gradients of arrays that are only read."""

    values: Mapping[str, np.ndarray]
    grads: Mapping[str, np.ndarray]


def import_kernel(kernel: RandomKernel, folder: Path) -> ModuleType:
    """Write the source into a folder and import it, because Warp reads sources from files."""
    path = folder / f"{kernel.name}.py"
    path.write_text(kernel.source)
    spec = importlib.util.spec_from_file_location(kernel.name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[kernel.name] = module
    spec.loader.exec_module(module)
    return module


def embedded(kernel: RandomKernel, argument: ArrayArgument, values: np.ndarray, padding: float) -> np.ndarray:
    """The base array of an argument, with the argument's values in its view."""
    if argument.view in ("whole", "transposed"):
        return np.ascontiguousarray(values.T if argument.view == "transposed" else values)
    rows, columns = argument.shape
    pad = _pad(kernel)
    shape = {"inner": (rows + 2, columns + 2 * pad), "rows": (2 * rows, columns), "columns": (rows, 2 * columns)}
    base = np.full(shape[argument.view], padding)
    _view(base, argument, pad)[...] = values
    return base


def _pad(kernel: RandomKernel) -> int:
    return (1, 4, 8)[kernel.seed % 3]


def _view(base: Any, argument: ArrayArgument, pad: int) -> Any:
    """The view of a NumPy or Warp array that the kernel gets."""
    if argument.view == "whole":
        return base
    if argument.view == "transposed":
        return base.transpose()
    if argument.view == "inner":
        rows, columns = argument.shape
        return base[1 : 1 + rows, pad : pad + columns]
    return base[::2] if argument.view == "rows" else base[:, ::2]


def prepare(kernel: RandomKernel, module: ModuleType, device: str) -> None:
    """Compile a kernel for a device, forward and backward."""
    wp.load_module(module, device=device, block_dim=kernel.block_dim)


def placed(kernel: RandomKernel, argument: ArrayArgument, values: np.ndarray, padding: float) -> Any:
    """The base array of an argument in its dtype, and the view of it that the kernel gets."""
    base = embedded(kernel, argument, values, padding).astype(argument.dtype)
    return base, _view(base, argument, _pad(kernel))


def replaced(kernel: RandomKernel, argument: ArrayArgument, base: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The base array, with other values in its view."""
    base = base.copy()
    _view(base, argument, _pad(kernel))[...] = found
    return base


def execute(kernel: RandomKernel, module: ModuleType, device: str) -> Result:
    """Run a kernel on a device, with its backward pass if it has one."""
    values, upper = kernel.values(), kernel.upper_gradients()
    bases: dict[str, wp.array] = {}
    inputs: list[Any] = []
    for argument in kernel.arguments:
        if isinstance(argument, ArrayArgument):
            base = wp.array(
                embedded(kernel, argument, values[argument.name], PAD_VALUE),
                dtype=getattr(wp, argument.dtype),
                device=device,
                requires_grad=kernel.gradients,
            )
            bases[argument.name] = base
            inputs.append(_view(base, argument, _pad(kernel)))
        else:
            inputs.append(argument.passed(vars(module)))
    tape = wp.Tape()
    with tape:
        wp.launch_tiled(
            module.kernel, dim=list(kernel.grid), inputs=inputs, block_dim=kernel.block_dim, device=device,
            record_tape=kernel.gradients,
        )  # fmt: skip
    # copied before the backward pass, which repeats the writes of functions
    final = {name: base.numpy().copy() for name, base in bases.items()}
    grads = {}
    if kernel.gradients:
        for argument in kernel.arrays:
            if argument.name in upper:
                bases[argument.name].grad.assign(embedded(kernel, argument, upper[argument.name], 0.0))
        tape.backward()
        grads = {a.name: bases[a.name].grad.numpy() for a in kernel.arrays if a.read and not a.written}
    return Result(final, grads)


def of_model(kernel: RandomKernel) -> Result:
    """The results of the NumPy model, in the same form as those of a run."""
    result = kernel.expected()
    arrays = {argument.name: argument for argument in kernel.arrays}
    grads = {name for name, a in arrays.items() if a.read and not a.written} if kernel.gradients else set()
    return Result(
        {name: embedded(kernel, arrays[name], v, PAD_VALUE) for name, v in result.values.items()},
        {name: embedded(kernel, arrays[name], result.grads[name], 0.0) for name in grads},
    )


def difference(got: Result, want: Result) -> str:
    """A description of the first difference, or an empty text if all numbers are equal."""
    for kind, mine, theirs in (("value", got.values, want.values), ("gradient", got.grads, want.grads)):
        for name in theirs:
            x, y = mine[name].astype(np.float64), theirs[name].astype(np.float64)
            wrong = x != y
            if wrong.any():
                first = tuple(int(index) for index in np.argwhere(wrong)[0])
                differ = f"{wrong.sum()} of {x.size} differ"
                return f"{kind} of {name}: {differ}, at {first} {x[first]:g}, expected {y[first]:g}"
    return ""
