"""Compiles the cases of ``tests/staged_cases.py`` for the emulator, and checks them there and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tests.emulator.generated import Kernels, Runs, build
from tests.emulator.module import Machine
from tests.staged_cases import HEADER, LOAD_E, Case, Values

View = Callable[[Values], Values]


def strided(values: Values) -> Values:
    """The values in every second column of a larger array."""
    return np.repeat(values, 2, axis=1)[:, ::2]


def padded(values: Values) -> Values:
    """The values in an array whose rows are not aligned."""
    return np.pad(values, ((0, 0), (1, 0)))[:, 1:]


def shifted(values: Values) -> Values:
    """The values in an array whose rows have aligned strides, and begin inside a vector."""
    return np.pad(values, ((0, 0), (3, 5 + -values.shape[1] % 8)))[:, 3 : 3 + values.shape[1]]


def inside(alignment: int) -> View:
    """The values in a larger array of NaN, whose rows begin at multiples of ``alignment`` bytes."""

    def view(values: Values) -> Values:
        rows, columns = values.shape
        step = alignment // values.itemsize
        wide = -(-(columns + 1) // step) * step
        if alignment < 16 and wide // step % 2 == 0:
            wide += step  # an odd multiple
        nothing = np.nan if values.dtype.kind == "f" else 0x7FFF
        wider = np.full((rows + 2, wide), nothing, dtype=values.dtype)
        wider[:rows, :columns] = values
        return wider[:rows, :columns]

    return view


OTHER_ROWS = (strided, padded, shifted, np.asfortranarray)


def compile_cases(
    machine: Machine, folder: Path, cases: Mapping[str, Case], arch: int = 90, threads: int = 128,
    main_loop: str = "auto", edit: Callable[[str], str] | None = None, backward: bool = False,
) -> Kernels:  # fmt: skip
    """The kernels of some cases, with their adjoints if ``backward`` is set."""
    names = {name: f"case_{number}" for number, name in enumerate(cases)}
    texts = (case.text(names[name], backward=backward) for name, case in cases.items())
    return build(machine, folder, HEADER + "".join(texts), threads, arch, names, edit, main_loop=main_loop)


def bits(values: Values, dtype: str) -> Values:
    """Small integers as an array of a dtype; bfloat16 as bits."""
    return (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else values


def wide(values: Values) -> Values:
    """The numbers of an array, which holds bits if they are bfloat16."""
    values = (values.astype(np.uint32) << 16).view(np.float32) if values.dtype == np.uint16 else values
    return values.astype(np.float64)


def check(kernels: Runs, cases: Mapping[str, Case], seed: int = 0, view: View = lambda values: values) -> None:
    """Launches each case, whose arrays A and B may be views of others."""
    for number, (name, case) in enumerate(cases.items(), seed):
        a, b, e, product = case.arrays(number)
        c = np.full((case.rows, case.columns), np.nan, dtype=case.total)
        given = [view(bits(values, case.dtype)) for values in (a, b)]
        found = kernels.run(name, case.grid, [*given, e, c])["C"]
        assert np.array_equal(found, case.expected(product, e)), name


def gradients_of(kernels: Runs, name: str, case: Case, g: Values) -> tuple[Values, Values]:
    """The gradients of A and B that a launch of the adjoint adds to ones. That of E is checked."""
    a, b, e, _ = case.arrays(1)
    ones = [bits(np.ones_like(values), case.dtype) for values in (a, b)]
    given = [*(bits(values, case.dtype) for values in (a, b)), e, np.zeros_like(g)]
    arrays = kernels.run(name, case.grid, given, [*ones, np.zeros_like(e), g.copy()])
    of_e = g if LOAD_E in case.start else np.zeros_like(g)  # that of C's start value
    np.testing.assert_array_equal(arrays["adj_E"], of_e, err_msg=name)
    return wide(arrays["adj_A"]), wide(arrays["adj_B"])


def integers(case: Case) -> Values:
    """A gradient of C, in which few columns are not zero, so that sums are integers that 16-bit types have."""
    g = np.random.default_rng(5).integers(-2, 3, (case.rows, case.columns)).astype(case.total)
    most = {"bfloat16": 8, "float16": 256}.get(case.dtype, case.rows + case.columns)
    g[most:] = g[:, most:] = 0
    return g


def check_gradients(kernels: Runs, name: str, case: Case, g: Values) -> None:
    """Launches the adjoint of a case, whose gradients are exact."""
    for found, expected in zip(gradients_of(kernels, name, case, g), case.gradients(1, g)):
        assert np.array_equal(found, expected + 1), name


def check_parts(kernels: Runs, name: str, case: Case, scale: float) -> None:
    """A gradient of float32 keeps 22 bits beside factors of float16."""
    draw = np.random.default_rng(3)
    g = (draw.integers(-3, 4, (64, 64)) + draw.integers(-3, 4, (64, 64)) * 2.0**-14).astype(np.float32)
    g *= np.float32(scale)
    for found, expected in zip(gradients_of(kernels, name, case, g), case.gradients(1, g.astype(np.float64))):
        with np.errstate(over="ignore"):
            rounded = (expected.astype(np.float16).astype(np.float32) + 1).astype(np.float16)
        assert np.array_equal(found, rounded.astype(np.float64))
