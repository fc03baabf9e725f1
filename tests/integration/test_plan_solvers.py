"""The plan of every solver builtin of Warp: its functions, and who provides them and why. Nothing is built."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import warp_tiles
from tests.integration.helpers import solver_of
from tests.integration.plans import plan
from tests.integration.solvers import CALLS, FUNCTIONS, IN_PLACE, OWN_FUNCTIONS, solver
from warp_tiles._warp import installed
from warp_tiles.gemm.problem import Role
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan.planning import ModulePlan, PlannedFunction
from warp_tiles.settings import current
from warp_tiles.solver.problem import SolverConfig

pytestmark = pytest.mark.usefixtures("enabled")


def by_role(found: ModulePlan) -> dict[str, PlannedFunction]:
    """The functions by role; each role appears once."""
    assert len({planned.role for planned in found.functions}) == len(found.functions)
    return {planned.role.value: planned for planned in found.functions}


@pytest.mark.parametrize("gradients", ["warp", "own"])
@pytest.mark.parametrize(("dtype", "threads", "arch"), [("float32", 64, 90), ("float64", 1024, 120)])
@pytest.mark.parametrize("call", CALLS)
def test_every_builtin_is_planned(call: str, dtype: str, threads: int, arch: int, gradients: str) -> None:
    with warp_tiles.override(solver_gradients=gradients):
        found = plan(solver(call, dtype=dtype), arch=arch, block_dim=threads)
    functions = OWN_FUNCTIONS if gradients == "own" else FUNCTIONS
    assert {role: solver_of(planned).function for role, planned in by_role(found).items()} == functions[call]
    for planned in found.functions:
        problem = solver_of(planned)
        assert (planned.call, planned.function, planned.kernels) == (call, "solver", ("solver",))
        assert (problem.n, problem.dtype, problem.threads, problem.arch) == (16, dtype, threads, arch)
        assert problem.in_place == (call in IN_PLACE)
        assert problem.columns == (16 if "cholesky" in problem.function and "solve" not in problem.function else 4)
        assert (planned.needed, planned.provider, len(planned.key)) == (True, "own", 64)
        assert isinstance(planned.tile_config, SolverConfig)
        assert "built by" not in planned.reason
        assert gradients == "warp" or planned.no_gradient is None


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


@pytest.mark.parametrize("policy", ["auto", "max", "fast", "scalar", "locked", "off"])
def test_planning_builds_nothing(policy: str, libmathdx_solvers: list[str], tmp_path: Path) -> None:
    engine = installed().engine
    with warp_tiles.override(policy=policy, cache_dir=tmp_path / "cache"):  # in which no build of another test ends
        for call in CALLS if policy == "auto" else ["tile_cholesky"]:
            plan(solver(call))
        assert list(engine.build_context(current()).cache.entries()) == []
    assert libmathdx_solvers == []
    assert not any(kind == "pool" for kind, *_ in engine.resources._made), "no compiler process was started"


# ---- Warp's scalar path, and libmathdx


def providers(found: ModulePlan) -> dict[str, str]:
    """The provider of each role of a solver call without a problem. All are needed."""
    rows = [planned for planned in found.functions if planned.role in (Role.FORWARD, Role.ADJOINT)]
    assert all(planned.needed and planned.problem is None and not planned.key for planned in rows)
    return {planned.role.value: planned.provider for planned in rows}


def codes(found: ModulePlan) -> set[str]:
    return {planned.code for planned in found.functions}


OPTS_OUT = {"enable_mathdx_solver": False}
PRODUCTS_OPT_OUT = {"enable_mathdx_gemm": False}
OTHERS: list[tuple[str, dict[str, Any], dict[str, Any], str, str, list[str]]] = [
    *((call, {"mathdx_opt_out": "warp"}, OPTS_OUT, "scalar", "option_off", []) for call in CALLS),
    *(
        ("tile_cholesky", {"policy": policy, "mathdx_opt_out": opt_out}, OPTS_OUT | {"block_dim": 48}, "scalar",
         "solver_threads", [])
        for policy in ("auto", "locked")
        for opt_out in ("auto", "own")
    ),
    ("tile_lower_solve", {}, PRODUCTS_OPT_OUT | {"block_dim": 48}, "libmathdx", "solver_threads", ["trsm", "trsm"]),
    ("tile_lower_solve", {"policy": "scalar"}, {}, "scalar", "setting_to_change", []),
    ("tile_lower_solve", {"provider": "scalar"}, {}, "scalar", "setting_to_change", []),
    ("tile_lower_solve", {"provider": "cublasdx"}, {}, "libmathdx", "setting_to_change", ["trsm", "trsm"]),
    ("tile_lower_solve", {"provider": "libmathdx"}, {}, "libmathdx", "setting_to_change", ["trsm", "trsm"]),
]  # fmt: skip


@pytest.mark.parametrize(("call", "settings", "options", "provider", "code", "built"), OTHERS, ids=str)
def test_settings_and_options_decide_who_computes_a_call(
    call: str, settings: dict[str, Any], options: dict[str, Any], provider: str, code: str, built: list[str],
    libmathdx_solvers: list[str],
) -> None:  # fmt: skip
    with warp_tiles.override(**settings):
        found = plan(solver(call), **options)
    assert providers(found) == dict.fromkeys(FUNCTIONS[call], provider)
    assert code in codes(found)
    assert ("needed; built by libmathdx, because " in found.functions[0].reason) == (provider == "libmathdx")
    assert libmathdx_solvers == built


@pytest.mark.parametrize("settings", [{}, {"policy": "locked"}, {"mathdx_opt_out": "own"}], ids=str)
def test_own_functions_serve_a_module_that_opts_out_of_mathdx(
    settings: Mapping[str, Any], libmathdx_solvers: list[str]
) -> None:
    with warp_tiles.override(**settings):
        assert {planned.provider for planned in plan(solver("tile_cholesky"), **OPTS_OUT).functions} == {"own"}
    assert libmathdx_solvers == []


def test_a_warp_without_mathdx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles._warp.sites.mathdx_enabled", lambda: False)
    found = plan(solver("tile_cholesky"))
    assert providers(found) == {"forward": "scalar", "adjoint": "scalar"}
    assert "without_mathdx" in codes(found)


def test_a_cpu_target_has_no_functions(libmathdx_solvers: list[str]) -> None:
    assert plan(solver("tile_cholesky"), arch=None).functions == ()
    assert libmathdx_solvers == []


# ---- calls that this project's functions cannot serve

BROADCAST = solver("tile_cholesky_solve", "a, wp.tile_broadcast(wp.tile_load(A, shape=(16, 1)), shape=(16, 4))")
UNSERVED: dict[str, tuple[str, dict[str, Any], Rejected]] = {
    "threads": (solver("tile_cholesky"), {"block_dim": 48}, Rejected("solver_threads", (48,))),
    "strides": (BROADCAST, {}, Rejected("no_leading_dimension", ("the right-hand side", (16, 4), (1, 0)))),
}


@pytest.mark.parametrize(("policy", "provider"), [("auto", "libmathdx"), ("fast", "scalar")])
@pytest.mark.parametrize("case", UNSERVED)
def test_the_policy_decides_who_gets_an_unserved_call(
    case: str, policy: str, provider: str, libmathdx_solvers: list[str]
) -> None:
    text, target, reason = UNSERVED[case]
    with warp_tiles.override(policy=policy):
        found = plan(text, **target)
    assert set(providers(found).values()) == {provider}
    assert reason.code in codes(found)
    assert bool(libmathdx_solvers) == (provider == "libmathdx"), "Warp builds it while it generates the code"


LOCKED = ("the setting policy (override()) is 'locked'", "in 'solver' needs libmathdx, whose builds are not cached",
          "enable_mathdx_solver=False")  # fmt: skip
NAMED = ('call override(provider="auto")',)


@pytest.mark.parametrize(
    ("settings", "error", "parts"),
    [
        ({"policy": "locked"}, warp_tiles.LockedError, LOCKED),
        ({"provider": "own"}, warp_tiles.UnsupportedProblem, NAMED),
    ],
)
@pytest.mark.parametrize("case", UNSERVED)
def test_locked_and_a_named_own_refuse_an_unserved_call(
    case: str, settings: dict[str, str], error: type[Exception], parts: tuple[str, ...], libmathdx_solvers: list[str]
) -> None:
    text, target, reason = UNSERVED[case]
    with warp_tiles.override(**settings), pytest.raises(error) as caught:
        plan(text, **target)
    for part in (str(reason), *parts):
        assert part in str(caught.value)  # Warp puts all arguments of an error into one text
    assert libmathdx_solvers == []


@pytest.mark.parametrize("provider", ["cublasdx", "libmathdx"])
def test_locked_refuses_a_solver_that_a_named_provider_leaves_to_libmathdx(provider: str) -> None:
    refused = pytest.raises(warp_tiles.LockedError, match="needs libmathdx")
    with warp_tiles.override(provider=provider, policy="locked"), refused:
        plan(solver("tile_lower_solve"))


@pytest.mark.parametrize(("provider", "backward"), [("cublasdx", True), ("libmathdx", True), ("cublasdx", False)])
def test_the_product_in_warps_adjoint_of_a_cholesky(
    provider: str, backward: bool, libmathdx_solvers: list[str]
) -> None:
    with warp_tiles.override(provider=provider):
        found = plan(solver("tile_cholesky"), enable_backward=backward)
    products = [planned for planned in found.functions if planned.role is Role.ADJOINT_A]
    assert [(planned.call, planned.provider) for planned in products] == [("tile_cholesky", provider)] * backward
    assert found.needed == tuple(products)
    assert libmathdx_solvers == (["potrf", "trsm"] if backward else ["potrf"])


OPTED_OUT = {"enable_mathdx_solver": False, "warp_tiles_mathdx_opt_out": "own"}  # not libmathdx, but own functions


@pytest.mark.parametrize("provider", ["auto", "own"])
@pytest.mark.parametrize("options", [{}, OPTED_OUT], ids=["all", "opted out"])
def test_without_a_toolchain_functions_are_planned_in_the_source(
    options: dict[str, Any], provider: str, no_toolchain: None, libmathdx_solvers: list[str]
) -> None:
    with warnings.catch_warnings(), warp_tiles.override(provider=provider):
        warnings.simplefilter("error")
        found = plan(solver("tile_lower_solve"), **options)
    assert [(planned.role.value, planned.provider) for planned in found.needed] == [
        ("forward", "own"), ("adjoint", "own")
    ]  # fmt: skip
    for planned in found.needed:
        assert planned.in_source
        assert "in the module's source (NVRTC was not found" in planned.reason
    assert found.linker_reason.startswith("there is no toolchain except Warp's")
    assert (found.register_limit, found.register_limit_reason) == (None, "")
    assert libmathdx_solvers == []


def test_an_indexed_load_raises_the_register_limit() -> None:
    kernel = """
@wp.kernel(enable_backward=False)
def factor(M: wp.array(dtype=float), places: wp.array(dtype=int), L: wp.array2d(dtype=float)):
    indices = wp.tile_load(places, shape=(729,), storage="shared")
    matrix = wp.tile_load_indexed(M, indices, shape=(729,), storage="shared")
    wp.tile_store(L, wp.tile_cholesky(wp.tile_reshape(matrix, (27, 27))))
"""
    found = plan(kernel, block_dim=32)
    assert found.indexed_elements == 23
    assert found.register_limit == 128
    assert found.register_limit_reason == "an indexed load or store has 23 elements for each thread"
