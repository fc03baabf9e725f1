"""The engine before a build: plans with provider, key and cache state."""

from __future__ import annotations

import pytest

from tests.bench import ALIGNED, Bench, libmathdx, mma, plan_of
from warp_tiles.errors import ToolchainError
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.problem import Role
from warp_tiles.plan.planning import Session, resolve


def test_a_plan_is_annotated_with_provider_key_and_cache_state(bench: Bench) -> None:
    before = bench.engine.annotate(plan_of(ALIGNED))
    forward = before.needed[0]
    assert (forward.provider, forward.cached, len(forward.key)) == ("mma", False, 64)
    assert (forward.symbol, forward.tile_config) == (ALIGNED.symbol, choose(ALIGNED))
    assert bench.pool.requests == [], "planning builds nothing"
    skipped = next(item for item in before.variants if not item.needed)
    assert (skipped.provider, skipped.key, skipped.symbol, skipped.tile_config) == ("", "", "", None)
    built = bench.build(ALIGNED)
    after = bench.engine.annotate(plan_of(ALIGNED)).needed[0]
    assert after.cached
    assert after.key == built.key == forward.key


@pytest.mark.parametrize("available", [True, False])
def test_a_plan_without_a_toolchain_has_another_provider(bench: Bench, available: bool) -> None:
    if available:
        bench.engine.use_libmathdx(libmathdx)
    bench.store.error = ToolchainError("NVRTC was not found")
    (item,) = bench.engine.annotate(plan_of(ALIGNED)).needed
    assert item.provider == ("libmathdx" if available else "scalar")
    assert "NVRTC was not found" in item.reason
    assert item.key == ""


def test_a_scalar_site_is_planned_as_scalar(bench: Bench) -> None:
    session = Session("module", None, 1)
    session.add("tile_matmul", "k", {}, scalar_reason="the target is the CPU")
    annotated = bench.engine.annotate(resolve(session, (), ["k"], []))
    assert [item.provider for item in annotated.variants if item.needed] == ["scalar"]


def test_a_variant_with_several_roles_is_built_once(bench: Bench) -> None:
    session = Session("module", 90, 32)
    session.add("tile_matmul", "k", {Role.FORWARD: ALIGNED, Role.ADJOINT_A: ALIGNED, Role.ADJOINT_B: ALIGNED})
    plan = resolve(session, {0}, ["k"], [])
    assert len(plan.needed) == 3
    futures = bench.engine.start(item.variant for item in plan.needed if item.variant)
    assert {future.result(20).symbol for future in futures.values()} == {ALIGNED.symbol}
    assert bench.pool.requests == [mma(ALIGNED)]
