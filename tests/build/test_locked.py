"""The policy locked: the error names all missing functions, nothing is built, cached functions are used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench import ALIGNED, Bench, annotated, own, plan_of, variant_of
from warp_tiles import settings
from warp_tiles.errors import LockedError, ToolchainError
from warp_tiles.solver.variant import SolverVariant, Variant

OTHERS = [variant_of(12), variant_of(16)]
ODD = replace(ALIGNED, threads=48)
FEW = replace(ALIGNED, threads=16)
FACTOR = SolverVariant("cholesky", 8, 8, (ALIGNED.c, ALIGNED.c), False, 32, 90)


def missing(bench: Bench, *variants: Variant) -> LockedError:
    with settings.override(policy="locked"), pytest.raises(LockedError) as caught:
        bench.engine.start_cached(plan_of(*variants))
    return caught.value


def test_the_error_names_all_missing_functions_and_their_keys(bench: Bench) -> None:
    bench.build(OTHERS[0])
    requests = list(bench.pool.requests)
    error = missing(bench, ALIGNED, *OTHERS)
    plan = annotated(bench.engine, plan_of(ALIGNED, *OTHERS))
    for variant in (ALIGNED, OTHERS[1]):
        assert variant.describe() in error.message
        assert next(v.key for v in plan.needed if v.variant == variant) in error.message
    assert OTHERS[0].describe() not in error.message
    assert "2 device functions" in error.message
    assert "the setting policy (override()) is 'locked'" in error.message
    assert bench.pool.requests == requests


def test_the_weaker_recipe_of_the_same_provider_is_accepted(bench: Bench) -> None:
    half = variant_of(16, "float16", threads=48)
    with settings.override(provider="cublasdx"):
        first = bench.engine.chain(settings.current()).providers[0].recipes(half)[0]
        bench.refuse(f"{first.symbol}_cublasdx")
        with pytest.warns(RuntimeWarning, match="without alignment"):
            built = bench.build(half)
        with settings.override(policy="locked"):
            bench.engine.start_cached(plan_of(half))
            assert bench.build(half).symbol == built.symbol != first.symbol


def test_a_function_of_another_provider_is_not_accepted(bench: Bench) -> None:
    with settings.override(provider="cublasdx"):
        bench.build(ALIGNED)
    assert "the own function" in missing(bench, ALIGNED).message
    with settings.override(policy="locked"), pytest.raises(LockedError):
        bench.build(ALIGNED)


def test_builds_of_libmathdx_are_not_cached(bench: Bench) -> None:
    bench.engine.use_libmathdx(lambda variant: pytest.fail("it would build"))
    with settings.override(provider="libmathdx"):
        assert "its builds are not cached" in missing(bench, ALIGNED).message
        with settings.override(policy="locked"), pytest.raises(LockedError, match="its builds are not cached"):
            bench.build(ALIGNED)


@pytest.mark.parametrize(
    ("variant", "provider"), [(ALIGNED, "own"), (FACTOR, "own"), (ODD, "cublasdx")], ids=["product", "solver", "odd"]
)
def test_a_cached_function_of_the_planned_provider_is_used(bench: Bench, variant: Variant, provider: str) -> None:
    assert f"the {provider} function {variant.describe()} is not" in missing(bench, variant).message
    built = bench.build(variant)
    with settings.override(policy="locked"):
        bench.engine.start_cached(plan_of(variant, FEW))
        found = bench.build(variant)
        assert bench.build(FEW).provider == "scalar", "it needs nothing"
    assert (found.payload, found.key, found.hit) == (built.payload, built.key, True)


def test_without_a_compiler_there_is_no_key(bench: Bench) -> None:
    bench.build(ALIGNED)
    bench.store.error = ToolchainError("NVRTC was not found", remedy="install it")
    error = missing(bench, ALIGNED)
    assert error.message.startswith("the setting policy (override()) is 'locked'")
    assert error.message.endswith("without the toolchain: NVRTC was not found")
    assert error.remedy == "install it; take the versions of the machine that filled the cache"


def test_a_damaged_entry_is_not_built_again(bench: Bench) -> None:
    bench.build(ALIGNED)
    for payload in bench.cache.root.glob("v1/objects/*/*.ltoir"):
        payload.write_bytes(b"damaged")
    bench.pool.requests.clear()
    with settings.override(policy="locked"), pytest.raises(LockedError):
        bench.build(ALIGNED)
    assert bench.pool.requests == []
    assert bench.build(ALIGNED).payload == f"LTO-IR of {own(ALIGNED)}".encode()
