"""Loops that load into stages, on the emulator: results and gradients are exact, and every access is checked.

``tests/mutation`` has the faults that these tests must find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.occupancy import multiplying
from tests.emulator.generated import build
from tests.emulator.module import Machine
from tests.emulator.staged import (
    OTHER_ROWS,
    View,
    check,
    check_gradients,
    check_parts,
    compile_cases,
    gradients_of,
    inside,
    integers,
)
from tests.nightly import some
from tests.staged_cases import (
    ADD_E,
    FLAT,
    FORMS,
    LINEAR,
    LOAD_E,
    PRODUCT,
    START,
    STORE,
    WIDE,
    Case,
    drawn,
    scaled,
    with_type,
)


@dataclass(frozen=True)
class Group:
    """Cases that are one module.

    Attributes:
        counts: How often texts occur in its source.
        backward: True if the gradients are checked too.
        views: Of A and B, for further launches.
    """

    cases: Mapping[str, Case]
    counts: Mapping[str, int]
    arch: int = 90
    threads: int = 128
    main_loop: str = "auto"
    backward: bool = False
    views: tuple[View, ...] = ()


LOOPS, SWAPPED, STORED, REVERSED = (
    "wt_module::Ring<",
    "swapped = true",
    "wt_module::store_accumulators<",
    "ReverseLoop<",
)
WGMMA, REGISTERS, MMA, FMA = (f"= wt_module::Product<wt_module::{kind}Product<" for kind in (
    "Warpgroup", "WarpgroupRegister", "Warp", "Fma",
))  # fmt: skip
USUAL, LINE = Case(64, 64, 32, 64, 64, 96), Case(64, 64, 64, 64, 64, 64)


# ---- start values, and stores of accumulators

SECOND_LOOP = """for t in range(2 + 0 * A.shape[0]):
    d = wp.tile_load(A, shape={a_shape}, offset=(i * {m}, t * {k}), storage="shared")
    f = wp.tile_load(B, shape={b_shape}, offset=(t * {k}, j * {n}), storage="shared")
    wp.tile_matmul(d, f, c)
