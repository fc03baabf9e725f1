"""Loads into stages at the edges of arrays, for every alignment of their rows. What lies beyond the arrays is NaN."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.emulator.test_stages import compile_cases
from tests.nightly import some
from tests.staged_cases import Case, with_type

pytestmark = pytest.mark.slow  # the emulator compiles for seconds

THREADS = 128
LAYOUTS = {"nn": (False, False), "tn": (True, False), "nt": (False, True)}
ALIGNMENTS = {"float16": (2, 4, 8, 16), "float32": (4, 8, 16), "tf32": (4, 8, 16), "float64": (8, 16)}
# elements beyond a 64 x 64 tile in steps of 32: none, a part of a vector, and more than a vector
SIZES = ((64, 64, 64), (63, 61, 59), (1, 64, 33), (64, 3, 32), (40, 44, 92), (70, 130, 36))


def case_of(dtype: str, layout: str, sizes: tuple[int, int, int]) -> Case:
    a_transposed, b_transposed = LAYOUTS[layout]
    rows, columns, depth = sizes
    case = Case(64, 64, 32, rows, columns, depth, a_transposed=a_transposed, b_transposed=b_transposed)
    stored, precision = ("float32", "tf32") if dtype == "tf32" else (dtype, "default")
    return with_type({"case": case}, stored, precision)["case"]


def inside(values: Values, alignment: int) -> Values:
    """The values in a larger array of NaN, whose rows begin at multiples of ``alignment`` bytes."""
    rows, columns = values.shape
    size = values.itemsize
    step = alignment // size
    wide = -(-(columns + 1) // step) * step
    if alignment < 16 and wide // step % 2 == 0:
        wide += step  # an odd multiple
    wider = np.full((rows + 2, wide), np.nan, dtype=values.dtype)
    wider[:rows, :columns] = values
    return wider[:rows, :columns]


@pytest.mark.parametrize(
    ("dtype", "layout"),
    some(
        [
            *(
                ("float16", "nn"),
                ("float16", "tn"),
                ("float32", "nn"),
                ("float32", "nt"),
                ("tf32", "tn"),
                ("float64", "nt"),
            ),
            *(
                ("float16", "nt"),
                ("float32", "tn"),
                ("tf32", "nn"),
                ("tf32", "nt"),
                ("float64", "nn"),
                ("float64", "tn"),
            ),
        ],
        6,
    ),
)
def test_every_alignment_and_edge(machine: Machine, tmp_path: Path, dtype: str, layout: str) -> None:
    cases = {f"case {number}": case_of(dtype, layout, sizes) for number, sizes in enumerate(SIZES)}
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, THREADS)
    assert source.count("wt_module::Ring<") == len(cases)
    for (name, case), alignment in itertools.product(cases.items(), ALIGNMENTS[dtype]):
        a, b, e, product = case.arrays(3)
        c = np.full(product.shape, np.nan, dtype=product.dtype)
        arrays = emulated.run(kernels[name], case.grid, [inside(a, alignment), inside(b, alignment), e, c])
        assert np.array_equal(arrays["C"], product), (name, alignment)
