"""The solver functions of a generated module: declarations, the types that stand for them, and what Warp keeps."""

from __future__ import annotations

import pytest

from tests.codegen import traces as t
from tests.codegen.modules import BIG, declared, functions, generated, macros, names_of, session, written
from warp_tiles.codegen.prelude import SCALAR_FUNCTION, solver_struct
from warp_tiles.codegen.session import Session
from warp_tiles.gemm.problem import Operand, Role
from warp_tiles.plan.planner import GeneratedModule
from warp_tiles.solver.variant import SolverVariant

_MATRIX = Operand("float64", "row_major", 8, 16)
FACTOR = SolverVariant("cholesky", 8, 8, (_MATRIX, _MATRIX), False, 128, 90)
FACTOR_ADJOINT = SolverVariant("cholesky_adjoint", 8, 8, (_MATRIX,) * 3, False, 128, 90)
ROLES = (Role.FORWARD, Role.ADJOINT)


def solver_module(called: bool) -> GeneratedModule:
    """A module with a product and a Cholesky factor."""
    sites = session(("k", BIG))
    sites.add("tile_cholesky", "k", {Role.FORWARD: FACTOR, Role.ADJOINT: FACTOR_ADJOINT}, roles=ROLES)
    return generated(sites, called={0, 1} if called else ())


def solver_names(text: str) -> list[str]:
    return [macros(text)[f"wt_site1_{role.value}"] for role in ROLES]


def test_a_solver_is_declared_and_named_by_its_type() -> None:
    text = written(solver_module(True), functions(*BIG.values(), FACTOR, FACTOR_ADJOINT))
    assert solver_names(text) == [f"wt::Solver<{v.symbol}_call>{{}}" for v in (FACTOR, FACTOR_ADJOINT)]
    assert set(declared(text)) == {v.symbol for v in (*BIG.values(), FACTOR, FACTOR_ADJOINT)}
    assert solver_struct(FACTOR, FACTOR.symbol) in text
    assert names_of(text, 0) == [variant.symbol for variant in BIG.values()]


@pytest.mark.parametrize("missing", [FACTOR, FACTOR_ADJOINT])
def test_a_missing_solver_function_affects_no_other(missing: SolverVariant) -> None:
    built = functions(*BIG.values(), *(variant for variant in (FACTOR, FACTOR_ADJOINT) if variant != missing))
    text = written(solver_module(True), built)
    assert solver_names(text).index(SCALAR_FUNCTION) == [FACTOR, FACTOR_ADJOINT].index(missing)
    assert solver_names(text).count(SCALAR_FUNCTION) == 1
    assert missing.symbol not in text
    assert SCALAR_FUNCTION not in names_of(text, 0)


def test_loads_of_functions_with_a_solver_are_asynchronous() -> None:
    load = t.load(t.tile("a"))
    trace = t.module(t.function(load, t.operation("tile_cholesky", t.tile("a"))))
    sites = Session("module", 90, 128)
    sites.add("tile_cholesky", "k", {Role.FORWARD: FACTOR}, roles=ROLES)
    text = written(generated(sites, trace=trace), functions(FACTOR))
    assert macros(text)[f"WT_AT_{load.hook}"] == "wt_module::Load<true>() << __VA_ARGS__"
    assert macros(written(generated(sites, trace=trace), {}))[f"WT_AT_{load.hook}"] == "__VA_ARGS__"
