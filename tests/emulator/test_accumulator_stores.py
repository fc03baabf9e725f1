"""Stores that take the accumulators of a loop from registers, on the emulator: whole tiles, and the edges of arrays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.module import Machine
from tests.emulator.test_stages import check, compile_cases, replaced
from tests.nightly import some
from tests.staged_cases import PRODUCT, START, Case, with_type

pytestmark = pytest.mark.slow  # the emulator compiles for seconds

STORE = "wp.tile_store(C, wp.tile_map(twice_plus, c, {other}), offset=(i * {{m}}, j * {{n}}))"
RESIDUAL = "e = wp.tile_load(E, shape=({m}, {n}), offset=(i * {m}, j * {n}))"
ROW = """row = wp.tile_load(E, shape=(1, {n}), offset=(i * {m}, j * {n}), storage="shared")
v = wp.tile_broadcast(row, shape=({m}, {n}))"""
PLAIN = Case(64, 64, 32, 72, 136, 96)  # whole tiles, and edges along both dimensions
FORMS = {
    "plain": PLAIN,
    "conditional": replace(PLAIN, finish="if i + j < 100:\n    wp.tile_store(C, c, offset=(i * {m}, j * {n}))"),
    "residual": replace(
        PLAIN, finish=f"{RESIDUAL}\n{STORE.format(other='e')}", expected=lambda product, e: 2 * product + e
    ),
    "residual of other columns": replace(  # those of the second tile end beyond E, while the tile of C is whole
        PLAIN,
        finish=RESIDUAL.replace("j * {n}", "(j + 1) * {n}") + f"\n{STORE.format(other='e')}",
        expected=lambda product, e: 2 * product + np.pad(e[:, 64:], ((0, 0), (0, 64))),
    ),
    "row": replace(
        PLAIN,
        finish=f"{ROW}\n{STORE.format(other='v')}",
        expected=lambda product, e: 2 * product + e[[0] * 64 + [64] * 8],
    ),
    "row and residual": replace(
        PLAIN,
        finish=f"{RESIDUAL}\n{ROW}\nd = wp.tile_map(twice_plus, c, v) + e\n"
        "wp.tile_store(C, d, offset=(i * {m}, j * {n}))",
        expected=lambda product, e: 2 * product + e[[0] * 64 + [64] * 8] + e,
    ),
    "the old C of other rows": replace(  # which passes through shared memory
        PLAIN,
        rows=64,
        columns=64,
        start=START + "\n    wp.tile_store(C, wp.tile_load(E, shape=({m}, {n})))",
        finish="old = wp.tile_load(C, shape=({m}, {n}))\nrow = wp.tile_load(E, shape=(1, {n}), storage='shared')\n"
        "v = wp.tile_broadcast(row, shape=({m}, {n}))\nwp.tile_store(C, c + old + v - v, offset=(32, 0))",
        expected=lambda product, e: np.concatenate([e[:32], product[:32] + e[:32]]),
    ),
    "several products": replace(
        PLAIN, product="\n        ".join([PRODUCT, PRODUCT]), expected=lambda product, e: 2 * product
    ),
    "48 columns": replace(PLAIN, n=48, columns=100),
    "256 columns, a residual": replace(  # which a warp exchanges in several parts
        PLAIN,
        n=256,
        columns=308,
        finish=f"{RESIDUAL}\n{STORE.format(other='e')}",
        expected=lambda product, e: 2 * product + e,
    ),
    "unaligned rows": replace(PLAIN, columns=133),
}


@pytest.mark.parametrize(
    ("arch", "threads", "main_loop", "dtype", "precision"),
    some(
        [
            (90, 128, "auto", "float16", "default"),
            (80, 64, "auto", "float16", "default"),
            (90, 128, "auto", "float32", "tf32"),
            (90, 128, "auto", "float64", "default"),
            (90, 128, "mma", "float16", "default"),
            (80, 128, "auto", "float32", "tf32"),
        ],
        4,
    ),
)
def test_forms(
    machine: Machine, tmp_path: Path, arch: int, threads: int, main_loop: str, dtype: str, precision: str
) -> None:
    cases = with_type(FORMS, dtype, precision)
    if dtype == "float64":  # so that two steps of K fit a stage
        cases = {name: replace(case, k=16) for name, case in cases.items()}
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, arch, threads, main_loop)
    staged, stored = source.count("using wt_staged_"), source.count("wt_module::store_accumulators<")
    neighbours = (arch, precision) != (80, "tf32") or dtype != "float32"
    assert staged > 0
    assert stored == (staged - 1 if neighbours else stored)  # without the old C of other rows
    check(emulated, kernels, cases)


@pytest.mark.parametrize(("dtype", "columns"), [("float16", 133), ("float16", 132), ("float64", 133)])
def test_aligned_rows_that_end_within_or_between_vectors(
    machine: Machine, tmp_path: Path, dtype: str, columns: int
) -> None:
    case = with_type({"plain": replace(PLAIN, columns=columns, k=16)}, dtype, "default")["plain"]
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", {"plain": case}, 90, 128)
    assert source.count("wt_module::store_accumulators<") == 1
    a, b, e, product = case.arrays(0)
    c = np.full((case.rows, 136), np.nan, dtype=case.total)[:, :columns]
    arrays = emulated.run(kernels["plain"], case.grid, [a, b, e, c])
    assert np.array_equal(arrays["C"], product)


FAULTS = {
    "lanes write to each other's words": ("Rows::offset(lane / 4, i", "Rows::offset(lane / 8, i"),
    "a lane stores the columns of another": ("group_of(v), words[v]", "(group_of(v) ^ 1), words[v]"),
    "nobody waits for C": (
        "finish<false>(accumulators, c.data.ptr);\n            WP_TILE_SYNC();",
        "finish<false>(accumulators, c.data.ptr);",
    ),
    "operands of an edge are loaded as if it were whole": ("inspected.is_whole;", "true;"),
}


@pytest.mark.parametrize("fault", some(FAULTS, 2))
def test_faults(machine: Machine, tmp_path: Path, fault: str) -> None:
    edit = replaced(*FAULTS[fault])
    cases = {name: FORMS[name] for name in ("plain", "residual of other columns")}
    emulated, kernels, _ = compile_cases(machine, tmp_path / "m", cases, 90, 128, edit=edit)
    with pytest.raises(AssertionError):
        check(emulated, kernels, cases)
