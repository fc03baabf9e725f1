"""Solver problems: symbols and JSON, the chooser of their lanes, and the problems of a call."""

import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.gemm.hardware import LANES, MULTIPROCESSORS
from warp_tiles.gemm.problem import DTYPE_BYTES, DType, Operand, Role, Target, TileOperand
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.solver.problem import (
    ADJOINTS,
    MAX_ROWS,
    OPERANDS,
    Function,
    SolverConfig,
    SolverProblem,
    choose,
    reason_unsupported,
    register_limit,
    registers_of_rows,
    solvers,
)

FUNCTIONS = get_args(Function)


def problem(function: Function, n: int = 16, columns: int = 4, dtype: DType = "float32", threads: int = 64,
            arch: int = 90) -> SolverProblem:  # fmt: skip
    operands = (Operand(dtype, "row_major", n, 4),) * len(OPERANDS[function])
    return SolverProblem(function, n, columns if "solve" in function else n, operands, False, threads, arch)


usual_problems = st.builds(
    problem, st.sampled_from(get_args(Function)), st.integers(1, MAX_ROWS), st.integers(1, 300),
    st.sampled_from(["float32", "float64"]), st.integers(1, 32).map(lambda warps: warps * LANES),
    st.sampled_from([75, 80, 90, 120]),
)  # fmt: skip

