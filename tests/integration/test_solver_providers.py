"""The provider of each solver call: own functions, Warp's libmathdx, or Warp's scalar path, with the reason."""

import warnings
from pathlib import Path
from typing import Any

import pytest

import warp_tiles
from tests.integration.plans import plan
from tests.integration.solvers import CALLS, FUNCTIONS, solver
from warp_tiles._warp import installed
from warp_tiles.gemm.problem import Role
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.settings import current

pytestmark = pytest.mark.usefixtures("enabled")

ALL_BUT_LOCKED = ("auto", "max", "fast", "scalar")


def solver_rows(found: ModulePlan) -> list[tuple[str, str]]:
    """Role and provider of each row of a solver call that has no problem; every row is needed."""
    rows = [planned for planned in found.functions if planned.role in (Role.FORWARD, Role.ADJOINT)]
    assert all(planned.needed and planned.problem is None and not planned.key for planned in rows)
    return [(planned.role.value, planned.provider) for planned in rows]


def codes(found: ModulePlan) -> set[str]:
    return {planned.code for planned in found.functions}


# ---- nothing is built to plan


@pytest.mark.parametrize("policy", [*ALL_BUT_LOCKED, "locked", "off"])
def test_planning_builds_nothing(policy: str, libmathdx_solvers: list[str], tmp_path: Path) -> None:
    engine = installed().engine
    with warp_tiles.override(policy=policy, cache_dir=tmp_path / "cache"):  # in which no build of another test ends
        for call in CALLS if policy == "auto" else ["tile_cholesky"]:
            plan(solver(call))
        assert list(engine.build_context(current()).cache.entries()) == []
    assert libmathdx_solvers == []
    assert not any(kind == "pool" for kind, *_ in engine.resources._made), "no compiler process was started"


# ---- Warp's scalar path


@pytest.mark.parametrize("call", CALLS)
def test_enable_mathdx_solver_off(call: str, libmathdx_solvers: list[str]) -> None:
    found = plan(solver(call), enable_mathdx_solver=False, warp_tiles_mathdx_opt_out="warp")
    assert solver_rows(found) == [(role, "scalar") for role in FUNCTIONS[call]]
    assert codes(found) == {"option_off"}
    assert libmathdx_solvers == []


@pytest.mark.parametrize(("threads", "provider"), [(64, "own"), (48, "scalar")])
@pytest.mark.parametrize("opt_out", ["auto", "own"])
@pytest.mark.parametrize("policy", ["auto", "locked"])
def test_a_module_that_opts_out_of_mathdx_never_gets_libmathdx(
    policy: str, opt_out: str, threads: int, provider: str, libmathdx_solvers: list[str]
) -> None:
    with warp_tiles.override(policy=policy, mathdx_opt_out=opt_out):
        found = plan(solver("tile_cholesky"), block_dim=threads, enable_mathdx_solver=False)
    assert {planned.provider for planned in found.functions} == {provider}
    assert libmathdx_solvers == []


def test_solvers_keep_libmathdx_in_a_module_whose_products_opt_out(libmathdx_solvers: list[str]) -> None:
    found = plan(solver("tile_cholesky"), block_dim=48, enable_mathdx_gemm=False)
    assert {served_by for _, served_by in solver_rows(found)} == {"libmathdx"}
    assert "potrf" in libmathdx_solvers


def test_a_warp_without_mathdx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles._warp.sites.mathdx_enabled", lambda: False)
    found = plan(solver("tile_cholesky"))
    assert solver_rows(found) == [("forward", "scalar"), ("adjoint", "scalar")]
    assert "without_mathdx" in codes(found)


@pytest.mark.parametrize("setting", ["policy", "provider"])
def test_the_setting_scalar(setting: str, libmathdx_solvers: list[str]) -> None:
    with warp_tiles.override(**{setting: "scalar"}):  # type: ignore[arg-type]
        found = plan(solver("tile_lower_solve"))
    assert solver_rows(found) == [("forward", "scalar"), ("adjoint", "scalar")]
    assert "setting_to_change" in codes(found)
    assert libmathdx_solvers == []


def test_a_cpu_target_has_no_functions(libmathdx_solvers: list[str]) -> None:
    assert plan(solver("tile_cholesky"), arch=None).functions == ()
    assert libmathdx_solvers == []


# ---- calls that this project's functions cannot serve

BROADCAST = solver("tile_cholesky_solve", "a, wp.tile_broadcast(wp.tile_load(A, shape=(16, 1)), shape=(16, 4))")
UNSERVED = {
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
        found = plan(text, **target)  # type: ignore[arg-type]
    assert {served_by for _, served_by in solver_rows(found)} == {provider}
    assert reason.code in codes(found)
    assert bool(libmathdx_solvers) == (provider == "libmathdx"), "Warp builds it while it generates the code"


@pytest.mark.parametrize("case", UNSERVED)
def test_locked_refuses_an_unserved_call(case: str, libmathdx_solvers: list[str]) -> None:
    text, target, reason = UNSERVED[case]
    with warp_tiles.override(policy="locked"), pytest.raises(warp_tiles.LockedError) as caught:
        plan(text, **target)  # type: ignore[arg-type]
    message = str(caught.value)  # Warp puts all arguments of an error into one text
    assert "the setting policy (override()) is 'locked'" in message
    assert "in 'solver' needs libmathdx, whose builds are not cached" in message
    assert str(reason) in message
    assert "enable_mathdx_solver=False" in message
    assert libmathdx_solvers == []


@pytest.mark.parametrize("case", UNSERVED)
def test_a_named_mma_refuses_an_unserved_call(case: str, libmathdx_solvers: list[str]) -> None:
    text, target, reason = UNSERVED[case]
    with warp_tiles.override(provider="own"), pytest.raises(warp_tiles.UnsupportedProblem) as caught:
        plan(text, **target)  # type: ignore[arg-type]
    assert str(reason) in str(caught.value)
    assert 'call override(provider="auto")' in str(caught.value)
    assert libmathdx_solvers == []


def test_a_plan_names_an_adjoint_that_does_not_fit(libmathdx_solvers: list[str]) -> None:
    text = solver("tile_cholesky", dtype="float64").replace("(16, 16)", "(96, 96)")
    found = plan(text)
    assert [planned.provider for planned in found.functions] == ["own", "own"]
    (problem,) = found.launch_failures
    assert problem.startswith("the backward pass of kernel solver fails: ")
    assert libmathdx_solvers == []


# ---- libmathdx


@pytest.mark.parametrize("provider", ["cublasdx", "libmathdx"])
def test_a_named_provider_of_products_leaves_solvers_to_libmathdx(provider: str, libmathdx_solvers: list[str]) -> None:
    with warp_tiles.override(provider=provider):
        found = plan(solver("tile_lower_solve"))
        with warp_tiles.override(policy="locked"), pytest.raises(warp_tiles.LockedError, match="needs libmathdx"):
            plan(solver("tile_lower_solve"))
    assert solver_rows(found) == [("forward", "libmathdx"), ("adjoint", "libmathdx")]
    assert "setting_to_change" in codes(found)
    assert libmathdx_solvers == ["trsm", "trsm"]


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


# ---- without a toolchain


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
