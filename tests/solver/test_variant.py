"""Solver variants and symbols correspond one to one. Variants survive a round trip through JSON."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.gemm.problem import DTYPE_BYTES, Arrangement, Operand
from warp_tiles.solver.variant import OPERANDS, Function, SolverConfig, SolverVariant

FUNCTIONS = get_args(Function)


@st.composite
def variants(draw: st.DrawFn) -> SolverVariant:
    """Any variant, sensible or not."""
    function, dtype = draw(st.sampled_from(FUNCTIONS)), draw(st.sampled_from(["float32", "float64"]))
    operand = st.builds(
        Operand,
        dtype=st.just(dtype),
        arrangement=st.sampled_from(get_args(Arrangement)),
        leading_dimension=st.integers(1, 300),
        alignment=st.sampled_from([4, 8, 16]),
    )
    count = len(OPERANDS[function])
    operands = tuple(draw(st.lists(operand, min_size=count, max_size=count)))
    n, columns, threads = (draw(st.integers(1, most)) for most in (300, 300, 1024))
    return SolverVariant(function, n, columns, operands, draw(st.booleans()), threads, draw(st.integers(75, 121)))


L, Y = Operand("float32", "row_major", 24, 16), Operand("float32", "col_major", 24, 8)
BASE = SolverVariant("lower_solve", 24, 20, (L, Y, Y), False, 128, 90)
CHANGED: dict[str, SolverVariant] = {
    "function": replace(BASE, function="upper_solve"),
    "n": replace(BASE, n=25),
    "columns": replace(BASE, columns=21),
    "dtype": replace(BASE, operands=tuple(replace(operand, dtype="float64") for operand in BASE.operands)),
    "in_place": replace(BASE, in_place=True),
    "threads": replace(BASE, threads=64),
    "arch": replace(BASE, arch=80),
}
for _position, _name in enumerate(OPERANDS["lower_solve"]):
    for _field, _value in {"arrangement": None, "leading_dimension": 99, "alignment": 4}.items():
        _operands = list(BASE.operands)
        _flipped = _operands[_position].transposed().arrangement
        _operands[_position] = replace(_operands[_position], **{_field: _value or _flipped})
        CHANGED[f"{_name}.{_field}"] = replace(BASE, operands=tuple(_operands))


# ---- symbols


@pytest.mark.parametrize("field", CHANGED)
def test_every_field_changes_the_symbol(field: str) -> None:
    assert CHANGED[field] != BASE
    assert CHANGED[field].symbol != BASE.symbol


def test_changes_of_different_fields_give_different_symbols() -> None:
    assert len({variant.symbol for variant in CHANGED.values()}) == len(CHANGED)


@given(variants(), variants())
def test_the_symbol_is_injective(first: SolverVariant, second: SolverVariant) -> None:
    assert (first.symbol == second.symbol) == (first == second)


@given(variants())
def test_the_symbol_determines_the_variant(variant: SolverVariant) -> None:
    assert parse(variant.symbol) == variant
    assert variant.symbol.isascii()
    assert variant.symbol.isidentifier()
    assert len(variant.symbol) < 256


def parse(symbol: str) -> SolverVariant:
    """The variant of a symbol."""
    names = "|".join(sorted(FUNCTIONS, key=len, reverse=True))
    match = re.fullmatch(
        rf"wt_({names})(_in_place)?_(\d+)_(\d+)_(f32|f64)_([rc]+)_ld([\d_]+)_al([\d_]+)_t(\d+)_sm(\d+)", symbol
    )
    assert match, symbol
    function, in_place, n, columns, code, letters, lds, alignments, threads, arch = match.groups()
    dtype = {"f32": "float32", "f64": "float64"}[code]
    rows = zip(letters, lds.split("_"), alignments.split("_"), strict=True)
    operands = tuple(
        Operand(dtype, {"r": "row_major", "c": "col_major"}[letter], int(ld), int(alignment))  # type: ignore[arg-type]
        for letter, ld, alignment in rows
    )
    return SolverVariant(function, int(n), int(columns), operands, bool(in_place), int(threads), int(arch))  # type: ignore[arg-type]


# ---- JSON


def test_every_field_is_in_the_json() -> None:
    before = BASE.to_json()
    for field, variant in CHANGED.items():
        changed = {name for name, value in variant.to_json().items() if value != before[name]}
        assert len(changed) == 1, field


# ---- texts and scratch memory


def test_texts_for_tables_and_messages() -> None:
    factor = SolverVariant("cholesky", 8, 8, (L, L), False, 32, 90)
    single = replace(BASE, columns=1, in_place=True)
    assert [variant.size for variant in (factor, BASE, single)] == [
        "cholesky 8x8",
        "lower_solve 24x24, 20 columns",
        "lower_solve 24x24, 1 column, in place",
    ]
    assert factor.describe() == "cholesky of 8x8 float32, 32 threads, sm_90"
    assert BASE.describe() == "lower_solve of 24x24 float32 for 20 columns, 128 threads, sm_90"
    assert single.describe() == "lower_solve of 24x24 float32 for 1 column in place, 128 threads, sm_90"
    assert BASE.dtypes == "float32"
    assert (SolverConfig(8).describe(), SolverConfig().describe()) == ("8 lanes per column", "")


@given(variants())
def test_only_adjoints_need_scratch_memory(variant: SolverVariant) -> None:
    assert (variant.scratch_elements > 0) == variant.function.endswith("_adjoint")
    assert variant.scratch_bytes == variant.scratch_elements * DTYPE_BYTES[variant.dtype]
    if variant.function == "cholesky_adjoint":
        assert variant.scratch_elements >= variant.n * variant.n
    if variant.function == "lower_solve_adjoint":
        assert variant.scratch_elements >= variant.n * variant.columns