L, Y = Operand("float32", "row_major", 24, 16), Operand("float32", "col_major", 24, 8)
BASE = SolverProblem("lower_solve", 24, 20, (L, Y, Y), False, 128, 90)
CHANGED: dict[str, SolverProblem] = {
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


def test_the_symbol_is_a_short_c_identifier_that_has_every_field() -> None:
    assert BASE.symbol == "wt_lower_solve_24_20_f32_rcc_ld24_24_24_al16_8_8_t128_sm90"
    symbols = {problem.symbol for problem in (BASE, *CHANGED.values())}
    assert len(symbols) == 1 + len(CHANGED)
    assert all(re.fullmatch(r"[a-z]\w{1,254}", symbol, re.ASCII) for symbol in symbols)


@given(usual_problems)
def test_each_function_has_symbols_of_its_own(problem: SolverProblem) -> None:
    assert problem.symbol.startswith(f"wt_{problem.function}_{problem.n}_{problem.columns}_f")
    assert len(problem.symbol) < 256


def test_every_field_is_in_the_json() -> None:
    before = BASE.to_json()
    for field, problem in CHANGED.items():
        changed = {name for name, value in problem.to_json().items() if value != before[name]}
        assert len(changed) == 1, field


def test_texts_for_tables_and_messages() -> None:
    factor = SolverProblem("cholesky", 8, 8, (L, L), False, 32, 90)
    single = replace(BASE, columns=1, in_place=True)
    assert (factor.size, BASE.size) == ("cholesky 8x8", "lower_solve 24x24, 20 columns")
    assert single.size == "lower_solve 24x24, 1 column, in place"
    assert factor.describe() == "cholesky of 8x8 float32, 32 threads, sm_90"
    assert BASE.describe() == "lower_solve of 24x24 float32 for 20 columns, 128 threads, sm_90"
    assert single.describe() == "lower_solve of 24x24 float32 for 1 column in place, 128 threads, sm_90"
    assert BASE.dtypes == "float32"
    assert (SolverConfig(8).describe(), SolverConfig().describe()) == ("8 lanes per column", "")


@given(usual_problems)
def test_only_adjoints_need_scratch_memory(problem: SolverProblem) -> None:
    assert (problem.scratch_elements > 0) == problem.function.endswith("_adjoint")
    assert problem.scratch_bytes == problem.scratch_elements * DTYPE_BYTES[problem.dtype]
    if problem.function == "cholesky_adjoint":
        assert problem.scratch_elements >= problem.n * problem.n
    if problem.function.endswith("solve_adjoint"):
        assert problem.scratch_elements >= problem.n * problem.columns


# ---- the problems of a call


TARGET = Target(90, 64)
SOLVES: list[Function] = ["cholesky_solve", "lower_solve", "upper_solve"]


def tile(rows: int, columns: int, *, transposed: bool = False, pad: int = 0, aligned: bool = True) -> TileOperand:
    """A dense tile, or one with padded rows (columns of a transposed one)."""
    if transposed:
        return TileOperand("float32", (rows, columns), (1, rows + pad), "col_major", aligned)
    return TileOperand("float32", (rows, columns), (columns + pad, 1), "row_major", aligned)


def solved(
    function: Function, *tiles: TileOperand, target: Target = TARGET, **changes: Any
) -> dict[Role, SolverProblem]:
    found = solvers(function, tiles, target, **changes)
    assert isinstance(found, dict)
    return found


def arrangements(problem: SolverProblem) -> str:
    return "".join(operand.arrangement[0] for operand in problem.operands)


def test_a_factor_and_its_adjoint() -> None:
    found = solved("cholesky", tile(8, 8), tile(8, 8, transposed=True))
    a, factor = Operand("float32", "row_major", 8, 16), Operand("float32", "col_major", 8, 16)
    assert found == {
        Role.FORWARD: SolverProblem("cholesky", 8, 8, (a, factor), False, 64, 90),
        Role.ADJOINT: SolverProblem("cholesky_adjoint", 8, 8, (factor, factor, a), False, 64, 90),
    }


@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("factor", [False, True])
def test_an_upper_factor_is_the_transpose_of_a_lower_one(a: bool, factor: bool) -> None:
    upper = solved("cholesky", tile(8, 8, transposed=a), tile(8, 8, transposed=factor), upper=True)
    lower = solved("cholesky", tile(8, 8, transposed=not a), tile(8, 8, transposed=not factor))
    assert upper == lower


def test_a_factor_in_place_and_its_adjoint_have_one_operand() -> None:
    a = tile(8, 8)
    found = solved("cholesky", a, a, in_place=True)
    assert set(found) == {Role.FORWARD, Role.ADJOINT}
    for problem in found.values():
        assert problem.in_place
        assert len(set(problem.operands)) == 1


@pytest.mark.parametrize("function", SOLVES)
@pytest.mark.parametrize("code", ["rrr", "crr", "rcr", "rrc", "ccc"])
def test_every_layout_of_a_solve(function: Function, code: str) -> None:
    shapes = ((8, 8), (8, 5), (8, 5))
    tiles = [tile(*shape, transposed=letter == "c") for shape, letter in zip(shapes, code)]
    forward = solved(function, *tiles)[Role.FORWARD]
    assert arrangements(forward) == code
    assert [operand.leading_dimension for operand in forward.operands] == [
        8, *(8 if letter == "c" else 5 for letter in code[1:])
    ]  # fmt: skip
    assert (forward.function, forward.n, forward.columns, forward.threads, forward.arch) == (function, 8, 5, 64, 90)


@pytest.mark.parametrize("function", SOLVES)
def test_a_vector_is_one_column(function: Function) -> None:
    vector = tile(8, 1, transposed=True)
    forward = solved(function, tile(8, 8), vector, vector)[Role.FORWARD]
    assert (forward.columns, arrangements(forward)) == (1, "rcc")


def test_only_a_cholesky_solve_knows_upper_factors() -> None:
    rhs = tile(8, 5)
    upper = solved("cholesky_solve", tile(8, 8), rhs, rhs, upper=True)
    assert arrangements(upper[Role.FORWARD]) == "crr"
    assert upper == solved("cholesky_solve", tile(8, 8, transposed=True), rhs, rhs)


@pytest.mark.parametrize("function", SOLVES)
def test_the_adjoint_of_a_solve(function: Function) -> None:
    found = solved(function, tile(8, 8), tile(8, 5, transposed=True), tile(8, 5))
    adjoint = found[Role.ADJOINT]
    triangle, y, x = found[Role.FORWARD].operands
    # a gradient lies as its tile does
    expected = {"l": triangle, "x": x, "gx": x, "gy": y, "gl": triangle}
    assert adjoint.function == ADJOINTS[function]
    assert dict(zip(OPERANDS[adjoint.function], adjoint.operands)) == expected
    assert (adjoint.n, adjoint.columns, adjoint.in_place) == (8, 5, False)


@pytest.mark.parametrize("function", SOLVES)
def test_a_solve_in_place_has_one_right_hand_side(function: Function) -> None:
    rhs = tile(8, 5)
    found = solved(function, tile(8, 8), rhs, rhs, in_place=True)
    forward, adjoint = found[Role.FORWARD], found[Role.ADJOINT]
    assert (forward.in_place, forward.operands[1]) == (True, forward.operands[2])
    assert adjoint.in_place
    assert set(adjoint.operands[1:4]) == {forward.operands[1]}


def test_a_view_has_its_own_leading_dimension_and_no_alignment() -> None:
    forward = solved("cholesky", tile(8, 8, pad=3, aligned=False), tile(8, 8))[Role.FORWARD]
    assert forward.operands == (Operand("float32", "row_major", 11, 4), Operand("float32", "row_major", 8, 16))


@pytest.mark.parametrize(("columns", "alignment"), [(1, 4), (2, 8), (3, 4), (4, 16), (6, 8)])
def test_the_leading_dimension_limits_the_alignment(columns: int, alignment: int) -> None:
    rhs = tile(8, columns)
    assert solved("upper_solve", tile(8, 8), rhs, rhs)[Role.FORWARD].operands[1].alignment == alignment


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (16, 2), (2, 16), (1, 4)])
@pytest.mark.parametrize(("function", "position"), [("cholesky", 0), *(("lower_solve", place) for place in range(3))])
def test_other_strides_are_refused_with_the_tile_and_its_strides(
    function: Function, position: int, strides: tuple[int, int]
) -> None:
    tiles = [tile(8, 8)] * (2 if function == "cholesky" else 3)
    tiles[position] = replace(tiles[position], strides=strides)
    name = ("the triangle", "the right-hand side", "the result")[position]
    assert solvers(function, tiles, TARGET) == Rejected("no_leading_dimension", (name, (8, 8), strides))


