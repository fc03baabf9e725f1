"""The plan of every form of tile_matmul that Warp accepts. Nothing is built."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warp_tiles
from tests.integration.helpers import (
    ARRAYS,
    FORWARD_ONLY,
    STORE,
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

FORMS = {
    "result": Case(16, 24, 32),
    "accumulator": Case(16, 24, 32, accumulate=True),
    "alpha and beta": Case(16, 24, 32, accumulate=True, alpha=2.0, beta=0.5),
    "beta zero": Case(16, 24, 32, accumulate=True, alpha=-1.0, beta=0.0),
    "fp16": Case(16, 24, 32, H, H, H),
    "fp16 into fp32": Case(16, 24, 32, H, H, F),
    "fp64": Case(16, 24, 32, D, D, D),
    "fp16 with fp32 into fp32": Case(16, 24, 32, H, F, F),
    "fp32 with fp16 into fp16": Case(16, 24, 32, F, H, H),
    "fp16 into fp64": Case(16, 24, 32, H, H, D),
    "A transposed": Case(16, 24, 32, a_transposed=True),
    "B transposed": Case(16, 24, 32, b_transposed=True),
    "both transposed": Case(16, 24, 32, H, H, H, True, True),
    "views": Case(16, 24, 32, pad=8),
    "views of fp16 transposed": Case(16, 24, 32, H, H, F, True, True, 3),
    "odd sizes": Case(7, 5, 3),
    "a row": Case(1, 32, 7),
    "a column": Case(32, 1, 7),
    "one element": Case(1, 1, 1),
    "many threads": Case(16, 24, 32, threads=512),
}


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


@pytest.mark.parametrize("case", FORMS.values(), ids=FORMS.keys())
def test_a_form_needs_the_products_that_warp_would_build(case: Case) -> None:
    assert same_as_warp(case, 90) == set(ALL)


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


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    case=st.builds(
        Case, SIZES, SIZES, SIZES, DTYPES, DTYPES, DTYPES,
        a_transposed=st.booleans(), b_transposed=st.booleans(), pad=st.sampled_from([0, 0, 1, 8]),
        threads=st.sampled_from([32, 64, 256]), accumulate=st.booleans(),
    ),
    arch=st.sampled_from(ARCHS),
)  # fmt: skip
def test_any_form_needs_the_products_that_warp_would_build(case: Case, arch: int) -> None:
    same_as_warp(case, arch)


# ---- the scalar path


def test_a_broadcast_tile_takes_the_scalar_path_with_a_reason(warp_warnings: list[str]) -> None:
    text = f"""
@wp.kernel
def gemm({ARRAYS}):
    row = wp.tile_load(A, shape=(1, 16), storage="shared")
    a = wp.tile_broadcast(row, shape=(16, 16))
    b = wp.tile_load(B, shape=(16, 16), storage="shared")
    c = wp.tile_matmul(a, b){STORE}