"""
VIEW = "; v = wp.tile_view(c, offset=(0, 0), shape=({m}, {n}))"
INTO_VIEW = PRODUCT.replace("c, precision", "v, precision")
STARTED = replace(USUAL, start=LOAD_E)
STARTS = {
    "an epilogue": replace(STARTED, rows=128, finish=ADD_E, expected=lambda p, e: 2 * p + 3 * e),
    "edges": replace(STARTED, rows=72, columns=40, depth=88, expected=lambda p, e: p + e),
    "two arrays of accumulators": replace(
        STARTED, k=64, depth=128, expected=lambda p, e: p + p.T + e,
        product=f"{PRODUCT}\n        wp.tile_matmul(wp.tile_transpose({{b}}), wp.tile_transpose({{a}}), c)",
    ),
    "a view of C in the store": replace(
        STARTED, start=LOAD_E + "; t = wp.tile_transpose(c)", finish=STORE.replace("C, c", "C, c + t"),
        expected=lambda p, e: (p + e) + (p + e).T,
    ),
    "C and a view of it": replace(
        STARTED, start=LOAD_E + VIEW, product=f"{PRODUCT}\n        {INTO_VIEW}", expected=lambda p, e: 2 * p + e
    ),
    "a view of zeros and C": replace(
        USUAL, start=START + VIEW, product=f"{INTO_VIEW}\n        {PRODUCT}", expected=lambda p, e: 2 * p
    ),
    "an earlier loop": replace(
        STARTED, columns=128, depth=64, finish=SECOND_LOOP + STORE, expected=lambda p, e: 2 * p + e
    ),
}  # fmt: skip
RESIDUAL = "e = wp.tile_load(E, shape=({m}, {n}), offset=(i * {m}, j * {n}))"
ROW = """row = wp.tile_load(E, shape=(1, {n}), offset=(i * {m}, j * {n}), storage="shared")
v = wp.tile_broadcast(row, shape=({m}, {n}))"""
PLAIN = Case(64, 64, 32, 72, 136, 96)  # whole tiles, and edges along both dimensions
FIRST_ROWS = [0] * 64 + [64] * 8  # of the tiles


def twice_plus(tile: str) -> str:
    return f"\nwp.tile_store(C, wp.tile_map(twice_plus, c, {tile}), offset=(i * {{m}}, j * {{n}}))"


STORES = {
    "plain": PLAIN,
    "conditional": replace(PLAIN, finish=f"if i + j < 100:\n    {STORE}"),
    "residual": replace(PLAIN, finish=RESIDUAL + twice_plus("e"), expected=lambda p, e: 2 * p + e),
    "residual of other columns": replace(  # those of the second tile end beyond E, while the tile of C is whole
        PLAIN, finish=RESIDUAL.replace("j * {n}", "(j + 1) * {n}") + twice_plus("e"),
        expected=lambda p, e: 2 * p + np.pad(e[:, 64:], ((0, 0), (0, 64))),
    ),
    "row": replace(PLAIN, finish=ROW + twice_plus("v"), expected=lambda p, e: 2 * p + e[FIRST_ROWS]),
    "row and residual": replace(
        PLAIN, finish=f"{RESIDUAL}\n{ROW}\nd = wp.tile_map(twice_plus, c, v) + e\n{STORE.replace('C, c', 'C, d')}",
        expected=lambda p, e: 2 * p + e[FIRST_ROWS] + e,
    ),
    "the old C of other rows": replace(  # which passes through shared memory
        PLAIN, rows=64, columns=64,
        start=START + "\n    wp.tile_store(C, wp.tile_load(E, shape=({m}, {n})))",
        finish="old = wp.tile_load(C, shape=({m}, {n}))\nrow = wp.tile_load(E, shape=(1, {n}), storage='shared')\n"
        "v = wp.tile_broadcast(row, shape=({m}, {n}))\nwp.tile_store(C, c + old + v - v, offset=(32, 0))",
        expected=lambda p, e: np.concatenate([e[:32], p[:32] + e[:32]]),
    ),
    "several products": replace(PLAIN, product=f"{PRODUCT}\n        {PRODUCT}", expected=lambda p, e: 2 * p),
    "48 columns": replace(PLAIN, n=48, columns=100),
    "256 columns, a residual": replace(  # which a warp exchanges in several parts
        PLAIN, n=256, columns=308, finish=RESIDUAL + twice_plus("e"), expected=lambda p, e: 2 * p + e
    ),
    "unaligned rows": replace(PLAIN, columns=133),
}  # fmt: skip


# so that two steps of K fit a stage
SHORT_STORES = {name: replace(case, k=16) for name, case in with_type(STORES, "float64").items()}


# ---- other types and architectures

# which have no reverse pass, and those with a factor
NONLINEAR = {name: case for name, case in FORMS.items() if name not in LINEAR or "alpha" in name}


LAYOUTS = {name: FORMS[name] for name in ("unaligned rows", "a transposed", "b transposed", "both transposed")}
FLOATS = NONLINEAR | LAYOUTS | WIDE
DOUBLES = with_type({name: case for name, case in FLOATS.items() if name not in WIDE or case.n == 128}, "float64")
SEVERAL_TYPES = {
    **{name: FORMS[name] for name in ("common", "edges", "b transposed")}, **NONLINEAR,
    **with_type({"tf32": FORMS["common"], "tf32, transposed": FORMS["both transposed"]}, "float32", "tf32"),
    **with_type({"fp64": Case(32, 32, 16, 40, 60, 50)}, "float64"),
}  # fmt: skip


def transposed(threads: int, m: int, n: int, *steps: int) -> Group:
    """fp32 tiles that are transposed on their way into stages: inside arrays, and beyond them in each direction."""
    cases = {f"k {k}": Case(m, n, k, 2 * m - 3, n, 3 * k - (k % 16 == 0)) for k in steps}
    cases["a has columns"] = Case(m, n, steps[0], m, n, 2 * steps[0], a_transposed=True)
    counts = {LOOPS: len(cases), "a_transposed = true": len(steps)}
    return Group(with_type(cases, "float32"), counts, threads=threads)


BOTH = with_type(
    {f"k {k}": Case(m, 128, k, 128, 130, 70, b_transposed=True) for m, k in ((128, 16), (128, 64), (64, 32))}, "float32"
)


# ---- products of wgmma that compute the transpose of C


def half(cases: Mapping[str, Case], first: int = 0) -> dict[str, Case]:
    """Two of the four layouts of each size, and each layout with half of the sizes."""
    return {name: case for at, (name, case) in enumerate(cases.items()) if (at + at // 4 + first) % 2 == 0}


RESIDUALS = {name: replace(case, finish=ADD_E, expected=lambda p, e: 2 * p + e) for name, case in FLAT.items()}
# both operands of tf32 are contiguous along K
FLAT_TF32 = with_type(
    {name: case for name, case in FLAT.items() if case.b_transposed and not case.a_transposed}, "float32", "tf32"
)
FLAT_BF16 = with_type({name: case for name, case in FLAT.items() if case.m == 80}, "bfloat16")
FLAT_FORMS = {
    name: replace(case, m=32, n=128, columns=2 * case.columns)
    for name, case in FORMS.items()
    if "transposed" not in name
}
# flat tiles have such products in the loop, and tiles of 64 rows in one gradient or in both
FLAT_GRADIENTS = FLAT | {
    f"{m}x{n}, {'a' * a}{'b' * b}": Case(m, n, 32, m, n, 96, a, b)
    for m, n in ((64, 64), (64, 128))
    for a in (False, True)
    for b in (False, True)
}


# loops with one iteration and with none do not depend on the type
TALL = {**LINEAR, "tall": Case(128, 64, 64, 128, 64, 192)}
# a small tile moves C's gradient, so that a loop's own barrier is the only one before its stages
MOVED = replace(LINE, depth=256, start=f'e = wp.tile_load(E, shape=(4, 16), storage="shared"); {START}')
TYPED = {name: case for name, case in TALL.items() if "turn" not in name}
TYPED_TF32 = with_type({**TYPED, "C moves": MOVED}, "float32", "tf32")


def series(first: int, *sizes: Sequence[int]) -> dict[str, Case]:
    """Drawn cases."""
    return {str(seed): drawn(seed, *sizes) for seed in range(first, first + 8)}


def flat_series(first: int) -> dict[str, Case]:
    return series(first, (16, 32, 48, 80, 96), (64, 128, 192))


# ---- rows of every alignment, arrays smaller than a tile, and loops of two buffers

SMALL = {str(sizes): Case(64, 64, 32, *sizes, 160) for sizes in ((64, 64), (40, 64), (64, 40), (5, 3), (63, 61))}
# elements beyond a tile in steps of K: none, a part of a vector, and more than a vector; the last ones in a full ring
SIZES = ((64, 64, 64), (63, 61, 59), (1, 64, 33), (64, 3, 32), (40, 44, 92), (70, 130, 36), (63, 61, 165))
ALIGNMENTS = {"float16": (2, 4, 8, 16), "float32": (4, 8, 16), "tf32": (4, 8, 16), "float64": (8, 16)}


def clipped(types: str, *layouts: str) -> dict[str, Group]:
    """A group for each layout of A and B, of which "t" is transposed. What lies beyond the arrays is NaN."""
    dtype, precision = ("float32", "tf32") if types == "tf32" else (types, "default")
    views = tuple(map(inside, ALIGNMENTS[types]))
    return {
        f"clipped, {types} {a}{b}": Group(
            with_type({str(sizes): Case(64, 64, 32, *sizes, a == "t", b == "t") for sizes in SIZES}, dtype, precision),
            {LOOPS: len(SIZES)},
            views=views,
        )
        for a, b in layouts
    }


BUFFERED = "PipelineState wt_state_"
TWO_BUFFERS = {
    f"{dtype}, {name}": replace(FORMS[name], dtype=dtype)
    for dtype in ("float32", "float16", "bfloat16", "float64")
    for name in (("common", "one turn", "no turn", "edges", "unaligned rows")[:: 1 if dtype == "float32" else 4])
}
UNEVEN = {  # rows of 6 vectors, which 64 threads share unevenly, and rows of 36 bytes, which are no whole vectors
    "vectors": Case(40, 24, 24, 40, 24, 96, dtype="float32"), "bytes": Case(40, 24, 9, 40, 24, 36, dtype="float32")
}  # fmt: skip
OLD = {name: FORMS[name] for name in ("common", "edges")}

OPTIONS = {
    options: Case(64, 64, 32, 128, 64, 160, options=options) for options in (", bounds_check=False", ", aligned=True")
}
THREE_STAGES = "stages=3,in_flight=1"
# With 256 threads, panels of A and B cannot be divided among two warpgroups if A is transposed and B is not. Nor can 64
# columns, 48 rows or a panel of 32 if C is transposed. 16 columns of tf32 are too few for a warp.
GROUPS = {
    "three stages": Group(FORMS, {WGMMA: 15}, main_loop=THREE_STAGES),
    "two warpgroups": Group(FORMS, {WGMMA: 14}, threads=256),
    "sm_120": Group(SEVERAL_TYPES, {MMA: 12}, 120),
    "start values": Group(STARTS, {WGMMA: 11}),
    "start values, sm_80": Group(STARTS, {MMA: 11}, 80),
    "options of loads": Group(OPTIONS, {LOOPS: 2}),
    "tf32, two warpgroups": Group(with_type(FLOATS, "float32", "tf32"), {REGISTERS: 12, WGMMA: 3, MMA: 2}, threads=256),
    "tf32, mma": Group(with_type(FLOATS, "float32", "tf32"), {MMA: 10}, 80, 64),
    "fp32, two warps": Group(with_type(FLOATS, "float32"), {FMA: 9}, 80, 64),
    "drawn 0": Group(series(0), {WGMMA: 8}),
    "eight lanes along N": Group(
        with_type({"wide": Case(32, 128, 16, 40, 120, 52, b_transposed=True)}, "float32"), {"lanes_n = 8": 1},
        threads=64,
    ),
    "stores": Group(STORES, {WGMMA: 11, STORED: 10}),
    "stores, mma": Group(STORES, {MMA: 10, STORED: 9}, 80, 64),
    "stores, tf32": Group(with_type(STORES, "float32", "tf32"), {REGISTERS: 10, STORED: 9}),
    "stores, fp64": Group(SHORT_STORES, {MMA: 10, STORED: 9}),
    "transposed, three warps": transposed(96, 48, 64, 8, 16, 24, 40, 32),  # no power of two
    "transposed, many warps": transposed(512, 64, 512, 32),  # more than rows to copy at a time
    "transposed, eight warps": transposed(256, 128, 128, 8, 16, 32, 64),
    "both transposed": Group(BOTH, {"a_transposed = true, b_transposed = true": 2}, threads=256),
    "flat, half": Group(half(FLAT), {SWAPPED: 10}),
    "flat, half, residual": Group(half(RESIDUALS, 1), {SWAPPED: 7}, threads=256),
    "flat, bf16": Group(FLAT_BF16, {SWAPPED: 4}, threads=256),
    "flat, tf32": Group(FLAT_TF32, {SWAPPED: 5}),
    "flat, three stages": Group(FLAT_FORMS, {SWAPPED: 12}, main_loop=THREE_STAGES),
    "flat, warps along M": Group(FLAT_FORMS, {SWAPPED: 12}, threads=256, main_loop="warps_m=2"),
    "flat, gradients": Group(half(FLAT_GRADIENTS), {SWAPPED: 19, REVERSED: 14}, backward=True),
    "flat, stores": Group(
        {"whole": Case(48, 128, 32, 96, 256, 96), "unaligned": Case(48, 128, 32, 96, 251, 96)}, {STORED: 2, SWAPPED: 2}
    ),
    "gradients": Group(TALL, {REVERSED: 12, WGMMA: 35, MMA: 1}, backward=True),
    "gradients, mma, sm_80": Group(TALL, {REVERSED: 12, MMA: 36}, 80, 64, backward=True),
    "gradients, tf32": Group(TYPED_TF32, {REVERSED: 10, WGMMA: 10, REGISTERS: 10}, backward=True),
    "gradients, fp64": Group(
        {name: case for name, case in with_type(TYPED, "float64").items() if name != "tall"}, {REVERSED: 9, MMA: 27},
        backward=True,
    ),
    "views": Group(SMALL, {WGMMA: 5}, views=OTHER_ROWS),
    "views, mma": Group(SMALL, {MMA: 5}, main_loop="mma", views=OTHER_ROWS),
    "views, fp32": Group(with_type(SMALL, "float32"), {FMA: 5}, views=OTHER_ROWS),
    **clipped("float16", "nn", "tn"), **clipped("float32", "nn", "nt"),
    **clipped("tf32", "tn"), **clipped("float64", "nt"),
    "clipped, three warps": Group(  # which copy six rows of A at a time, no power of two
        {"edges": Case(48, 96, 32, 40, 100, 92)}, {MMA: 1}, threads=96, views=tuple(map(inside, (4, 8)))
    ),
    "two buffers": Group(TWO_BUFFERS, {BUFFERED: 11}, 90, 64, "double_buffered", True, OTHER_ROWS),
    "two buffers, sm_75": Group(OLD, {BUFFERED: 2}, 75, 64, backward=True),
    "two buffers, uneven": Group(UNEVEN, {BUFFERED: 2}, threads=64, backward=True),
    "gradients, sm_120": Group(OLD, {REVERSED: 2}, 120, 64, backward=True),
    "gradients, fp32": Group(with_type(TYPED, "float32"), {REVERSED: 10, FMA: 30}, backward=True),
}  # fmt: skip
NIGHTLY = {
    "sm_80": Group(FORMS, {MMA: 15}, 80, 64),
    "usual": Group(FORMS, {WGMMA: 15}),
    "mma": Group(FORMS, {MMA: 15}, main_loop="mma"),
    "one block": Group(FORMS, {WGMMA: 15}, main_loop="blocks=1"),
    "mma, two stages": Group(FORMS, {MMA: 15}, main_loop="mma,stages=2"),
    **{f"sm_{arch}": Group(SEVERAL_TYPES, {MMA: 12}, arch) for arch in (86, 89, 100)},
    "tf32, wgmma": Group(with_type(FLOATS, "float32", "tf32"), {REGISTERS: 10, WGMMA: 2, MMA: 2}),
    "fp64": Group(DOUBLES, {MMA: 10}),
    "fp32": Group(with_type(FLOATS, "float32"), {FMA: 14}),
    "fp32, eight warps": Group(with_type(FLOATS, "float32"), {FMA: 10}, threads=256),
    "fp64, sm_80": Group(DOUBLES, {MMA: 9}, 80, 64),
    "fp64, eight warps": Group(DOUBLES, {MMA: 14}, threads=256),
    "drawn 100": Group(series(100), {WGMMA: 6, MMA: 1}, threads=256),
    "drawn 200": Group(series(200), {MMA: 8}, 80),
    "drawn 300": Group(series(300), {MMA: 8}, main_loop="mma"),
    "drawn 400": Group(series(400), {WGMMA: 8}, main_loop="stages=6"),
    "stores, mma, sm_90": Group(STORES, {MMA: 11, STORED: 10}, main_loop="mma"),
    "stores, tf32, sm_80": Group(with_type(STORES, "float32", "tf32"), {MMA: 10, STORED: 9}, 80),
    "transposed, four warps": transposed(128, 64, 64, 8, 16, 24, 32, 40, 48, 64, 96),
    "transposed, two warps": transposed(64, 32, 64, 8, 32, 40),
    **clipped("float16", "nt"), **clipped("float32", "tn"),
    **clipped("tf32", "nn", "nt"), **clipped("float64", "nn", "tn"),
    "two buffers, four warps": Group(TWO_BUFFERS, {BUFFERED: 11}, 90, 128, "double_buffered", True, OTHER_ROWS),
    "flat": Group(FLAT, {SWAPPED: 20}),
    "flat, residual": Group(RESIDUALS, {SWAPPED: 14}, threads=256),
    "flat, bf16, four warps": Group(FLAT_BF16, {SWAPPED: 4}),
    "flat, tf32, two warpgroups": Group(FLAT_TF32, {SWAPPED: 4}, threads=256),
    "flat, usual": Group(FLAT_FORMS, {SWAPPED: 12}),
    "flat, two warpgroups": Group(FLAT_FORMS, {SWAPPED: 12}, threads=256),
    **{f"flat, drawn {first}": Group(flat_series(first), {SWAPPED: 8}) for first in (0, 100, 200)},
    "flat, drawn 300": Group(flat_series(300), {SWAPPED: 4, MMA: 1}, threads=256),
    "flat, all gradients": Group(FLAT_GRADIENTS, {SWAPPED: 38, REVERSED: 28}, backward=True),
    "flat, all gradients, two warpgroups": Group(
        FLAT_GRADIENTS, {SWAPPED: 28, REVERSED: 28}, threads=256, backward=True
    ),
    "gradients, mma": Group(TALL, {REVERSED: 12, MMA: 36}, main_loop="mma", backward=True),
    "gradients, tf32, sm_80": Group(with_type(TYPED, "float32", "tf32"), {REVERSED: 9, MMA: 28}, 80, 64, backward=True),
    "gradients, two warpgroups": Group(TALL, {REVERSED: 12, WGMMA: 23, MMA: 13}, threads=256, backward=True),
    "gradients, drawn 0": Group(series(0), {REVERSED: 8, WGMMA: 20, MMA: 4}, backward=True),
    "gradients, drawn 100": Group(series(100), {REVERSED: 8, MMA: 24}, main_loop="mma", backward=True),
    "gradients, drawn 200": Group(series(200), {REVERSED: 7, MMA: 21}, 80, 64, backward=True),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", some([*GROUPS, *NIGHTLY], len(GROUPS)))
def test_results_and_gradients(machine: Machine, tmp_path: Path, name: str) -> None:
    group = (GROUPS | NIGHTLY)[name]
    kernels = compile_cases(
        machine, tmp_path / "m", group.cases, group.arch, group.threads, group.main_loop, backward=group.backward
    )
    assert {text: kernels.source.count(text) for text in group.counts} == group.counts
    check(kernels, group.cases)
    for view in group.views:
        check(kernels, group.cases, 3, view)
    for case_name, case in group.cases.items() if group.backward else ():
        check_gradients(kernels, case_name, case, integers(case))


@pytest.mark.slow
def test_loops_of_a_benchmark_multiply_more_than_once(machine: Machine, tmp_path: Path) -> None:
    cases = {"three times": replace(USUAL, depth=160, expected=lambda p, e: 3 * p)}
    with multiplying(3):
        kernels = compile_cases(machine, tmp_path / "m", cases, 80)
    assert kernels.source.count(LOOPS) == 1
    check(kernels, cases)


# a pass has at most eight bits in place of 31, so that the arrays are small
EIGHT_BITS = {
    "0x7fffffffu / PASS_ROWS": "255u / PASS_ROWS",
    "opaque(stride * PASS_ROWS) : 0": "opaque(stride * PASS_ROWS) % 256 : 0",
}


@pytest.mark.slow
def test_strides_whose_pass_has_too_many_bytes(machine: Machine, tmp_path: Path) -> None:
    def edit(source: str) -> str:
        for old, new in EIGHT_BITS.items():
            assert source.count(old) == 1
            source = source.replace(old, new)
        return source

    cases = {"whole": Case(64, 64, 64, 64, 64, 128), "with edges": Case(64, 64, 64, 56, 56, 120)}
    kernels = compile_cases(machine, tmp_path / "m", cases, edit=edit)
    assert kernels.source.count(LOOPS) == len(cases)
    check(kernels, cases)


# ---- gradients that are not integers


@pytest.mark.slow
@pytest.mark.parametrize("main_loop", ["auto", "mma"])
def test_a_float32_gradient_keeps_22_bits(machine: Machine, tmp_path: Path, main_loop: str) -> None:
    kernels = compile_cases(machine, tmp_path / "m", {"": LINE}, main_loop=main_loop, backward=True)
    for scale in (1.0, 2.0**-20, 2.0**20):
        check_parts(kernels, "", LINE, scale)


@pytest.mark.slow
def test_infinities_stay_in_their_row_and_column(machine: Machine, tmp_path: Path) -> None:
    kernels = compile_cases(machine, tmp_path / "m", {"": LINE}, backward=True)
    g = integers(LINE)
    g[3, 5], g[7, 9] = np.inf, np.nan
    of_a, of_b = gradients_of(kernels, "", LINE, g)
    expected_a, expected_b = LINE.gradients(1, np.where(np.isfinite(g), g, 0))
    rows, columns = [row for row in range(64) if row not in (3, 7)], [x for x in range(64) if x not in (5, 9)]
    assert np.array_equal(of_a[rows], expected_a[rows] + 1)
    assert np.array_equal(of_b[:, columns], expected_b[:, columns] + 1)
    assert not np.isfinite(of_a[[3, 7]]).any()


VARIABLE = "x = float(A.shape[0] + 2) / 88.0\n    " + LOAD_E
# a factor, its value, and the rounding of gradients beside 1
FACTORS = {
    "float16": ("0.1", 0.1, 2.0**-10),
    "float64": ("wp.float64(0.1)", 0.1, 2.0**-48),
    "float32": ("x", 0.75, 2.0**-20),
    "float16, small": ("1.0e-4", 1.0e-4, 2.0**-10),
}


@pytest.mark.slow
def test_gradients_of_products_with_a_factor(machine: Machine, tmp_path: Path) -> None:
    cases = {
        name: replace(USUAL, start=VARIABLE, product=scaled(factor), alpha=alpha, dtype=name.partition(",")[0])
        for name, (factor, alpha, _) in FACTORS.items()
    }
    kernels = compile_cases(machine, tmp_path / "m", cases, backward=True)
    assert kernels.source.count(REVERSED) == len(cases)
    for name, case in cases.items():
        g, rounding = integers(case), FACTORS[name][2]
        for values, expected in zip(gradients_of(kernels, name, case, g), case.gradients(1, g)):
            np.testing.assert_allclose(values, expected + 1, rtol=rounding, atol=rounding, err_msg=name)


# ---- other places of a loop with gradients

LOADS = """a = wp.tile_load(A, shape=(64, 32), offset=({row}, s * 32), storage="shared")
b = wp.tile_load(B, shape=(32, 64), offset=(s * 32, 0), storage="shared")
wp.tile_matmul(a, b, c)"""
ZEROS = 'c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")'


def looped(depth: int, row: str) -> str:
    return LOADS.format(row=row).replace("\n", "\n" + "    " * depth)


SEVERAL = f"""
@wp.func
def product(
    A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32),
    first: int, end: int, row: int,
):
    {ZEROS}
    for s in range(first, end):
        {looped(2, "row")}
    wp.tile_store(C, c, offset=(row, 0))

