"""The plan of every form of tile_matmul that Warp accepts. Nothing is built."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warp_tiles
from tests.integration.helpers import (
    FORWARD_ONLY,
    gemm,
    gemm_loop,
    load,
    planned_products,
    problem_of,
    roles,
    warp_products,
)
from tests.integration.plans import ALL, ARCHS, D, F, H, needs_tf32, plan, plan_case
from tests.products import Case, make_kernel

pytestmark = pytest.mark.usefixtures("enabled")


# ---- compared with the products that unmodified Warp would build


def same_as_warp(case: Case, arch: int) -> set[str]:
    """Compare the plan with unmodified Warp. Returns the roles of the plan."""
    kernel = make_kernel(case)
    found = warp_tiles.plan(kernel.module, arch=arch, block_dim=case.threads)
    warp_tiles.disable()
    try:
        expected = warp_products(kernel.module, arch, case.threads)
    finally:
        warp_tiles.enable()
    assert expected, "Warp was expected to build something"
    assert planned_products(found) == expected
    assert all(planned.needed for planned in found.functions)
    return {planned.role.value for planned in found.functions}


@needs_tf32
@pytest.mark.parametrize("arch", [80, 90, 120])
def test_tf32(arch: int) -> None:
    case = Case(16, 24, 32, tf32=True)
    assert same_as_warp(case, arch) == set(ALL)
    assert {problem_of(v).precision for v in plan_case(case, arch).functions} == {"tf32"}


@needs_tf32
@pytest.mark.parametrize("arch", [75, None])
def test_tf32_on_targets_without_it(arch: int | None, warp_warnings: list[str]) -> None:
    found = plan_case(Case(16, 24, 32, tf32=True), arch)
    assert warp_warnings
    assert all("cannot honor precision='tf32'" in message for message in warp_warnings)
    if arch is not None:
        assert {problem_of(v).precision for v in found.functions} == {"default"}
        assert same_as_warp(Case(16, 24, 32, tf32=True), arch) == set(ALL)


DTYPES = st.sampled_from([H, F, D])
SIZES = st.one_of(st.sampled_from([8, 16, 32]), st.integers(1, 33))
CASES = st.builds(
    Case, SIZES, SIZES, SIZES, DTYPES, DTYPES, DTYPES,
    a_transposed=st.booleans(), b_transposed=st.booleans(), pad=st.sampled_from([0, 0, 1, 3, 8]),
    threads=st.sampled_from([32, 64, 256, 512]), accumulate=st.booleans(),
    alpha=st.sampled_from([1.0, 2.0, -1.0]), beta=st.sampled_from([1.0, 0.5, 0.0]),
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=CASES, arch=st.sampled_from(ARCHS))
def test_any_form_needs_the_products_that_warp_would_build(case: Case, arch: int) -> None:
    assert same_as_warp(case, arch) == set(ALL)


# ---- the scalar path

BROADCAST = "wp.tile_broadcast(wp.tile_load(A, shape=(1, 16), storage='shared'), shape=(16, 16))"
OPTS_OUT = {"enable_mathdx_gemm": False}


@pytest.mark.parametrize(
    ("call", "arch", "options", "code"),
    [
        (f"wp.tile_matmul({BROADCAST}, b)", 90, {}, "no_leading_dimension"),
        ("wp.tile_matmul(a, b)", None, {}, "cpu"),
        ("wp.tile_matmul(a, b)", 90, OPTS_OUT | {"warp_tiles_mathdx_opt_out": "warp"}, "option_off"),
    ],
)
def test_what_takes_the_scalar_path_needs_no_function(
    call: str, arch: int | None, options: dict[str, Any], code: str, warp_warnings: list[str]
) -> None:
    found = plan(gemm(call=call), arch=arch, **options)
    assert roles(found, needed=True) == ALL
    assert {(v.provider, v.code, v.key) for v in found.functions} == {("scalar", code, "")}
    assert ({v.problem for v in found.functions}, found.needed) == ({None}, ())
    assert len(warp_warnings) == (code == "no_leading_dimension")
    for message in warp_warnings:
        assert "shape=(16, 16) strides=(0, 1)" in message
        assert "using the scalar GEMM path" in message


@pytest.mark.parametrize("opt_out", ["auto", "own"])
@pytest.mark.parametrize("policy", ["auto", "max", "locked"])
def test_no_library_builds_a_product_that_opts_out(policy: str, opt_out: str) -> None:
    options = {"warp_tiles_policy": policy, "warp_tiles_mathdx_opt_out": opt_out, **OPTS_OUT}
    assert {v.provider for v in plan(gemm(), **options).functions} == {"own"}
    assert {v.provider for v in plan(gemm(), block_dim=48, **options).functions} == {"scalar"}


def test_each_product_that_opts_out_is_decided_in_its_place() -> None:
    texts = [gemm("short", 32, 32, 16, decorator=FORWARD_ONLY), gemm("long", 32, 32, 32, decorator=FORWARD_ONLY)]
    texts += [gemm("odd", 12, 12, 12), gemm("again", 12, 12, 12, decorator=FORWARD_ONLY)]
    texts += [gemm("square", 12, 12, 12, call="wp.tile_matmul(a, a)")]  # whose gradients race in Warp
    text = "\n\n".join([*texts, gemm_loop("loop", 32, 32, 16, decorator=FORWARD_ONLY)])
    found = {v.kernels[0]: (v.provider, v.code) for v in plan(text, **OPTS_OUT).functions if v.needed}
    left, served = ("scalar", "scalar_path_is_faster"), dict.fromkeys(("long", "again", "square", "loop"), ("own", ""))
    assert found == {"short": left, "odd": left, **served}
    found = plan(text, warp_tiles_mathdx_opt_out="own", **OPTS_OUT)
    assert {v.provider for v in found.needed} == {"own"}


@needs_tf32
def test_only_own_gives_tf32_to_a_product_that_opts_out(warp_warnings: list[str]) -> None:
    text = gemm(call='wp.tile_matmul(a, b, precision="tf32")')
    found = plan(text, **OPTS_OUT)
    assert "cannot honor precision='tf32'" in warp_warnings[0]
    assert {v.code for v in found.functions if v.needed} == {"tf32_opted_out"}
    found = plan(text, warp_tiles_mathdx_opt_out="own", **OPTS_OUT)
    assert {v.problem.precision for v in found.needed} == {"tf32"}


def test_the_module_option_warp_tiles_provider() -> None:
    found = plan(gemm(), warp_tiles_provider="cublasdx")
    assert found.settings.provider == "cublasdx"
    assert found.settings.layer("provider") == f"module option warp_tiles_provider of module {found.name}"
    assert {v.provider for v in found.functions} == {"cublasdx"}
    for planned in plan(gemm(), warp_tiles_provider="scalar").functions:
        assert planned.provider == "scalar"
        assert "(module option warp_tiles_provider of module " in planned.reason
    with pytest.raises(warp_tiles.SettingError, match="warp_tiles_provider is 'cutlass'"):
        plan(gemm(), warp_tiles_provider="cutlass")


def test_block_sizes_of_one_module() -> None:
    module = load(gemm())
    plans = {threads: warp_tiles.plan(module, arch=90, block_dim=threads) for threads in (32, 64, 256)}
    for threads, found in plans.items():
        assert found.block_dim == threads
        assert {problem_of(v).threads for v in found.functions} == {threads}
    assert len({v.key for found in plans.values() for v in found.functions}) == 9
    assert warp_tiles.plan(module, arch=90).block_dim == 64, "the module's own option"
