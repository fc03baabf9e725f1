"""Products of wgmma that compute the transpose of C, on the emulator: all layouts, edges, stores and gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.emulator import test_reverse_loops as reverse_loops
from tests.emulator.module import Machine
from tests.emulator.test_stages import check, compile_cases, replaced
from tests.nightly import some
from tests.staged_cases import ADD_E, FLAT, FORMS, Case, drawn, with_type

pytestmark = pytest.mark.slow  # the emulator compiles for seconds

RESIDUAL = {
    name: replace(case, finish=ADD_E, expected=lambda product, e: 2 * product + e) for name, case in FLAT.items()
}
SWAPPED = "swapped = true"


def half(cases: dict[str, Case], first: int = 0) -> dict[str, Case]:
    """Two of the four layouts of each size, and each layout with half of the sizes."""
    return {name: case for at, (name, case) in enumerate(cases.items()) if (at + at // 4 + first) % 2 == 0}


# With 256 threads, 64 columns do not divide among two warpgroups, nor 48 rows or a panel of 32. The number of threads
# decides the grid, and not the way of a store, so each store has one.
@pytest.mark.parametrize(
    ("cases", "threads", "swapped"),
    some([(half(FLAT), 128, 10), (half(RESIDUAL, 1), 256, 7), (FLAT, 128, 20), (RESIDUAL, 256, 14)], 2),
    ids=["half, plain", "half, residual", "plain", "residual"],
)
def test_layouts(machine: Machine, tmp_path: Path, cases: dict[str, Case], threads: int, swapped: int) -> None:
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, threads)
    assert source.count(SWAPPED) == swapped
    check(emulated, kernels, cases)


@pytest.mark.parametrize("threads", some([256, 128], 1))
def test_bfloat16(machine: Machine, tmp_path: Path, threads: int) -> None:
    cases = with_type({name: case for name, case in FLAT.items() if case.m == 80}, "bfloat16")
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, threads)
    assert source.count(SWAPPED) == len(cases)
    for name, case in cases.items():
        a, b, e, product = case.arrays(1)
        bits = [(values.view(np.uint32) >> 16).astype(np.uint16) for values in (a, b)]  # of small integers
        c = np.full((case.rows, case.columns), np.nan, dtype=case.total)
        arrays = emulated.run(kernels[name], case.grid, [*bits, e, c])
        assert np.array_equal(arrays["C"], product), name


@pytest.mark.parametrize(("threads", "swapped"), some([(128, 5), (256, 4)], 1))
def test_tf32(machine: Machine, tmp_path: Path, threads: int, swapped: int) -> None:
    """Both operands are contiguous along K."""
    cases = {name: case for name, case in FLAT.items() if case.b_transposed and not case.a_transposed}
    cases = with_type(cases, "float32", "tf32")
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, threads)
    assert source.count(SWAPPED) == swapped
    check(emulated, kernels, cases)


@pytest.mark.parametrize(
    ("threads", "main_loop"),
    some([(128, "stages=3,in_flight=1"), (256, "warps_m=2"), (128, "auto"), (256, "auto")], 2),
)
def test_forms(machine: Machine, tmp_path: Path, threads: int, main_loop: str) -> None:
    forms = {name: case for name, case in FORMS.items() if "transposed" not in name}
    cases = {name: replace(case, m=32, n=128, columns=2 * case.columns) for name, case in forms.items()}
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, threads, main_loop)
    assert source.count(SWAPPED) == len(cases) + 1  # one form has two arrays of accumulators
    check(emulated, kernels, cases)


@pytest.mark.parametrize("seed", some(range(4), 0))
def test_drawn_cases(machine: Machine, tmp_path: Path, seed: int) -> None:
    cases = {f"{seed}.{n}": drawn(100 * seed + n, (16, 32, 48, 80, 96), (64, 128, 192)) for n in range(8)}
    threads = 128 if seed < 3 else 256
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, threads)
    assert source.count(SWAPPED) == len(cases) or threads == 256
    assert SWAPPED in source
    check(emulated, kernels, cases)


@pytest.mark.parametrize(
    ("threads", "every", "most"),
    some([(128, False, 6), (128, True, 12), (256, True, 12)], 1),
    ids=["128", "128, all", "256, all"],
)
def test_gradients(machine: Machine, tmp_path: Path, threads: int, every: bool, most: int) -> None:
    """Flat tiles have such products in the loop, and tiles of 64 rows in one gradient or in both."""
    cases = FLAT | {
        f"{m}x{n}, {'a' * a}{'b' * b}": Case(m, n, 32, m, n, 96, a, b)
        for m, n in ((64, 64), (64, 128))
        for a in (False, True)
        for b in (False, True)
    }
    cases = cases if every else half(cases)
    emulated, kernels, source = reverse_loops.compile_cases(machine, tmp_path / "m", cases, 90, threads)
    swapped = [text for text in source.split("struct wt_")[1:] if SWAPPED in text]
    assert sum(text.startswith("gradient_") for text in swapped) > most
    reverse_loops.check(emulated, kernels, cases)


def test_stores_from_registers(machine: Machine, tmp_path: Path) -> None:
    cases = {"whole": Case(48, 128, 32, 96, 256, 96), "unaligned": Case(48, 128, 32, 96, 251, 96)}
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, 128)
    assert source.count("wt_module::store_accumulators<") == len(cases)
    check(emulated, kernels, cases)


FAULTS = {
    "groups along N compute the same columns": ("s.line = (SWAPPED ? n : m)", "s.line = (SWAPPED ? 0 : m)"),
    "groups along M compute the same rows": ("s.column = (SWAPPED ? m : n) * WIDTH", "s.column = 0"),
    "pairs are stored one row too high": ("2 * quarter + odd, col", "2 * quarter, col"),
}


@pytest.mark.parametrize("fault", some(FAULTS, 1))
def test_faults(machine: Machine, tmp_path: Path, fault: str) -> None:
    cases = {"rows": Case(32, 64, 32, 64, 64, 96), "columns": Case(32, 128, 32, 64, 123, 96)}
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, 256, edit=replaced(*FAULTS[fault]))
    assert source.count(SWAPPED) == len(cases)
    with pytest.raises(AssertionError):
        check(emulated, kernels, cases)
