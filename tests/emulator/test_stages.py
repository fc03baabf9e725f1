"""Loops that load into stages, on the emulator: results are exact, and a pipeline that is too short is an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.occupancy import multiplying
from tests.emulator.generated import EmulatedKernels, build
from tests.emulator.module import Machine
from tests.nightly import some
from tests.staged_cases import ADD_E, FORMS, HEADER, LINEAR, PRODUCT, START, STORE, WIDE, Case, drawn, with_type

pytestmark = pytest.mark.slow  # the emulator compiles for seconds


def compile_cases(
    machine: Machine, folder: Path, cases: dict[str, Case], arch: int, threads: int, main_loop: str = "auto",
    edit: Callable[[str], str] | None = None, backward: bool = False,
) -> tuple[EmulatedKernels, dict[str, object], str]:  # fmt: skip
    """The kernels of some cases, with their adjoints if ``backward`` is set, and the generated source."""
    names = {name: f"case_{number}" for number, name in enumerate(cases)}
    texts = (case.text(names[name], backward=backward) for name, case in cases.items())
    found = build(machine, folder, HEADER + "".join(texts), threads, arch, edit, main_loop=main_loop)
    return found.emulated, {name: getattr(found.module, names[name]) for name in cases}, found.source


def check(emulated: EmulatedKernels, kernels: dict[str, object], cases: dict[str, Case]) -> None:
    for number, (name, case) in enumerate(cases.items()):
        a, b, e, product = case.arrays(number)
        c = np.full((case.rows, case.columns), np.nan, dtype=case.total)
        arrays = emulated.run(kernels[name], case.grid, [a, b, e, c])
        assert np.array_equal(arrays["C"], case.expected(product, e)), name


@pytest.mark.parametrize(
    ("arch", "threads", "main_loop", "instruction"),
    some(
        [
            (90, 128, "stages=3,in_flight=1", "Warpgroup"),
            (90, 256, "auto", "Warpgroup"),
            (80, 64, "auto", "Warp"),  # and those of LINEAR with a reverse pass in test_reverse_loops.py
            (90, 128, "auto", "Warpgroup"),  # and with a reverse pass in test_reverse_loops.py
            (90, 128, "mma", "Warp"),
            (90, 128, "blocks=1", "Warpgroup"),
            (90, 128, "mma,stages=2", "Warp"),
        ],
        2,
    ),
)
def test_forms(machine: Machine, tmp_path: Path, arch: int, threads: int, main_loop: str, instruction: str) -> None:
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", FORMS, arch, threads, main_loop)
    products = len(FORMS) + 1  # two of a form share their accumulators, unless they have other factors
    assert source.count("using wt_staged_") == products
    # with 256 threads, panels of A and B cannot be divided among two warpgroups if A is transposed and B is not
    assert source.count(f"= wt_module::Product<wt_module::{instruction}Product<") == products - (
        1 if threads == 256 else 0
    )
    check(emulated, kernels, FORMS)


# which have no reverse pass, and those with a factor
NONLINEAR = {name: case for name, case in FORMS.items() if name not in LINEAR or "alpha" in name}


@pytest.mark.parametrize("arch", some([120, 86, 89, 100], 1))
def test_other_architectures(machine: Machine, tmp_path: Path, arch: int) -> None:
    cases = {name: FORMS[name] for name in ("common", "edges", "b transposed")} | NONLINEAR
    cases |= with_type({"tf32": FORMS["common"], "tf32, transposed": FORMS["both transposed"]}, "float32", "tf32")
    cases |= with_type({"fp64": Case(32, 32, 16, 40, 60, 50)}, "float64")
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, arch, 128)
    assert source.count("wt_module::Ring<") == len(cases)
    assert source.count("Product<wt_module::WarpProduct<") == len(cases) + 1  # one form has two factors
    check(emulated, kernels, cases)


def test_loops_of_a_benchmark_multiply_more_than_once(machine: Machine, tmp_path: Path) -> None:
    cases = {"three times": Case(64, 64, 32, 64, 64, 160, expected=lambda p, e: 3 * p)}
    with multiplying(3):
        emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 80, 128)
    assert source.count("wt_module::Ring<") == 1
    check(emulated, kernels, cases)


LOAD_E = FORMS["start value"].start
SECOND_LOOP = """for t in range(2 + 0 * A.shape[0]):
    d = wp.tile_load(A, shape={a_shape}, offset=(i * {m}, t * {k}), storage="shared")
    f = wp.tile_load(B, shape={b_shape}, offset=(t * {k}, j * {n}), storage="shared")
    wp.tile_matmul(d, f, c)
