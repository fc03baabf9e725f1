"""Shared-memory wavefronts of the most common products: as the cost model counts them, and close to the fewest."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.bench import deep_problem
from tests.emulator.emulator import ROLES, Emulator, Outcome
from tests.emulator.gemm import INCLUDES, Case, error_of, launch, operand
from warp_tiles.gemm.choose import candidates, choose, fma_reads, wavefront_ratio
from warp_tiles.gemm.problem import DTYPE_BYTES, DType, GemmProblem, Precision
from warp_tiles.gemm.tile_config import TileConfig, fits

LARGEST_RATIO = 1.25
SIZES = [(16, 16, 16), (32, 32, 32), (64, 64, 64), (128, 128, 32)]
# true for each of A, B and C that is row-major: the product itself, its adjoints dC B^T and A^T dC, both factors
# transposed, and a column-major result
FORMS = [(True, True, True), (True, False, True), (False, True, True), (False, False, True), (True, True, False)]
KINDS: list[tuple[DType, DType, Precision, int]] = [
    ("float16", "float16", "default", 90),
    ("float16", "float16", "default", 75),
    ("float16", "float32", "default", 90),
    ("bfloat16", "float32", "default", 90),
    ("float32", "float32", "tf32", 90),
    ("float32", "float32", "default", 90),
    ("float64", "float64", "default", 80),
    ("float64", "float64", "default", 90),
]
ALIGNMENT = 16
THREADS = 128


def fixed_cases() -> list[Case]:
    """Dense, aligned products with power-of-two sizes. They read C and write it."""
    cases = []
    for (inner, outer, precision, arch), (m, n, k), (a_rows, b_rows, c_rows) in itertools.product(KINDS, SIZES, FORMS):
        operands = (
            operand(inner, a_rows, k if a_rows else m, ALIGNMENT),
            operand(inner, b_rows, n if b_rows else k, ALIGNMENT),
            operand(outer, c_rows, n if c_rows else m, ALIGNMENT),
        )
        assert all(o.leading_dimension * DTYPE_BYTES[o.dtype] % ALIGNMENT == 0 for o in operands)
        problem = GemmProblem(m, n, k, *operands, precision, THREADS, arch)
        cases.append(Case(problem, choose(problem), 1.0, 1.0))
    return cases


def run(emulator: Emulator, cases: list[Case]) -> list[Outcome]:
    """Run all cases and require correct results.

    Raises:
        AssertionError: A product is wrong.
    """
    launches = [launch(case) for case in cases]
    outcomes = emulator.run(launches, INCLUDES)
    failures = list(filter(None, map(error_of, cases, launches, outcomes)))
    assert not failures, "\n".join(failures[:5])
    return outcomes


@pytest.fixture(scope="module")
def counted(emulator: Emulator) -> list[tuple[Case, Outcome]]:
    """Every fixed case with its outcome."""
    cases = fixed_cases()
    return list(zip(cases, run(emulator, cases)))


def ratio(outcome: Outcome) -> float:
    """Wavefronts of a product relative to the fewest possible."""
    counts = outcome.counts.values()
    return sum(count.wavefronts for count in counts) / sum(count.ideal for count in counts)


def describe(case: Case, outcome: Outcome) -> str:
    parts = ", ".join(f"{role} {outcome.counts[role].wavefronts}/{outcome.counts[role].ideal}" for role in ROLES)
    return f"{ratio(outcome):.2f} {case.describe()}: {parts}"


@pytest.mark.slow
def test_every_tile_of_64_has_a_configuration_with_few_conflicts(emulator: Emulator) -> None:
    best_cases = []
    for case in fixed_cases():
        view = case.problem.transposed() if case.config.transposed else case.problem
        if case.config.instruction == "fma" or view.m < 64:
            continue
        fitting = [config for config in candidates(view) if fits(view, config)]
        best = min(fitting, key=lambda config: wavefront_ratio(view, config))
        best_cases.append(replace(case, config=replace(best, transposed=case.config.transposed)))
    above = [describe(c, a) for c, a in zip(best_cases, run(emulator, best_cases)) if ratio(a) > LARGEST_RATIO]
    assert best_cases
    assert not above, f"{len(above)} of {len(best_cases)} problems:\n" + "\n".join(sorted(above, reverse=True)[:20])


@pytest.mark.slow
def test_common_products_have_few_conflicts(counted: list[tuple[Case, Outcome]]) -> None:
    common = [
        (case, outcome)
        for case, outcome in counted
        if case.problem.a.dtype in ("float16", "bfloat16")
        and case.problem.c.dtype == "float32"
        and case.problem.m >= 32
        and [o.arrangement for o in (case.problem.a, case.problem.b, case.problem.c)] == ["row_major"] * 3
    ]
    above = [describe(case, outcome) for case, outcome in common if ratio(outcome) > LARGEST_RATIO]
    assert len(common) == 6
    assert not above, "\n".join(above)


@pytest.mark.slow
def test_the_cost_model_and_the_emulator_count_equal_wavefronts(counted: list[tuple[Case, Outcome]]) -> None:
    for case, outcome in counted:
        if case.config.instruction == "fma":
            continue
        view = case.problem.transposed() if case.config.transposed else case.problem
        assert wavefront_ratio(view, case.config) == pytest.approx(ratio(outcome), rel=0.02), describe(case, outcome)


@pytest.mark.slow
def test_products_without_tensor_cores_keep_their_wavefronts(counted: list[tuple[Case, Outcome]]) -> None:
    """The cost model leaves some of their conflicts out."""
    outcomes = [outcome for case, outcome in counted if case.config.instruction == "fma"]
    assert (len(outcomes), sum(count.wavefronts for one in outcomes for count in one.counts.values())) == (20, 46256)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_cost_model_counts_each_slice_of_split_k(emulator: Emulator, dtype: DType) -> None:
    problem = deep_problem(16, 512, dtype, 256, "float64" if dtype == "float64" else "float32")
    base = replace(choose(problem), tile_m=16, tile_n=16, c_first=False)
    cases = [Case(problem, replace(base, warps_k=warps_k), 1.0, 1.0) for warps_k in (1, 2, 4, 8)]
    outcomes = run(emulator, cases)
    for case, outcome in zip(cases, outcomes):
        assert fits(problem, case.config)
        assert wavefront_ratio(problem, case.config) == pytest.approx(ratio(outcome), rel=0.02), describe(case, outcome)
    reads, writes = ([outcome.counts[role].instructions for outcome in outcomes] for role in ("A reads", "C writes"))
    assert reads == [reads[0]] * 4
    assert writes == [warps_k * writes[0] for warps_k in (1, 2, 4, 8)]


@pytest.mark.parametrize(("dtype", "vector"), [("float32", 4), ("float64", 2)])
@pytest.mark.parametrize("b_row_major", [True, False])
def test_the_cost_model_counts_reads_of_lanes_that_share_a_sum(
    emulator: Emulator, dtype: DType, vector: int, b_row_major: bool
) -> None:
    operands = (operand(dtype, row_major, 32, 16) for row_major in (True, b_row_major, True))
    problem = GemmProblem(1, 32, 32, *operands, "default", 32, 90)
    cases = []
    for lanes_n, lanes_k in ((32, 1), (16, 2), (8, 4), (4, 8)):
        config = TileConfig("fma", 1, 32, 1, lanes_n, lanes_k, k_vector=vector, k_unroll=2)
        assert fits(problem, config)
        cases.append(Case(problem, config))
    for case, outcome in zip(cases, run(emulator, cases)):
        expected = [reads.wavefronts for reads in fma_reads(problem, case.config)]
        assert [outcome.counts[role].wavefronts for role in ("A reads", "B reads")] == expected, case.config.describe()


def test_rows_of_eight_byte_multiples_are_read_two_floats_at_a_time(emulator: Emulator) -> None:
    six = operand("float32", True, 6, 8)
    aligned = GemmProblem(6, 6, 6, six, six, six, "default", 32, 90)
    config = TileConfig("fma", 8, 8, 4, 8, k_vector=2, k_unroll=3)
    cases = [Case(aligned, config), Case(aligned.without_alignment(), config)]
    wide, narrow = (outcome.counts["A reads"].instructions for outcome in run(emulator, cases))
    assert narrow == 2 * wide == 2 * fma_reads(aligned, config)[0].per_lane
