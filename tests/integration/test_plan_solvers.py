"""The plan of every solver builtin of Warp. Nothing is built."""

import pytest

from tests.integration.helpers import solver_of
from tests.integration.plans import plan
from tests.integration.solvers import CALLS, FUNCTIONS, IN_PLACE, solver
from warp_tiles.plan.planning import ModulePlan, PlannedFunction
from warp_tiles.solver.problem import SolverConfig

pytestmark = pytest.mark.usefixtures("enabled")


def by_role(found: ModulePlan) -> dict[str, PlannedFunction]:
    """The functions by role; each role appears once."""
    assert len({planned.role for planned in found.functions}) == len(found.functions)
    return {planned.role.value: planned for planned in found.functions}


# ---- every builtin


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("call", CALLS)
def test_every_builtin_is_planned(call: str, dtype: str) -> None:
    found = plan(solver(call, dtype=dtype))
    assert {role: solver_of(planned).function for role, planned in by_role(found).items()} == FUNCTIONS[call]
    for planned in found.functions:
        problem = solver_of(planned)
        assert (planned.call, planned.function, planned.kernels) == (call, "solver", ("solver",))
        assert (problem.n, problem.dtype, problem.threads, problem.arch) == (16, dtype, 64, 90)
        assert problem.in_place == (call in IN_PLACE)
        assert problem.columns == (16 if "cholesky" in problem.function and "solve" not in problem.function else 4)
        assert (planned.needed, planned.provider, len(planned.key)) == (True, "own", 64)
        assert isinstance(planned.tile_config, SolverConfig)
        assert "built by" not in planned.reason


@pytest.mark.parametrize(("arch", "threads"), [(75, 32), (80, 128), (120, 1024)])
def test_the_target_is_part_of_the_problem(arch: int, threads: int) -> None:
    found = plan(solver("tile_lower_solve"), arch=arch, block_dim=threads)
    assert {(solver_of(v).arch, solver_of(v).threads) for v in found.needed} == {(arch, threads)}


@pytest.mark.parametrize("call", ["tile_cholesky_solve", "tile_lower_solve", "tile_upper_solve"])
def test_a_vector_is_a_matrix_of_one_column(call: str) -> None:
    for planned in plan(solver(call, shape="16")).functions:
        assert solver_of(planned).columns == 1


@pytest.mark.parametrize("call", ["tile_cholesky", "tile_cholesky_inplace"])
def test_an_upper_factor_is_the_transpose_of_a_lower_one(call: str) -> None:
    lower, upper = plan(solver(call)), plan(solver(call, arguments='a, fill_mode="upper"'))
    for role, planned in by_role(upper).items():
        problem = solver_of(planned)
        assert [operand.transposed() for operand in problem.operands] == [*solver_of(by_role(lower)[role]).operands]


def test_a_transposed_triangle_is_read_in_place() -> None:
    (planned,) = plan(solver("tile_upper_solve", arguments="wp.tile_transpose(a), y")).functions
    assert [operand.arrangement for operand in solver_of(planned).operands] == ["col_major", "row_major", "row_major"]


def test_a_view_keeps_its_leading_dimension() -> None:
    view = "wp.tile_view(a, offset=(0, 8), shape=(8, 8))"
    (planned,) = plan(solver("tile_cholesky_solve", arguments=f"{view}, y", shape="(8, 4)")).functions
    factor = solver_of(planned).operands[0]
    assert (solver_of(planned).n, factor.leading_dimension, factor.alignment) == (8, 16, 4)


def test_products_and_solvers_of_one_kernel() -> None:
    text = solver("tile_cholesky").replace("wp.tile_cholesky(a)", "wp.tile_cholesky(wp.tile_matmul(a, a))")
    found = plan(text)
    assert [(planned.call, planned.role.value) for planned in found.functions] == [
        *(("tile_matmul", role) for role in ("forward", "adjoint_a", "adjoint_b")),
        *(("tile_cholesky", role) for role in ("forward", "adjoint")),
    ]
    assert {planned.provider for planned in found.needed} == {"own"}
