"""Element types, problems and their symbols, which correspond one to one."""

import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.gemm.problem import DTYPE_BYTES, DTYPES, DType, GemmProblem, Operand, dense_operand

operands = st.builds(
    Operand,
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    arrangement=st.sampled_from(["row_major", "col_major"]),
    leading_dimension=st.integers(1, 300),
    alignment=st.sampled_from([2, 4, 8, 16]),
)
sizes = st.integers(1, 300)
problems = st.builds(
    GemmProblem,
    m=sizes,
    n=sizes,
    k=sizes,
    a=operands,
    b=operands,
    c=operands,
    precision=st.sampled_from(["default", "tf32"]),
    threads=st.integers(1, 1024),
    arch=st.integers(75, 121),
)
BASE = GemmProblem(
    24,
    20,
    16,
    Operand("float16", "row_major", 16, 16),
    Operand("bfloat16", "col_major", 16, 8),
    Operand("float32", "row_major", 20, 4),
    "default",
    128,
    90,
)
CHANGED: dict[str, GemmProblem] = {
    "m": replace(BASE, m=25),
    "n": replace(BASE, n=21),
    "k": replace(BASE, k=17),
    "precision": replace(BASE, precision="tf32"),
    "threads": replace(BASE, threads=64),
    "arch": replace(BASE, arch=80),
    **{
        f"{name}.{field}": replace(BASE, **{name: replace(getattr(BASE, name), **{field: value})})
        for name in "abc"
        for field, value in {
            "dtype": "float64",
            "arrangement": "row_major" if name == "b" else "col_major",
            "leading_dimension": 99,
            "alignment": 2,
        }.items()
    },
}


def test_the_symbol_is_a_short_c_identifier_that_has_every_field() -> None:
    assert BASE.symbol == "wt_gemm_24_20_16_f16_bf16_f32_rcr_ld16_16_20_al16_8_4_t128_sm90"
    symbols = {problem.symbol for problem in (BASE, *CHANGED.values())}
    assert len(symbols) == 1 + len(CHANGED)
    assert all(re.fullmatch(r"[a-z]\w{1,254}", symbol, re.ASCII) for symbol in symbols)
    shown = BASE.to_json()
    assert (shown["m"], shown["n"], shown["k"], shown["b_dtype"]) == (24, 20, 16, "bfloat16")
    assert shown["arrangement"] == ["row_major", "col_major", "row_major"]
    assert (shown["leading_dimensions"], shown["alignments"]) == ([16, 16, 20], [16, 8, 4])


@pytest.mark.parametrize(
    ("dtype", "transposed", "line", "alignment"),
    [("float16", False, 4, 8), ("float16", True, 17, 2), ("float32", False, 4, 16), ("float64", True, 17, 8)],
)
def test_a_dense_operand_is_as_aligned_as_its_lines(dtype: DType, transposed: bool, line: int, alignment: int) -> None:
    operand = dense_operand(dtype, 17, 4, transposed=transposed)
    arrangement = "col_major" if transposed else "row_major"
    assert operand == Operand(dtype, arrangement, line, alignment)


def test_dense_leading_dimensions_follow_the_arrangement() -> None:
    assert BASE.dense_leading_dimensions == (16, 16, 20)  # row-major A 24x16, column-major B 16x20, row-major C 24x20
    transposed = replace(BASE, a=BASE.a.transposed(), b=BASE.b.transposed(), c=BASE.c.transposed())
    assert transposed.dense_leading_dimensions == (24, 20, 24)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_problem_with_a_padded_operand_is_not_dense(name: str) -> None:
    assert BASE.is_dense
    operand = getattr(BASE, name)
    assert not replace(BASE, **{name: replace(operand, leading_dimension=operand.leading_dimension + 1)}).is_dense


@given(operands)
def test_transposing_changes_only_the_arrangement_and_is_its_own_inverse(operand: Operand) -> None:
    flipped = operand.transposed()
    assert flipped.arrangement != operand.arrangement
    assert replace(flipped, arrangement=operand.arrangement) == operand
    assert flipped.transposed() == operand


@given(problems)
def test_without_alignment_changes_only_the_alignments(problem: GemmProblem) -> None:
    weaker = problem.without_alignment()
    assert weaker.alignments == weaker.element_alignments
    assert weaker.element_alignments == tuple(DTYPE_BYTES[operand.dtype] for operand in (weaker.a, weaker.b, weaker.c))
    with_alignments = {**weaker.to_json(), "alignments": list(problem.alignments)}
    assert with_alignments == problem.to_json()
    assert weaker.without_alignment() == weaker


def test_the_description_has_sizes_types_threads_and_architecture() -> None:
    assert BASE.describe() == "24x20x16 float16 x bfloat16 -> float32, 128 threads, sm_90"
    assert "(tf32)" in replace(BASE, precision="tf32").describe()


# ---- element types


def test_every_type_has_a_row_with_its_name() -> None:
    assert set(DTYPES) == set(get_args(DType)) == set(DTYPE_BYTES)
    assert all(name == info.name for name, info in DTYPES.items())


@pytest.mark.parametrize("field", ["code", "kernel_type", "warp_type", "cuda_type", "roundoff"])
def test_no_two_types_share_a_name(field: str) -> None:
    assert len({getattr(info, field) for info in DTYPES.values()}) == len(DTYPES)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_sizes_and_roundoff_equal_numpys(name: DType) -> None:
    assert np.dtype(name).itemsize == DTYPES[name].size_bytes
    assert np.finfo(name).eps / 2 == DTYPES[name].roundoff


def test_bfloat16_is_half_a_float32() -> None:
    assert DTYPES["bfloat16"].size_bytes == 2
    assert DTYPES["bfloat16"].roundoff == 2.0**-8  # the significand has 8 bits, one of them implicit
