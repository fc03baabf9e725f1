"""Reverse passes of loops that load into stages, on the emulator."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.emulator import test_stages as stages
from tests.emulator.generated import EmulatedKernels, build
from tests.emulator.module import Machine
from tests.nightly import some
from tests.staged_cases import LINEAR, LOAD_E, Case, Values, drawn, scaled, with_type

pytestmark = pytest.mark.slow  # the emulator compiles for seconds

TALL = Case(128, 64, 64, 128, 64, 192)


compile_cases = functools.partial(stages.compile_cases, backward=True)


def backward(
    emulated: EmulatedKernels, kernel: object, case: Case, g: Values, seed: int = 1
) -> tuple[str, Values, Values]:
    """The error of the launch of an adjoint, and the gradients of A and B. That of E is checked."""
    a, b, e, _ = case.arrays(seed)
    c = np.zeros((case.rows, case.columns), dtype=case.total)
    gradients = [np.ones_like(a), np.ones_like(b), np.zeros_like(e), g.copy()]
    outcome = emulated.backward(kernel, case.grid, [a, b, e, c], gradients)
    if outcome.error:
        return outcome.error, a, b
    of_e = g if LOAD_E in case.start else np.zeros_like(g)
    np.testing.assert_array_equal(outcome.arrays["adj_E"], of_e)  # that of C's start value
    return "", outcome.arrays["adj_A"], outcome.arrays["adj_B"]


def integers(case: Case) -> Values:
    return np.random.default_rng(5).integers(-2, 3, (case.rows, case.columns)).astype(case.total)


def check(emulated: EmulatedKernels, kernels: dict[str, object], cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        g = integers(case)
        error, of_a, of_b = backward(emulated, kernels[name], case, g)
        assert error == "", name
        for found, expected in zip((of_a, of_b), case.gradients(1, g)):
            assert np.array_equal(found, expected + 1), name


# with the number of loops whose reverse pass has stages: 16 columns of tf32 are too few for a warp. Loops with one
# iteration and with none do not depend on the type.
TARGETS = {
    "wgmma": ("float16", "default", 90, 128, "auto", "Warpgroup", 12),
    "mma, sm_80": ("float16", "default", 80, 64, "auto", "Warp", 12),
    "tf32": ("float32", "tf32", 90, 128, "auto", "Warpgroup", 9),
    "fp64": ("float64", "default", 90, 128, "auto", "Warp", 9),
    "fp32": ("float32", "default", 90, 128, "auto", "Fma", 10),
    "mma": ("float16", "default", 90, 128, "mma", "Warp", 12),
    "tf32, sm_80": ("float32", "tf32", 80, 64, "auto", "Warp", 9),
    "wgmma, two warpgroups": ("float16", "default", 90, 256, "auto", "Warpgroup", 12),
}


@pytest.mark.parametrize("name", some(TARGETS, 5))
def test_gradients_of_integers_are_exact(machine: Machine, tmp_path: Path, name: str) -> None:
    dtype, precision, arch, threads, main_loop, product, staged = TARGETS[name]
    cases = {name: case for name, case in LINEAR.items() if dtype == "float16" or "turn" not in name}
    cases = with_type(cases if dtype == "float64" else cases | {"tall": TALL}, dtype, precision)
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, arch, threads, main_loop)
    assert source.count("wt_module::ReverseLoop<") == staged
    assert "wt_module::Ring<" in source
    assert f"= wt_module::Product<wt_module::{product}Product<wt_gradient_" in source
    stages.check(emulated, kernels, cases)
    check(emulated, kernels, cases)


@pytest.mark.parametrize("seed", some(range(3), 0))
def test_drawn_cases(machine: Machine, tmp_path: Path, seed: int) -> None:
    cases = {f"{seed}.{number}": drawn(100 * seed + number) for number in range(8)}
    arch, threads, main_loop = [(90, 128, "auto"), (90, 128, "mma"), (80, 64, "auto")][seed]
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, arch, threads, main_loop)
    assert source.count("wt_module::ReverseLoop<") >= len(cases) - 1
    check(emulated, kernels, cases)


@pytest.mark.parametrize("scale", [1.0, 2.0**-20, 2.0**20])
@pytest.mark.parametrize("main_loop", ["auto", "mma"])
def test_a_float32_gradient_keeps_22_bits(machine: Machine, tmp_path: Path, main_loop: str, scale: float) -> None:
    case = Case(64, 64, 64, 64, 64, 64)
    emulated, kernels, _ = compile_cases(machine, tmp_path / "m", {"": case}, 90, 128, main_loop)
    draw = np.random.default_rng(3)
    g = (draw.integers(-3, 4, (64, 64)) + draw.integers(-3, 4, (64, 64)) * 2.0**-14).astype(np.float32)
    g *= np.float32(scale)
    error, *found = backward(emulated, kernels[""], case, g)
    assert error == ""
    for values, expected in zip(found, case.gradients(1, g.astype(np.float64))):
        with np.errstate(over="ignore"):
            rounded = (expected.astype(np.float16).astype(np.float32) + 1).astype(np.float16)
        assert np.array_equal(values, rounded)


@pytest.mark.parametrize(
    ("dtype", "factor", "alpha"),
    [
        ("float16", "0.1", 0.1),
        ("float64", "wp.float64(0.1)", 0.1),
        ("float32", "x", 0.75),  # a variable
        ("float16", "1.0e-4", 1.0e-4),
    ],
)
def test_gradients_of_products_with_a_factor(
    machine: Machine, tmp_path: Path, dtype: str, factor: str, alpha: float
) -> None:
    start = "x = float(A.shape[0] + 2) / 88.0\n    " + LOAD_E
    case = replace(Case(64, 64, 32, 64, 64, 96, start=start, product=scaled(factor), alpha=alpha), dtype=dtype)
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", {"": case}, 90, 128)
    assert source.count("wt_module::ReverseLoop<") == 1
    g = integers(case)
    error, *found = backward(emulated, kernels[""], case, g)
    assert error == ""
    rounding = {"float16": 2.0**-10, "float32": 2.0**-20, "float64": 2.0**-48}[dtype]  # beside 1
    for values, expected in zip(found, case.gradients(1, g)):
        np.testing.assert_allclose(values.astype(float), expected + 1, rtol=rounding, atol=rounding)


def test_infinities_stay_in_their_row_and_column(machine: Machine, tmp_path: Path) -> None:
    case = Case(64, 64, 64, 64, 64, 64)
    emulated, kernels, _ = compile_cases(machine, tmp_path / "m", {"": case}, 90, 128)
    g = integers(case)
    g[3, 5], g[7, 9] = np.inf, np.nan
    error, of_a, of_b = backward(emulated, kernels[""], case, g)
    assert error == ""
    expected_a, expected_b = case.gradients(1, np.where(np.isfinite(g), g, 0))
    rows, columns = [row for row in range(64) if row not in (3, 7)], [x for x in range(64) if x not in (5, 9)]
    assert np.array_equal(of_a[rows], expected_a[rows] + 1)
    assert np.array_equal(of_b[:, columns], expected_b[:, columns] + 1)
    assert not np.isfinite(of_a[[3, 7]]).any()


SYNC = r"WP_TILE_SYNC\(\);"
FAULTS = {
    "it waits for one load too few": (r"wait_for_copy_groups<1>", "wait_for_copy_groups<2>"),
    "one stage": (r"from = to \+ STAGE_BYTES", "from = to"),
    "the last iteration is not multiplied": (r"goto wt_reverse_multiply_\d+;", ""),
    "no barrier after the products": (rf"(\.complete<\w+>\(\w+\);) {SYNC}", r"\1"),
    "no barrier before the tiles are multiplied": (rf"(wait_for_copies\(\);\n        ){SYNC}", r"\1"),
    "no barrier before the gradients are added": (rf"(\.replace<[^;]*;) {SYNC}", r"\1"),
    "no barrier before the stage buffers are written": (rf"{SYNC}  // from here on", "// from here on"),
    "no fence": (
        r"        wt::arch::fence_for_wgmma\(\);\n#endif\n(        WP_TILE_SYNC\(\);  // a loop)",
        r"#endif\n\1",
    ),
}


@pytest.mark.parametrize("fault", some(FAULTS, 3))
def test_a_fault_is_found(machine: Machine, tmp_path: Path, fault: str) -> None:
    pattern, text = FAULTS[fault]

    def edit(source: str) -> str:
        edited, count = re.subn(pattern, text, source)
        assert count
        return edited

    case = Case(64, 64, 64, 64, 64, 256)
    if "written" in fault:  # the search for the largest 16-bit value has barriers too; a small tile moves C's gradient
        small = 'e = wp.tile_load(E, shape=(4, 16), storage="shared"); '
        case = replace(case, dtype="float32", precision="tf32", start=small + case.start)
    emulated, kernels, _ = compile_cases(machine, tmp_path / "m", {"": case}, 90, 128, edit=edit)
    g = integers(case)
    error, *found = backward(emulated, kernels[""], case, g)
    exact = all(np.array_equal(values, expected + 1) for values, expected in zip(found, case.gradients(1, g)))
    assert error or not exact


SEVERAL = """
@wp.func
def product(
    A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32),
    first: int, end: int, row: int,
):
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    for s in range(first, end):
        a = wp.tile_load(A, shape=(64, 32), offset=(row, s * 32), storage="shared")
        b = wp.tile_load(B, shape=(32, 64), offset=(s * 32, 0), storage="shared")
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c, offset=(row, 0))

