"""Shared-memory wavefronts of fixed variants: exactly those on record, and close to the least possible."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.bench import deep_variant
from tests.emulator.emulator import ROLES, Answer, Emulator
from tests.emulator.gemm import Case, operand
from tests.emulator.wavefronts import FILE, fixed_cases, run, to_json
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.gemm.variant import DType, GemmVariant
from warp_tiles.heuristics.choose import candidates, choose
from warp_tiles.heuristics.cost import fma_reads, wavefront_ratio
from warp_tiles.heuristics.limits import problem_of, transposed

LARGEST_RATIO = 1.25


@pytest.fixture(scope="module")
def counted(emulator: Emulator) -> list[tuple[Case, Answer]]:
    """Every fixed case with its answer."""
    cases = fixed_cases()
    return list(zip(cases, run(emulator, cases)))


def test_wavefronts_are_those_on_record(counted: list[tuple[Case, Answer]]) -> None:
    cases, answers = zip(*counted)
    found, recorded = to_json(list(cases), list(answers)), json.loads(FILE.read_text())
    changed = [
        f"{symbol}: {recorded.get(symbol)} became {found.get(symbol)}"
        for symbol in {**recorded, **found}
        if recorded.get(symbol) != found.get(symbol)
    ]
    assert not changed, (
        f"{len(changed)} of {len(found)} variants; if that is intended: python -m tests.emulator.wavefronts\n"
        + "\n".join(changed[:12])
    )


def ratio(answer: Answer) -> float:
    """Wavefronts of a product relative to the fewest possible."""
    counts = answer.counts.values()
    return sum(count.wavefronts for count in counts) / sum(count.ideal for count in counts)


def describe(case: Case, answer: Answer) -> str:
    parts = ", ".join(f"{role} {answer.counts[role].wavefronts}/{answer.counts[role].ideal}" for role in ROLES)
    return f"{ratio(answer):.2f} {case.describe()}: {parts}"


def test_every_tile_of_64_can_be_computed_without_conflicts(emulator: Emulator) -> None:
    smoothest = []
    for case in fixed_cases():
        view = transposed(case.variant) if case.config.transposed else case.variant
        if case.config.instruction == "fma" or view.m < 64:
            continue
        fitting = [config for config in candidates(view) if not problem_of(view, config)]
        best = min(fitting, key=lambda config: wavefront_ratio(view, config))
        smoothest.append(replace(case, config=replace(best, transposed=case.config.transposed)))
    above = [describe(c, a) for c, a in zip(smoothest, run(emulator, smoothest)) if ratio(a) > LARGEST_RATIO]
    assert smoothest
    assert not above, f"{len(above)} of {len(smoothest)} variants:\n" + "\n".join(sorted(above, reverse=True)[:20])


def test_the_usual_products_are_computed_without_conflicts(counted: list[tuple[Case, Answer]]) -> None:
    usual = [
        (case, answer)
        for case, answer in counted
        if case.variant.a.dtype in ("float16", "bfloat16")
        and case.variant.c.dtype == "float32"
        and case.variant.m >= 32
        and [o.arrangement for o in (case.variant.a, case.variant.b, case.variant.c)] == ["row_major"] * 3
    ]
    above = [describe(case, answer) for case, answer in usual if ratio(answer) > LARGEST_RATIO]
    assert len(usual) == 6
    assert not above, "\n".join(above)


def test_the_model_of_the_chooser_counts_what_the_emulator_counts(counted: list[tuple[Case, Answer]]) -> None:
    for case, answer in counted:
        if case.config.instruction == "fma":
            continue
        view = transposed(case.variant) if case.config.transposed else case.variant
        assert wavefront_ratio(view, case.config) == pytest.approx(ratio(answer), rel=0.02), describe(case, answer)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_model_counts_each_part_of_a_shared_sum(emulator: Emulator, dtype: DType) -> None:
    variant = deep_variant(16, 512, dtype, 256, "float64" if dtype == "float64" else "float32")
    base = replace(choose(variant), tile_m=16, tile_n=16, c_first=False)
    cases = [Case(variant, replace(base, warps_k=parts), 1.0, 1.0) for parts in (1, 2, 4, 8)]
    answers = run(emulator, cases)
    for case, answer in zip(cases, answers):
        assert not problem_of(variant, case.config)
        assert wavefront_ratio(variant, case.config) == pytest.approx(ratio(answer), rel=0.02), describe(case, answer)
    reads, writes = ([answer.counts[role].instructions for answer in answers] for role in ("A reads", "C writes"))
    assert reads == [reads[0]] * 4
    assert writes == [parts * writes[0] for parts in (1, 2, 4, 8)]


@pytest.mark.parametrize(("dtype", "vector"), [("float32", 4), ("float64", 2)])
@pytest.mark.parametrize("b_rows", [True, False])
def test_the_model_counts_reads_of_lanes_that_share_a_sum(
    emulator: Emulator, dtype: DType, vector: int, b_rows: bool
) -> None:
    operands = (operand(dtype, rows, 32, 16) for rows in (True, b_rows, True))
    variant = GemmVariant(1, 32, 32, *operands, "default", 32, 90)
    cases = []
    for lanes_n, lanes_k in ((32, 1), (16, 2), (8, 4), (4, 8)):
        config = TileConfig("fma", 1, 32, 1, lanes_n, lanes_k, k_vector=vector, k_unroll=2)
        assert not problem_of(variant, config)
        cases.append(Case(variant, config))
    for case, answer in zip(cases, run(emulator, cases)):
        expected = [reads.wavefronts for reads in fma_reads(variant, case.config)]
        assert [answer.counts[role].wavefronts for role in ("A reads", "B reads")] == expected, case.config.describe()


def test_lines_of_eight_byte_multiples_are_read_two_floats_at_a_time(emulator: Emulator) -> None:
    six = operand("float32", True, 6, 8)
    aligned = GemmVariant(6, 6, 6, six, six, six, "default", 32, 90)
    config = TileConfig("fma", 8, 8, 4, 8, k_vector=2, k_unroll=3)
    cases = [Case(aligned, config), Case(aligned.without_alignment(), config)]
    wide, narrow = (answer.counts["A reads"].instructions for answer in run(emulator, cases))
    assert narrow == 2 * wide == 2 * fma_reads(aligned, config)[0].loads
