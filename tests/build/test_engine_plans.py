"""The engine before a build: the fingerprint of Warp's module hash, and plans with provider, key and cache state."""

from __future__ import annotations

import pytest

from tests.bench import ALIGNED, Bench, libmathdx, mma
from warp_tiles import settings
from warp_tiles.errors import ToolchainError
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.problem import GemmProblem, Role
from warp_tiles.plan.planning import ModulePlan, Session, resolve

# ---- the fingerprint of Warp's module hash


def test_the_salt_is_stable(bench: Bench) -> None:
    assert bench.engine.fingerprint() == bench.engine.fingerprint()
    assert bench.engine.fingerprint()


@pytest.mark.parametrize("provider", ["mma", "cublasdx", "libmathdx", "scalar"])
def test_the_salt_depends_on_the_provider(bench: Bench, provider: str) -> None:
    before = bench.engine.fingerprint()
    with settings.override(provider=provider):
        assert bench.engine.fingerprint() != before


@pytest.mark.parametrize("linker", ["own", "warp"])
def test_the_salt_depends_on_the_linker(bench: Bench, linker: str) -> None:
    before = bench.engine.fingerprint()
    with settings.override(linker=linker):
        assert bench.engine.fingerprint() != before


@pytest.mark.parametrize("name", ["source", "compiler"])
def test_the_salt_depends_on_the_digests(bench: Bench, name: str) -> None:
    before = bench.engine.fingerprint()
    setattr(bench.store, name, "another digest")
    assert bench.engine.fingerprint() != before


def test_the_salt_changes_when_the_toolchain_disappears(bench: Bench) -> None:
    before = bench.engine.fingerprint()
    bench.store.error = ToolchainError("gone")
    assert bench.engine.fingerprint() != before


def test_the_salt_of_the_scalar_path_ignores_the_compiler(bench: Bench) -> None:
    with settings.override(provider="scalar"):
        before = bench.engine.fingerprint()
        bench.store.compiler = "another digest"
        assert bench.engine.fingerprint() == before


# ---- plans


def plan_of(*variants: GemmProblem) -> ModulePlan:
    session = Session("module", 90, 32)
    for variant in variants:
        session.add("tile_matmul", "k", {Role.FORWARD: variant})
    return resolve(session, (), ["k"], [])


def test_a_plan_is_annotated_with_provider_key_and_cache_state(bench: Bench) -> None:
    before = bench.engine.annotate(plan_of(ALIGNED))
    forward = before.needed[0]
    assert (forward.provider, forward.cached, len(forward.key)) == ("mma", False, 64)
    assert (forward.symbol, forward.tile_config) == (ALIGNED.symbol, choose(ALIGNED))
    skipped = next(item for item in before.variants if not item.needed)
    assert (skipped.provider, skipped.key, skipped.symbol, skipped.tile_config) == ("", "", "", None)
    built = bench.build(ALIGNED)
    after = bench.engine.annotate(plan_of(ALIGNED)).needed[0]
    assert after.cached
    assert after.key == built.key == forward.key


def test_planning_builds_nothing(bench: Bench) -> None:
    bench.engine.annotate(plan_of(ALIGNED))
    assert bench.pool.requests == []


@pytest.mark.parametrize("available", [True, False])
def test_a_plan_without_a_toolchain_has_another_provider(bench: Bench, available: bool) -> None:
    if available:
        bench.engine.use_libmathdx(libmathdx)
    bench.store.error = ToolchainError("NVRTC was not found")
    (item,) = bench.engine.annotate(plan_of(ALIGNED)).needed
    assert item.provider == ("libmathdx" if available else "scalar")
    assert "NVRTC was not found" in item.reason
    assert item.key == ""


def test_a_plan_for_a_forced_cublasdx_without_a_toolchain_raises(bench: Bench) -> None:
    bench.store.error = ToolchainError("NVRTC was not found")
    with settings.override(provider="cublasdx"), pytest.raises(ToolchainError):
        bench.engine.annotate(plan_of(ALIGNED))


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