"""
VIEW = "; v = wp.tile_view(c, offset=(0, 0), shape=({m}, {n}))"
INTO_VIEW = PRODUCT.replace("c, precision", "v, precision")
STARTS = {
    "an epilogue": Case(64, 64, 32, 128, 64, 96, start=LOAD_E, finish=ADD_E, expected=lambda p, e: 2 * p + 3 * e),
    "edges": Case(64, 64, 32, 72, 40, 88, start=LOAD_E, expected=lambda p, e: p + e),
    "two arrays of accumulators": Case(
        64, 64, 64, 64, 64, 128, start=LOAD_E, expected=lambda p, e: p + p.T + e,
        product=f"{PRODUCT}\n        wp.tile_matmul(wp.tile_transpose({{b}}), wp.tile_transpose({{a}}), c)",
    ),
    "a view of C in the store": Case(
        64, 64, 32, 64, 64, 96, start=LOAD_E + "; t = wp.tile_transpose(c)",
        finish=STORE.replace("C, c", "C, c + t"), expected=lambda p, e: (p + e) + (p + e).T,
    ),
    "C and a view of it": Case(
        64, 64, 32, 64, 64, 96, start=LOAD_E + VIEW, product=f"{PRODUCT}\n        {INTO_VIEW}",
        expected=lambda p, e: 2 * p + e,
    ),
    "a view of zeros and C": Case(
        64, 64, 32, 64, 64, 96, start=START + VIEW, product=f"{INTO_VIEW}\n        {PRODUCT}",
        expected=lambda p, e: 2 * p,
    ),
    "an earlier loop": Case(
        64, 64, 32, 64, 128, 64, start=LOAD_E, finish=SECOND_LOOP + STORE, expected=lambda p, e: 2 * p + e
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", [90, 80])
def test_start_values(machine: Machine, tmp_path: Path, arch: int) -> None:
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", STARTS, arch, 128)
    assert source.count("wt_module::Ring<") == 8  # one case has two loops
    check(emulated, kernels, STARTS)


@pytest.mark.parametrize("options", [", bounds_check=False", ", aligned=True"])
def test_options_of_loads(machine: Machine, tmp_path: Path, options: str) -> None:
    cases = {"whole": Case(64, 64, 32, 128, 64, 160, options=options)}
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, 128)
    assert source.count("wt_module::Ring<") == 1
    check(emulated, kernels, cases)


# with the number of loops that have stages: wide tiles need many threads, and eight warps need wide tiles.
# test_reverse_loops.py has the other forms of tf32, fp32 and fp64 with four warps.
TYPES = {
    "tf32, two warpgroups": ("float32", "tf32", 90, 256, 16),
    "tf32, mma": ("float32", "tf32", 80, 64, 9),
    "fp32, two warps": ("float32", "default", 80, 64, 8),
    "tf32, wgmma": ("float32", "tf32", 90, 128, 13),
    "fp64": ("float64", "default", 90, 128, 9),
    "fp32": ("float32", "default", 90, 128, 13),
    "fp32, eight warps": ("float32", "default", 90, 256, 10),
    "fp64, sm_80": ("float64", "default", 80, 64, 8),
    "fp64, eight warps": ("float64", "default", 90, 256, 13),
}


@pytest.mark.parametrize("name", some(TYPES, 3))
def test_other_types(machine: Machine, tmp_path: Path, name: str) -> None:
    dtype, precision, arch, threads, staged = TYPES[name]
    wide = {name: case for name, case in WIDE.items() if dtype == "float32" or case.n == 128}
    layouts = {name: FORMS[name] for name in ("unaligned rows", "a transposed", "b transposed", "both transposed")}
    cases = with_type(NONLINEAR | layouts | wide, dtype, precision)
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, arch, threads)
    assert source.count("wt_module::Ring<") == staged
    assert ("Product<wt_module::WarpgroupRegisterProduct<" in source) == ("wgmma" in name or "warpgroups" in name)
    check(emulated, kernels, cases)


@pytest.mark.parametrize("seed", some(range(5), 1))
def test_drawn_cases(machine: Machine, tmp_path: Path, seed: int) -> None:
    cases = {f"{seed}.{number}": drawn(100 * seed + number) for number in range(8)}
    target = [(90, 128, "auto"), (90, 256, "auto"), (80, 128, "auto"), (90, 128, "mma"), (90, 128, "stages=6")]
    arch, threads, main_loop = target[seed]
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, arch, threads, main_loop)
    assert source.count("wt_module::Ring<") >= len(cases) - 1
    check(emulated, kernels, cases)


def test_fma_with_eight_lanes_along_n(machine: Machine, tmp_path: Path) -> None:
    cases = with_type({"wide": Case(32, 128, 16, 40, 120, 52, b_transposed=True)}, "float32")
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, 64)
    assert "lanes_n = 8" in source
    check(emulated, kernels, cases)


FAULTS = {
    "a load comes too early": ("PREFETCH_DISTANCE = STAGES - 1 - IN_FLIGHT", "PREFETCH_DISTANCE = STAGES - IN_FLIGHT"),
    "stages overwrite the start value": ("more = true;\n        WP_TILE_SYNC();", "more = true;"),
    "a stage is missing": ("start + (STAGES - 1) * STAGE_BYTES", "start + (STAGES - 2) * STAGE_BYTES"),
    "products are not complete": ("complete_products(s.accumulators);", ""),
    "tf32: products are not complete": ("complete_products(s.accumulators);", ""),
}


def replaced(old: str, new: str) -> Callable[[str], str]:
    """A function that replaces a text of a source, which must contain it."""

    def edit(source: str) -> str:
        assert old in source
        return source.replace(old, new)

    return edit


# a pass has at most eight bits in place of 31, so that the arrays are small
EIGHT_BITS = {
    "0x7fffffffu / PASS_ROWS": "255u / PASS_ROWS",
    "opaque(stride * PASS_ROWS) : 0": "opaque(stride * PASS_ROWS) % 256 : 0",
}


def test_strides_whose_pass_has_too_many_bytes(machine: Machine, tmp_path: Path) -> None:
    def edit(source: str) -> str:
        for old, new in EIGHT_BITS.items():
            assert source.count(old) == 1
            source = replaced(old, new)(source)
        return source

    cases = {"whole": Case(64, 64, 64, 64, 64, 128), "with edges": Case(64, 64, 64, 56, 56, 120)}
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, 128, edit=edit)
    assert source.count("wt_module::Ring<") == len(cases)
    check(emulated, kernels, cases)


@pytest.mark.parametrize("fault", some(FAULTS, 3))
def test_a_shorter_pipeline_is_an_error(machine: Machine, tmp_path: Path, fault: str) -> None:
    edit = replaced(*FAULTS[fault])
    cases = {"common": FORMS["common"], "start value": FORMS["start value"]}
    if "tf32" in fault:
        cases = with_type({"eight steps": Case(128, 128, 64, 128, 128, 128)}, "float32", "tf32")
    emulated, kernels, _ = compile_cases(machine, tmp_path / "m", cases, 90, 128, edit=edit)
    errors = []
    for name, case in cases.items():
        a, b, e, _ = case.arrays(1)
        c = np.zeros((case.rows, case.columns), dtype=case.total)
        errors.append(emulated.forward(kernels[name], case.grid, [a, b, e, c]).error)
    assert any(errors)
