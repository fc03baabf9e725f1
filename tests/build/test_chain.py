"""The chain of providers: their order, the variants that each refuses, and the messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import ALIGNED, TOOLCHAIN, Bench, cublasdx, libmathdx, mma, variant_of
from warp_tiles import settings
from warp_tiles.build.chain import Chain
from warp_tiles.errors import BuildError, ToolchainError, UnsupportedVariant
from warp_tiles.gemm.problem import PRODUCT_ROLES, GemmProblem, Operand, Role
from warp_tiles.plan.planning import ModulePlan, PlannedVariant, Session, resolve
from warp_tiles.providers.mma import MmaProvider, SolverProvider
from warp_tiles.settings import PROVIDER_ORDER, Settings
from warp_tiles.solver.variant import SolverVariant, Variant

ODD = replace(ALIGNED, threads=48)
FEW = replace(ALIGNED, threads=16)
OLD = replace(ALIGNED, arch=70)
B = replace(ALIGNED.c, dtype="bfloat16")
NARROW = replace(ALIGNED, c=B)
FACTOR = SolverVariant("cholesky", 8, 8, (Operand("float32", "row_major", 8, 16),) * 2, False, 32, 90)
AUTO = Settings()


def plan_of(variant: GemmProblem, role: Role = Role.FORWARD) -> ModulePlan:
    """A module that needs one variant in a role."""
    session = Session("module", variant.arch, variant.threads)
    site = session.add("tile_matmul", "k", {Role.FORWARD: ALIGNED, role: variant})
    return resolve(session, () if role is Role.FORWARD else {site.index}, ["k"], [])


def planned(bench: Bench, variant: GemmProblem, role: Role = Role.FORWARD) -> PlannedVariant:
    """The variant in its plan."""
    found = bench.engine.annotate(plan_of(variant, role))
    return next(item for item in found.needed if item.variant == variant and item.role is role)


# ---- the order


def names_of(chain: Chain, variant: Variant) -> list[str]:
    """The providers that are tried for a variant."""
    return [provider.name for provider in chain.order(variant)]


def test_providers_are_tried_in_order(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    chain = bench.engine.chain(AUTO)
    assert names_of(chain, ALIGNED) == ["mma", "cublasdx", "libmathdx", "scalar"]
    assert names_of(chain, FACTOR) == ["mma", "scalar"]
    for variant, own in ((ALIGNED, MmaProvider), (FACTOR, SolverProvider)):
        assert isinstance(chain.order(variant)[0], own)


def test_without_libmathdx_in_warp_it_is_not_tried(bench: Bench) -> None:
    assert names_of(bench.engine.chain(AUTO), ALIGNED) == ["mma", "cublasdx", "scalar"]


@pytest.mark.parametrize("name", PROVIDER_ORDER)
def test_a_named_provider_is_the_only_one(bench: Bench, name: str) -> None:
    chain = bench.engine.chain(Settings(provider=name))
    assert names_of(chain, ALIGNED) == [name]
    assert names_of(chain, FACTOR) == ([name] if name in ("mma", "scalar") else [])
    assert chain.forced


# ---- unsupported variants are normal


def test_the_first_provider_is_taken_and_the_plan_gives_the_reason(bench: Bench) -> None:
    found = planned(bench, ALIGNED)
    assert found.provider == "mma"
    assert found.reason.endswith("; built by mma (default)")


def test_an_odd_block_goes_to_cublasdx_without_a_warning(bench: Bench) -> None:
    found = planned(bench, ODD)
    assert (found.provider, found.symbol, found.tile_config) == ("cublasdx", ODD.symbol, None)
    assert "; built by cublasdx (mma cannot serve threads=48" in found.reason
    artifact, warned = bench.build_with_warnings(ODD)
    assert (artifact.provider, artifact.key, warned) == ("cublasdx", found.key, [])
    assert bench.pool.requests == [cublasdx(ODD)]


@pytest.mark.parametrize(("variant", "field"), [(FEW, "threads=16"), (OLD, "arch=70")])
def test_a_variant_for_the_scalar_path_causes_no_warning(bench: Bench, variant: GemmProblem, field: str) -> None:
    bench.engine.use_libmathdx(libmathdx)
    found = planned(bench, variant)
    assert (found.provider, found.symbol, found.key) == ("scalar", "", "")
    for name in ("mma", "cublasdx", "libmathdx"):
        assert f"{name} cannot serve {field}" in found.reason
    artifact, warned = bench.build_with_warnings(variant)
    assert (artifact.provider, artifact.payload, warned) == ("scalar", b"", [])
    assert bench.pool.requests == []


def test_the_plan_has_the_function_with_the_weaker_promises_of_cublasdx(bench: Bench) -> None:
    half = variant_of(16, "float16", threads=48)
    found = planned(bench, half)
    assert half.alignments == (16, 16, 16)
    assert found.symbol == replace(half, c=replace(half.c, alignment=8)).symbol
    assert bench.build(half).symbol == found.symbol
    assert bench.build(half).key == found.key


# ---- a named provider that cannot serve the variant


@pytest.mark.parametrize(
    ("name", "variant", "field"),
    [
        ("mma", ODD, "threads=48"),
        ("mma", FEW, "threads=16"),
        ("mma", OLD, "arch=70"),
        ("cublasdx", FEW, "threads=16"),
        ("cublasdx", OLD, "arch=70"),
        ("libmathdx", FEW, "threads=16"),
        ("libmathdx", OLD, "arch=70"),
    ],
)
def test_the_error_of_a_named_provider_names_the_unsupported_field(
    bench: Bench, name: str, variant: GemmProblem, field: str
) -> None:
    bench.engine.use_libmathdx(libmathdx)
    calls: dict[str, Any] = {"planned": lambda: planned(bench, variant), "built": lambda: bench.build(variant)}
    for call in calls.values():
        with settings.override(provider=name), pytest.raises(UnsupportedVariant) as caught:
            call()
        assert f"{name} cannot serve {field}" in caught.value.message
        assert variant.describe() in caught.value.message
        assert 'call override(provider="auto")' in caught.value.remedy
    assert bench.pool.requests == []


def test_the_plan_says_which_setting_names_the_provider(bench: Bench) -> None:
    with settings.override(provider="cublasdx"):
        assert planned(bench, ALIGNED).reason.endswith(
            "; built by cublasdx (the setting provider (override()) asks for it)"
        )


@pytest.mark.parametrize("name", ["mma", "cublasdx"])
def test_a_named_provider_without_a_compiler_is_an_error(bench: Bench, name: str) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.store.error = ToolchainError("NVRTC was not found", remedy="install it")
    for ask in (lambda: planned(bench, ALIGNED), lambda: bench.build(ALIGNED)):
        with settings.override(provider=name), pytest.raises(ToolchainError, match="NVRTC was not found"):
            ask()


# ---- missing parts of the toolchain


def test_mma_needs_no_headers(bench: Bench) -> None:
    bench.store.found = replace(TOOLCHAIN, missing_headers=("no cublasdx.hpp", "pip install nvidia-mathdx"))
    assert planned(bench, ALIGNED).provider == "mma"
    assert bench.build_with_warnings(ALIGNED)[1] == []


def test_without_headers_the_next_provider_is_used_with_a_warning(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.store.found = replace(TOOLCHAIN, missing_headers=("no cublasdx.hpp", "pip install nvidia-mathdx"))
    found = planned(bench, ODD)
    assert found.provider == "libmathdx"
    assert "mma cannot serve threads=48" in found.reason
    assert "no cublasdx.hpp" in found.reason
    artifact, warned = bench.build_with_warnings(ODD)
    assert artifact.provider == "libmathdx"
    (text,) = warned
    assert "no cublasdx.hpp; using Warp's libmathdx, which takes " in text
    assert text.endswith(" for each function. Remedy: pip install nvidia-mathdx")


def test_the_salt_depends_on_the_providers(bench: Bench) -> None:
    every = bench.engine.fingerprint(AUTO)
    one = {name: bench.engine.fingerprint(Settings(provider=name)) for name in PROVIDER_ORDER}
    assert len({every, *one.values()}) == 5
    assert "block_gemm.cuh" in every
    assert "gemm.cuh" in every
    assert "mma source=" in one["mma"]
    assert "cublasdx source=" not in one["mma"]
    bench.store.compiler = "another"
    assert bench.engine.fingerprint(AUTO) != every
    assert bench.engine.fingerprint(Settings(provider="mma")) != one["mma"]
    assert bench.engine.fingerprint(Settings(provider="scalar")) == one["scalar"]
    bench.store.compiler, bench.store.source = "compiler digest", "another"
    assert bench.engine.fingerprint(AUTO) != every


def test_builds_of_two_providers_are_not_shared(bench: Bench, tmp_path: Path) -> None:
    choices = [Settings(provider=name, cache_dir=tmp_path) for name in ("mma", "cublasdx", "scalar")]
    built = [bench.engine.start([ALIGNED], choice)[ALIGNED].result(20) for choice in choices]
    assert [artifact.provider for artifact in built] == ["mma", "cublasdx", "scalar"]
    assert len({artifact.key for artifact in built}) == 3


# ---- bfloat16


@pytest.mark.parametrize("role", PRODUCT_ROLES)
def test_a_bfloat16_result_is_built_by_mma(bench: Bench, role: Role) -> None:
    assert planned(bench, NARROW, role).provider == "mma"
    assert bench.build(NARROW).provider == "mma"


@pytest.mark.parametrize("name", ["cublasdx", "libmathdx", "scalar"])
@pytest.mark.parametrize(
    ("role", "words"),
    [(Role.FORWARD, "bfloat16 'out' tile"), (Role.ADJOINT_A, "'a' or 'b' tiles"), (Role.ADJOINT_B, "'a' or 'b' tiles")],
)
def test_no_other_provider_accumulates_in_bfloat16(bench: Bench, name: str, role: Role, words: str) -> None:
    bench.engine.use_libmathdx(libmathdx)
    found = replace(plan_of(NARROW, role), settings=Settings(provider=name))
    alone = replace(found, variants=tuple(v for v in found.variants if v.variant == NARROW and v.role is role))
    with pytest.raises(TypeError, match=words) as caught:
        bench.engine.annotate(alone)
    assert str(caught.value).startswith("In 'k': tile_matmul() does not support")
    assert f"{name} cannot serve c_dtype=bfloat16" in str(caught.value)
    assert "provider 'mma' does" in str(caught.value)


@pytest.mark.parametrize(("change", "field"), [({"threads": 48}, "threads=48"), ({"arch": 70}, "arch=70")])
def test_an_unsupported_bfloat16_gradient_does_not_take_the_scalar_path_silently(
    bench: Bench, change: dict[str, int], field: str
) -> None:
    bench.engine.use_libmathdx(libmathdx)
    variant = replace(NARROW, **change)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"'a' or 'b' tiles.*mma cannot serve {field}.*scalar cannot serve c_dtype"):
        planned(bench, variant, Role.ADJOINT_A)
    with pytest.raises(UnsupportedVariant, match=f"mma cannot serve {field}"):
        bench.build(variant)


def test_a_bfloat16_gradient_that_fails_to_compile_raises_with_the_log(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.refuse(mma(NARROW))
    with pytest.raises(BuildError) as caught:
        bench.build(NARROW)
    assert "unsupported alignment" in caught.value.log
    assert bench.pool.requests == [mma(NARROW)]


def test_a_bfloat16_gradient_without_a_compiler_names_the_missing_part(bench: Bench) -> None:
    bench.store.error = ToolchainError("NVRTC was not found")
    with pytest.raises(TypeError, match=r"'a' or 'b' tiles.*NVRTC was not found"):
        planned(bench, NARROW, Role.ADJOINT_A)