@wp.kernel
def twice(A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32)):
    product(A, B, C, 0, 3, 0)
    product(A, B, C, 1, 3, 64)

@wp.kernel
def in_branches(A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32)):
    i, j = wp.tid()
    {ZEROS}
    if i == 0:
        for s in range(i, 3):
            {looped(3, "0")}
    else:
        for s in range(i, 3):
            {looped(3, "64").replace("a =", "d =").replace("b =", "e =").replace("(a, b", "(d, e")}
    wp.tile_store(C, c, offset=(i * 64, j))

@wp.kernel
def empty_between(A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32)):
    for t in range(A.shape[0] // 64 + 1):  # the inner loop has three iterations, none, and two
        {ZEROS}
        for s in range(3 * wp.min(t, 1) - 2 * (t // 2), 3):
            {looped(3, "t // 2 * 64")}
        wp.tile_store(C, c, offset=(wp.min(t, 1) * (3 - t) * 64, 0))
"""


@pytest.mark.slow
def test_other_places_of_the_loop(machine: Machine, tmp_path: Path) -> None:
    built = build(machine, tmp_path / "m", SEVERAL, 128)
    assert built.source.count(f"wt_module::{REVERSED}") == 4
    draw = np.random.default_rng(2)
    shapes = {np.float16: ((128, 96), (96, 64)), np.float32: ((192, 64),)}
    a, b, g = (draw.integers(-3, 4, shape).astype(dtype) for dtype, of in shapes.items() for shape in of)
    of_a, of_b = np.zeros(a.shape), np.zeros(b.shape)
    for first in (0, 1):  # rows of C by the first step of their loop along K
        rows, depth = slice(64 * first, 64 * first + 64), slice(32 * first, 96)
        of_a[rows, depth] = g[rows].astype(float) @ b[depth].T.astype(float)
        of_b[depth] += a[rows, depth].T.astype(float) @ g[rows].astype(float)
    for name in ("twice", "in_branches", "empty_between"):
        dim = (2, 1) if name == "in_branches" else (1, 1)
        gradients = [np.zeros_like(a), np.zeros_like(b), g.copy()]
        arrays = built.run(name, dim, [a, b, np.zeros_like(g)], gradients)
        assert np.array_equal(arrays["adj_A"], of_a), name
        assert np.array_equal(arrays["adj_B"], of_b), name