"""
    found = plan(text)
    assert len(warp_warnings) == 1
    assert "shape=(16, 16) strides=(0, 1)" in warp_warnings[0]
    assert "using the scalar GEMM path" in warp_warnings[0]
    assert roles(found) == ALL
    for planned in found.functions:
        assert planned.problem is None
        assert planned.needed
        assert planned.provider == "scalar"
        assert planned.code == "no_leading_dimension"
        assert planned.key == ""
    assert found.needed == ()


def test_a_cpu_target_takes_the_scalar_path() -> None:
    found = plan(gemm(), arch=None)
    assert found.arch is None
    assert {v.provider for v in found.functions} == {"scalar"}
    assert {v.code for v in found.functions} == {"cpu"}


def test_the_module_option_enable_mathdx_gemm() -> None:
    found = plan(gemm(), enable_mathdx_gemm=False, warp_tiles_mathdx_opt_out="warp")
    assert {v.provider for v in found.functions} == {"scalar"}
    assert {v.code for v in found.functions} == {"option_off"}
    assert {v.provider for v in plan(gemm(), enable_mathdx_gemm=True).functions} == {"own"}


@pytest.mark.parametrize("opt_out", ["auto", "own"])
@pytest.mark.parametrize("policy", ["auto", "max", "locked"])
def test_no_library_builds_a_product_that_opts_out(policy: str, opt_out: str) -> None:
    options = {"warp_tiles_policy": policy, "warp_tiles_mathdx_opt_out": opt_out, "enable_mathdx_gemm": False}
    assert {v.provider for v in plan(gemm(), **options).functions} == {"own"}
    assert {v.provider for v in plan(gemm(), block_dim=48, **options).functions} == {"scalar"}


def test_each_product_that_opts_out_is_decided_in_its_place() -> None:
    texts = [gemm("short", 32, 32, 16, decorator=FORWARD_ONLY), gemm("long", 32, 32, 32, decorator=FORWARD_ONLY)]
    texts += [gemm("odd", 12, 12, 12), gemm("again", 12, 12, 12, decorator=FORWARD_ONLY)]
    text = "\n\n".join([*texts, gemm_loop("loop", 32, 32, 16, decorator=FORWARD_ONLY)])
    found = {v.kernels[0]: (v.provider, v.code) for v in plan(text, enable_mathdx_gemm=False).functions if v.needed}
    left = "scalar", "scalar_path_is_faster"
    assert found == {
        "short": left, "long": ("own", ""), "odd": left, "again": ("own", ""), "loop": ("own", "")
    }  # fmt: skip
    found = plan(text, enable_mathdx_gemm=False, warp_tiles_mathdx_opt_out="own")
    assert {v.provider for v in found.needed} == {"own"}


def test_a_product_whose_gradients_race_in_warp_is_not_left_there() -> None:
    text = gemm("square", 12, 12, 12, call="wp.tile_matmul(a, a)")
    assert {v.provider for v in plan(text, enable_mathdx_gemm=False).needed} == {"own"}


@needs_tf32
def test_only_own_gives_tf32_to_a_product_that_opts_out(warp_warnings: list[str]) -> None:
    text = gemm(call='wp.tile_matmul(a, b, precision="tf32")')
    found = plan(text, enable_mathdx_gemm=False)
    assert "cannot honor precision='tf32'" in warp_warnings[0]
    assert {v.code for v in found.functions if v.needed} == {"tf32_opted_out"}
    found = plan(text, enable_mathdx_gemm=False, warp_tiles_mathdx_opt_out="own")
    assert {v.problem.precision for v in found.needed} == {"tf32"}


def test_the_module_option_warp_tiles_provider() -> None:
    found = plan(gemm(), warp_tiles_provider="cublasdx")
    assert found.settings.provider == "cublasdx"
    assert found.settings.layer("provider") == f"module option warp_tiles_provider of module {found.name}"
    assert {v.provider for v in found.functions} == {"cublasdx"}
    scalar = plan(gemm(), warp_tiles_provider="scalar")
    assert {v.provider for v in scalar.functions} == {"scalar"}
    reasons = {v.reason for v in scalar.functions}
    assert all("(module option warp_tiles_provider of module " in reason for reason in reasons)
    with pytest.raises(warp_tiles.SettingError, match="warp_tiles_provider is 'cutlass'"):
        plan(gemm(), warp_tiles_provider="cutlass")


@pytest.mark.parametrize(
    ("threads", "policy", "provider"),
    [
        (16, "auto", "scalar"), (31, "auto", "scalar"), (33, "auto", "cublasdx"), (33, "fast", "scalar"),
        (64, "fast", "own"),
    ],
)  # fmt: skip
def test_the_block_size_decides_the_provider(threads: int, policy: str, provider: str) -> None:
    with warp_tiles.override(policy=policy):
        found = plan(gemm(), block_dim=threads)
    assert {v.provider for v in found.functions} == {provider}
    refused = [v for v in found.functions if f"own cannot serve threads={threads}" in v.reason]
    assert len(refused) == (0 if provider == "own" else 3)


def test_block_sizes_of_one_module() -> None:
    module = load(gemm())
    plans = {threads: warp_tiles.plan(module, arch=90, block_dim=threads) for threads in (32, 64, 256)}
    for threads, found in plans.items():
        assert found.block_dim == threads
        assert {problem_of(v).threads for v in found.functions} == {threads}
    assert len({v.key for found in plans.values() for v in found.functions}) == 9
    assert warp_tiles.plan(module, arch=90).block_dim == 64, "the module's own option"