@pytest.mark.parametrize("function", get_args(Function))
@pytest.mark.parametrize(
    ("changes", "rejected"),
    [
        ({}, None),
        ({"arch": 70}, Rejected("solver_arch", (70, 75))),
        *(({"threads": threads}, Rejected("solver_threads", (threads,))) for threads in (48, 16, 2048)),
        ({"n": 257}, Rejected("solver_rows", (257,))),
    ],
)
def test_a_rejection_has_the_value_of_the_field(
    function: Function, changes: dict[str, int], rejected: Rejected | None
) -> None:
    assert reason_unsupported(replace(problem(function), **changes)) == rejected


@given(usual_problems)
def test_lanes_are_a_power_of_two_within_a_warp_and_none_is_without_a_row(problem: SolverProblem) -> None:
    lanes = choose(problem).lanes
    assert lanes in (1, 2, 4, 8, 16, 32)
    assert lanes == 1 or lanes // 2 < problem.n
    assert lanes == 1 or problem.function != "cholesky", "a factor has one lane per column"


@pytest.mark.parametrize(("columns", "lanes"), [(1, 32), (2, 16), (4, 8), (8, 4), (64, 1)])
def test_a_warp_has_a_lane_for_each_part_of_few_columns(columns: int, lanes: int) -> None:
    assert choose(problem("lower_solve", n=32, columns=columns)).lanes == lanes


@given(usual_problems)
def test_a_register_limit_is_a_number_that_the_linker_takes(problem: SolverProblem) -> None:
    assert 32 <= register_limit(problem) <= MULTIPROCESSORS[problem.arch].thread_registers


@pytest.mark.parametrize(
    ("function", "changes", "limit"),
    [
        ("cholesky", {"n": 32}, 96),
        ("cholesky", {"n": 32, "threads": 128}, 96),
        ("cholesky", {"n": 32, "threads": 128, "dtype": "float64"}, 128),
        ("cholesky", {"n": 31, "threads": 128}, 56),
        ("cholesky", {"n": 96}, 255),
        ("cholesky", {"n": 64, "threads": 128}, 80),
        ("cholesky_solve", {"n": 64, "threads": 128}, 56),
        ("lower_solve", {"n": 64, "columns": 64, "threads": 128}, 128),
        ("cholesky_adjoint", {"n": 32, "threads": 256}, 72),
        ("lower_solve_adjoint", {"n": 64, "threads": 256}, 72),
        ("cholesky", {"n": 16, "dtype": "float64"}, 72),
        ("cholesky_solve", {"n": 32, "columns": 1, "threads": 128}, 56),
    ],
)
def test_a_register_limit_follows_from_the_tiles_in_shared_memory(
    function: Function, changes: dict[str, Any], limit: int
) -> None:
    assert register_limit(problem(function, **changes)) == limit


@pytest.mark.parametrize(
    ("function", "n", "columns", "dtype", "registers"),
    [
        ("lower_solve", 16, 16, "float64", 128),  # a lane has a column of 32 words
        ("lower_solve", 16, 1, "float64", 64),  # lanes share the column
        ("lower_solve", 32, 1, "float64", 128),
        ("cholesky_solve", 16, 16, "float32", 64),
        ("cholesky", 15, 1, "float64", 64),
        ("cholesky", 16, 1, "float64", 128),
        ("cholesky_adjoint", 16, 1, "float64", 64),
    ],
)
def test_registers_of_rows(function: Function, n: int, columns: int, dtype: DType, registers: int) -> None:
    assert registers_of_rows(problem(function, n, columns, dtype, 128)) == registers