@wp.kernel
def twice(A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32)):
    product(A, B, C, 0, 3, 0)
    product(A, B, C, 1, 3, 64)

@wp.kernel
def in_branches(A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32)):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    if i == 0:
        for s in range(i, 3):
            a = wp.tile_load(A, shape=(64, 32), offset=(0, s * 32), storage="shared")
            b = wp.tile_load(B, shape=(32, 64), offset=(s * 32, 0), storage="shared")
            wp.tile_matmul(a, b, c)
    else:
        for s in range(i, 3):
            d = wp.tile_load(A, shape=(64, 32), offset=(64, s * 32), storage="shared")
            e = wp.tile_load(B, shape=(32, 64), offset=(s * 32, 0), storage="shared")
            wp.tile_matmul(d, e, c)
    wp.tile_store(C, c, offset=(i * 64, j))

@wp.kernel
def empty_between(A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32)):
    for t in range(A.shape[0] // 64 + 1):  # the inner loop has three iterations, none, and two
        c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
        for s in range(3 * wp.min(t, 1) - 2 * (t // 2), 3):
            a = wp.tile_load(A, shape=(64, 32), offset=(t // 2 * 64, s * 32), storage="shared")
            b = wp.tile_load(B, shape=(32, 64), offset=(s * 32, 0), storage="shared")
            wp.tile_matmul(a, b, c)
        wp.tile_store(C, c, offset=(wp.min(t, 1) * (3 - t) * 64, 0))
"""


@pytest.mark.parametrize("name", ["twice", "in_branches", "empty_between"])
def test_other_places_of_the_loop(machine: Machine, tmp_path: Path, name: str) -> None:
    built = build(machine, tmp_path / "m", SEVERAL, 128)
    assert built.source.count("wt_module::ReverseLoop<") == 4
    draw = np.random.default_rng(2)
    a = draw.integers(-3, 4, (128, 96)).astype(np.float16)
    b = draw.integers(-3, 4, (96, 64)).astype(np.float16)
    g = draw.integers(-2, 3, (192, 64)).astype(np.float32)
    # rows of C by the loop that computes them: its first step along K
    first = {"twice": (0, 1), "in_branches": (0, 1), "empty_between": (0, 1)}[name]
    gradients = [np.zeros_like(a), np.zeros_like(b), g.copy()]
    kernel = getattr(built.module, name)
    dim = (2, 1) if name == "in_branches" else (1, 1)
    arrays = built.emulated.run(kernel, dim, [a, b, np.zeros_like(g)], gradients)
    of_a, of_b = np.zeros(a.shape), np.zeros(b.shape)
    for number, step in enumerate(first):
        rows, depth = slice(64 * number, 64 * number + 64), slice(32 * step, 96)
        upper = g[rows].astype(float)
        of_a[rows, depth] = upper @ b[depth].T.astype(float)
        of_b[depth] += a[rows, depth].T.astype(float) @ upper
    assert np.array_equal(arrays["adj_A"], of_a)
    assert np.array_equal(arrays["adj_B"], of_b)
