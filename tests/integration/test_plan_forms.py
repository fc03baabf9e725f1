"""The plan of every form of tile_matmul that Warp takes; nothing is built here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import warp as wp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warp_tiles
from tests.integration.helpers import (
    ARRAYS,
    LOADS,
    STORE,
    WARP_VERSION,
    gemm,
    load,
    only,
    planned_products,
    roles,
    variant_of,
    warp_products,
)
from tests.products import Case, make_kernel
from warp_tiles.planning import ModulePlan
from warp_tiles.providers.cublasdx import promised
from warp_tiles.variant import Role

H, B, F, D = "float16", "bfloat16", "float32", "float64"
ALL = ["forward", "adjoint_a", "adjoint_b"]
ARCHS = (75, 80, 86, 87, 89, 90, 100, 103, 120, 121)
FORWARD_ONLY = "@wp.kernel(enable_backward=False)"

needs_tf32 = pytest.mark.skipif(WARP_VERSION < (1, 19), reason="tile_matmul's precision argument came with Warp 1.19")
pytestmark = pytest.mark.usefixtures("enabled")


@pytest.fixture
def warp_says() -> Iterator[list[str]]:
    """Warnings of Warp's own logger."""
    said: list[str] = []

    class Logger:
        def debug(self, message: str) -> None: ...

        def info(self, message: str) -> None: ...

        def error(self, message: str) -> None: ...

        def warning(self, message: str, category: object = None, stacklevel: int = 1) -> None:
            said.append(message)

    wp.set_logger(Logger())
    yield said
    wp.set_logger(None)


def plan(text: str, *, arch: int | None = 90, block_dim: int = 64, **options: Any) -> ModulePlan:
    return warp_tiles.plan(load(text, **options), arch=arch, block_dim=block_dim)


def plan_case(case: Case, arch: int | None = 90) -> ModulePlan:
    return warp_tiles.plan(make_kernel(case).module, arch=arch, block_dim=case.threads)


# ---- against unmodified Warp, which is asked what it would build

SQUARE = Case(16, 16, 16)
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
    """Compare with unmodified Warp; returns the roles of the plan."""
    kernel = make_kernel(case)
    found = warp_tiles.plan(kernel.module, arch=arch, block_dim=case.threads)
    warp_tiles.disable()
    try:
        expected = warp_products(kernel.module, arch, case.threads)
    finally:
        warp_tiles.enable()
    assert expected, "Warp was expected to build something"
    assert planned_products(found) == expected
    assert all(variant.needed for variant in found.variants)
    return {variant.role.value for variant in found.variants}


@pytest.mark.parametrize("case", FORMS.values(), ids=FORMS.keys())
def test_a_form_needs_what_warp_would_build(case: Case) -> None:
    assert same_as_warp(case, 90) == set(ALL)


@needs_tf32
@pytest.mark.parametrize("arch", [80, 90, 120])
def test_tf32(arch: int) -> None:
    case = Case(16, 24, 32, tf32=True)
    assert same_as_warp(case, arch) == set(ALL)
    assert {variant_of(v).precision for v in plan_case(case, arch).variants} == {"tf32"}


@needs_tf32
@pytest.mark.parametrize("arch", [75, None])
def test_tf32_where_there_is_none(arch: int | None, warp_says: list[str]) -> None:
    found = plan_case(Case(16, 24, 32, tf32=True), arch)
    assert warp_says
    assert all("cannot honor precision='tf32'" in said for said in warp_says)
    if arch is not None:
        assert {variant_of(v).precision for v in found.variants} == {"default"}
        assert same_as_warp(Case(16, 24, 32, tf32=True), arch) == set(ALL)


DTYPES = st.sampled_from([H, F, D])
SIZES = st.one_of(st.sampled_from([8, 16, 32]), st.integers(1, 33))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    case=st.builds(
        Case, SIZES, SIZES, SIZES, DTYPES, DTYPES, DTYPES,
        a_transposed=st.booleans(), b_transposed=st.booleans(), pad=st.sampled_from([0, 0, 1, 8]),
        threads=st.sampled_from([32, 64, 256]), accumulate=st.booleans(),
    ),
    arch=st.sampled_from(ARCHS),
)  # fmt: skip
def test_any_form_needs_what_warp_would_build(case: Case, arch: int) -> None:
    same_as_warp(case, arch)


# ---- sizes, arrangements and leading dimensions, worked out by hand


def test_the_three_products_of_a_call() -> None:
    found = plan(gemm(m=16, n=24, k=32))
    sizes = {role: (variant_of(only(found, role)).m, variant_of(only(found, role)).n) for role in Role}
    assert sizes == {Role.FORWARD: (16, 24), Role.ADJOINT_A: (16, 32), Role.ADJOINT_B: (32, 24)}
    assert [variant_of(v).k for v in found.variants] == [32, 24, 16]
    arrangements = [[o.arrangement for o in (x.a, x.b, x.c)] for x in map(variant_of, found.variants)]
    row, col = "row_major", "col_major"
    assert arrangements == [[row, row, row], [row, col, row], [col, row, row]]
    assert [variant_of(v).leading_dimensions for v in found.variants] == [(32, 24, 24), (24, 24, 32), (32, 24, 24)]
    assert {v.provider for v in found.variants} == {"mma"}
    assert all(v.tile_config is not None for v in found.variants)
    assert len({v.key for v in found.variants}) == 3
    assert all(len(v.key) == 64 for v in found.variants)


def test_views_keep_the_leading_dimension_of_what_they_view() -> None:
    found = plan_case(Case(16, 24, 32, pad=8, b_transposed=True))
    forward = variant_of(only(found, Role.FORWARD))
    assert (forward.a.arrangement, forward.b.arrangement) == ("row_major", "col_major")
    assert forward.leading_dimensions == (40, 40, 24)
    assert forward.alignments[:2] == (4, 4), "nothing is known about where a view begins"


def test_owned_tiles_are_promised_to_be_aligned() -> None:
    if WARP_VERSION < (1, 18):
        pytest.skip("Warp 1.17 does not tell parameters from tiles that own their storage")
    forward = variant_of(only(plan_case(Case(16, 24, 32, H, H, H)), Role.FORWARD))
    assert forward.alignments == (16, 16, 16)
    assert promised(forward).alignments == (16, 16, 8), "all that cuBLASDx is told"


def test_a_view_takes_nothing_from_the_tiles_beside_it() -> None:
    if WARP_VERSION < (1, 18):
        pytest.skip("Warp 1.17 does not tell parameters from tiles that own their storage")
    forward = variant_of(only(plan_case(Case(16, 24, 32, H, H, H, pad=8)), Role.FORWARD))
    assert forward.leading_dimensions == (40, 32, 24)
    assert forward.alignments == (2, 2, 16)
    assert promised(forward).alignments == (2, 2, 2)


# ---- the scalar path


def test_a_broadcast_tile_takes_the_scalar_path_and_says_why(warp_says: list[str]) -> None:
    text = f"""
@wp.kernel
def gemm({ARRAYS}):
    row = wp.tile_load(A, shape=(1, 16), storage="shared")
    a = wp.tile_broadcast(row, shape=(16, 16))
    b = wp.tile_load(B, shape=(16, 16), storage="shared")
    c = wp.tile_matmul(a, b){STORE}
"""
    found = plan(text)
    assert len(warp_says) == 1
    assert "shape=(16, 16) strides=(0, 1)" in warp_says[0]
    assert "using the scalar GEMM path" in warp_says[0]
    assert roles(found) == ALL
    for variant in found.variants:
        assert variant.variant is None
        assert variant.needed
        assert variant.provider == "scalar"
        assert "'a'" in variant.reason
        assert "strides=(0, 1)" in variant.reason
        assert "leading dimension" in variant.reason
        assert variant.key == ""
    assert found.needed == ()


def test_a_cpu_target_takes_the_scalar_path() -> None:
    found = plan(gemm(), arch=None)
    assert found.arch is None
    assert {v.provider for v in found.variants} == {"scalar"}
    assert all("CPU" in v.reason for v in found.variants)


def test_the_module_option_enable_mathdx_gemm() -> None:
    found = plan(gemm(), enable_mathdx_gemm=False)
    assert {v.provider for v in found.variants} == {"scalar"}
    assert all("enable_mathdx_gemm" in v.reason for v in found.variants)
    assert {v.provider for v in plan(gemm(), enable_mathdx_gemm=True).variants} == {"mma"}


def test_the_provider_scalar() -> None:
    with warp_tiles.override(provider="scalar"):
        found = plan(gemm())
    assert {v.provider for v in found.variants} == {"scalar"}
    assert all("provider" in v.reason for v in found.variants)


def test_an_architecture_that_is_too_old() -> None:
    found = plan(gemm(), arch=70)
    assert {v.provider for v in found.variants} == {"scalar"}
    assert all("mma cannot serve arch=70" in v.reason for v in found.variants)
    for provider in ("mma", "cublasdx"):
        with (
            warp_tiles.override(provider=provider),
            pytest.raises(warp_tiles.UnsupportedVariant, match=f"{provider} cannot serve arch=70"),
        ):
            plan(gemm(), arch=70)


def test_the_module_option_warp_tiles_provider() -> None:
    found = plan(gemm(), warp_tiles_provider="cublasdx")
    assert found.settings.provider == "cublasdx"
    assert found.settings.layer("provider") == f"module option warp_tiles_provider of module {found.name}"
    assert {v.provider for v in found.variants} == {"cublasdx"}
    scalar = plan(gemm(), warp_tiles_provider="scalar")
    assert {v.provider for v in scalar.variants} == {"scalar"}
    assert all(
        "(module option warp_tiles_provider of module " in v.reason and "is 'scalar'" in v.reason
        for v in scalar.variants
    )
    with pytest.raises(warp_tiles.SettingError, match="warp_tiles_provider is 'cutlass'"):
        plan(gemm(), warp_tiles_provider="cutlass")


@pytest.mark.parametrize(("threads", "provider"), [(16, "scalar"), (31, "scalar"), (33, "cublasdx"), (64, "mma")])
def test_the_block_size_decides_who_can(threads: int, provider: str) -> None:
    found = plan(gemm(), block_dim=threads)
    assert {v.provider for v in found.variants} == {provider}
    refused = [v for v in found.variants if f"mma cannot serve threads={threads}" in v.reason]
    assert len(refused) == (0 if provider == "mma" else 3)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture_plans(arch: int) -> None:
    found = plan(gemm(), arch=arch)
    assert found.arch == arch
    assert [variant_of(v).arch for v in found.variants] == [arch] * 3
    assert all(f"_sm{arch}" in variant_of(v).symbol for v in found.variants)


def test_block_sizes_of_one_module() -> None:
    module = load(gemm())
    plans = {threads: warp_tiles.plan(module, arch=90, block_dim=threads) for threads in (32, 64, 256)}
    for threads, found in plans.items():
        assert found.block_dim == threads
        assert {variant_of(v).threads for v in found.variants} == {threads}
    assert len({v.key for found in plans.values() for v in found.variants}) == 9
    assert warp_tiles.plan(module, arch=90).block_dim == 64, "the module's own option"


# ---- which adjoints are needed


def test_the_module_option_enable_backward() -> None:
    found = plan(gemm(), enable_backward=False)
    assert roles(found, needed=True) == ["forward"]
    for role in (Role.ADJOINT_A, Role.ADJOINT_B):
        skipped = only(found, role)
        assert not skipped.needed
        assert "module has enable_backward=False" in skipped.reason
        assert (skipped.provider, skipped.key) == ("", "")
        assert skipped.kernels == ("gemm",)


def test_the_kernel_option_enable_backward() -> None:
    found = plan(gemm(decorator=FORWARD_ONLY))
    assert roles(found, needed=True) == ["forward"]
    assert "kernel 'gemm' has enable_backward=False" in only(found, Role.ADJOINT_A).reason


def test_the_kernel_option_overrides_the_module_option() -> None:
    found = plan(gemm(decorator="@wp.kernel(enable_backward=True)"), enable_backward=False)
    assert roles(found, needed=True) == ALL
    assert "kernel 'gemm' has a backward pass" in only(found, Role.ADJOINT_B).reason


def test_a_forward_only_kernel_beside_a_differentiable_one() -> None:
    found = plan(gemm("trained", 16, 16, 16) + gemm("inferred", 8, 8, 8, decorator=FORWARD_ONLY))
    assert sorted(found.kernels) == ["inferred", "trained"]
    needed = {(variant_of(v).m, v.role.value): v.kernels for v in found.variants if v.needed}
    assert needed == {(8, "forward"): ("inferred",)} | {(16, role): ("trained",) for role in ALL}
    skipped = [v for v in found.variants if not v.needed]
    assert {variant_of(v).m for v in skipped} == {8}
    assert all("inferred" in v.reason and v.kernels == ("inferred",) for v in skipped)


def test_equal_variants_of_two_kernels_are_one() -> None:
    found = plan(gemm("first") + gemm("second"))
    assert roles(found) == ALL
    for variant in found.variants:
        assert sorted(variant.kernels) == ["first", "second"]


def test_equal_variants_of_a_forward_only_and_a_differentiable_kernel_are_one() -> None:
    found = plan(gemm("first", decorator=FORWARD_ONLY) + gemm("second"))
    assert roles(found, needed=True) == ALL
    assert roles(found, needed=False) == []
    assert sorted(only(found, Role.FORWARD).kernels) == ["first", "second"]
    assert only(found, Role.ADJOINT_A).kernels == ("second",), "the forward-only kernel needs no adjoint"
    assert "second" in only(found, Role.ADJOINT_A).reason


def test_equal_products_of_several_modules_have_one_key() -> None:
    first, second = plan(gemm("first")), plan(gemm("second"))
    assert {v.key for v in first.variants} == {v.key for v in second.variants}


# ---- helpers

TILE = "wp.tile(dtype=wp.float32, shape=(16, 16))"
HELPER = f"""
@wp.func
def helper(a: {TILE}, b: {TILE}, c: {TILE}):
    wp.tile_matmul(a, b, c)
"""
# a helper whose tile arguments are typed by its caller
GENERIC_HELPER = """
@wp.func
def helper(a: wp.tile(dtype=float, shape=(16, 16)), b: wp.tile(dtype=float, shape=(16, 16))):
    return wp.tile_matmul(a, b)
"""


def caller(name: str, decorator: str = "@wp.kernel") -> str:
    return f"""
{decorator}
def {name}({ARRAYS}):{LOADS.format(m=16, n=16, k=16)}
    c = wp.tile_zeros(shape=(16, 16), dtype=wp.float32, storage="shared")
    helper(a, b, c){STORE}
"""


def test_a_helper_with_tile_arguments() -> None:
    found = plan(HELPER + caller("gemm"))
    assert roles(found, needed=True) == ALL
    for variant in found.variants:
        assert variant.function == "helper"
        assert variant.kernels == ("gemm",)
        assert variant_of(variant).alignments == (4, 4, 4), "a parameter may be a view"


def test_a_helper_that_returns_a_tile() -> None:
    text = gemm(call="helper(a, b)")
    assert roles(plan(GENERIC_HELPER + text), needed=True) == ALL


def test_a_helper_shared_by_a_forward_only_and_a_differentiable_kernel() -> None:
    found = plan(HELPER + caller("inferred", FORWARD_ONLY) + caller("trained"))
    assert roles(found, needed=True) == ALL
    assert sorted(only(found, Role.FORWARD).kernels) == ["inferred", "trained"]
    assert only(found, Role.ADJOINT_A).kernels == ("trained",)
    assert "trained" in only(found, Role.ADJOINT_A).reason
    assert "inferred" not in only(found, Role.ADJOINT_A).reason


@pytest.mark.parametrize("order", [("trained", "inferred"), ("inferred", "trained")])
def test_the_order_of_the_kernels_does_not_matter(order: tuple[str, str]) -> None:
    decorators = {"trained": "@wp.kernel", "inferred": FORWARD_ONLY}
    found = plan(HELPER + "".join(caller(name, decorators[name]) for name in order))
    assert roles(found, needed=True) == ALL


def test_a_helper_of_forward_only_kernels_alone() -> None:
    found = plan(HELPER + caller("first", FORWARD_ONLY) + caller("second", FORWARD_ONLY) + gemm("other", 8, 8, 8))
    by_function = {(v.function, v.role.value): v.needed for v in found.variants}
    assert by_function == {
        ("helper", "forward"): True,
        ("helper", "adjoint_a"): False,
        ("helper", "adjoint_b"): False,
        ("other", "forward"): True,
        ("other", "adjoint_a"): True,
        ("other", "adjoint_b"): True,
    }
    skipped = next(v for v in found.variants if not v.needed)
    assert sorted(skipped.kernels) == ["first", "second"]
    assert "'first'" in skipped.reason
    assert "'second'" in skipped.reason


def test_a_helper_of_a_helper() -> None:
    outer = f"""
@wp.func
def outer(a: {TILE}, b: {TILE}, c: {TILE}):
    helper(a, b, c)
"""
    text = HELPER + outer + caller("gemm").replace("helper(", "outer(")
    assert roles(plan(text), needed=True) == ALL
    forward = caller("gemm", FORWARD_ONLY).replace("helper(", "outer(")
    assert roles(plan(HELPER + outer + forward), needed=True) == ["forward"]


# ---- wp.grad() and custom gradients

LOSS = """
@wp.func
def loss(x: wp.float32):
    a = wp.tile_full(shape=(16, 16), value=x, dtype=wp.float32, storage="shared")
    b = wp.tile_ones(shape=(16, 16), dtype=wp.float32, storage="shared")
    c = wp.tile_matmul(a, b)
    return wp.tile_extract(c, 0, 0)
"""
SLOPE = """
@wp.kernel(enable_backward=False)
def slope(out: wp.array(dtype=wp.float32)):
    out[0] = wp.grad(loss)(2.0)
"""
VALUE = """
@wp.kernel(enable_backward=False)
def value(out: wp.array(dtype=wp.float32)):
    out[0] = loss(2.0)
"""


def test_grad_inside_a_forward_only_kernel_gets_the_adjoints() -> None:
    found = plan(LOSS + SLOPE)
    assert roles(found, needed=True) == ALL
    assert only(found, Role.ADJOINT_A).kernels == ("slope",)
    assert "wp.grad()" in only(found, Role.ADJOINT_A).reason


def test_grad_in_a_module_without_backward_passes_gets_the_adjoints() -> None:
    assert roles(plan(LOSS + SLOPE, enable_backward=False), needed=True) == ALL


def test_without_grad_the_same_function_needs_no_adjoint() -> None:
    assert roles(plan(LOSS + VALUE), needed=True) == ["forward"]


def test_grad_of_another_function_changes_nothing_for_a_product() -> None:
    square = "@wp.func\ndef square(x: wp.float32):\n    return x * x\n\n"
    text = square + gemm(decorator=FORWARD_ONLY).replace(
        "c = wp.tile_matmul(a, b)", "C[0, 0] = wp.grad(square)(2.0)\n    c = wp.tile_matmul(a, b)"
    )
    assert roles(plan(text), needed=True) == ["forward"]


CUSTOM = """
@wp.func
def loss(x: wp.float32):
    a = wp.tile_full(shape=(16, 16), value=x, dtype=wp.float32, storage="shared")
    b = wp.tile_ones(shape=(16, 16), dtype=wp.float32, storage="shared")
    c = wp.tile_matmul(a, b)
    return wp.tile_extract(c, 0, 0)

@wp.func_grad(loss)
def adj_loss(x: wp.float32, adj_ret: wp.float32):
    {gradient}

@wp.kernel
def gemm(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    out[0] = loss(x[0])
"""
SCALED = "wp.adjoint[x] += 16.0 * adj_ret"
MULTIPLIED = """a = wp.tile_full(shape=(8, 8), value=adj_ret, dtype=wp.float32, storage="shared")
    b = wp.tile_ones(shape=(8, 8), dtype=wp.float32, storage="shared")
    c = wp.tile_matmul(a, b)
    wp.adjoint[x] += 16.0 * wp.tile_extract(c, 0, 0)"""


def test_a_custom_gradient_replaces_the_adjoints() -> None:
    found = plan(CUSTOM.format(gradient=SCALED))
    assert roles(found, needed=True) == ["forward"]


def test_a_product_inside_a_custom_gradient_is_built() -> None:
    found = plan(CUSTOM.format(gradient=MULTIPLIED))
    needed = {(variant_of(v).m, v.role.value) for v in found.variants if v.needed}
    assert needed == {(16, "forward"), (8, "forward")}
    assert {v.kernels for v in found.variants if v.needed} == {("gemm",)}


# ---- generic kernels, aliases, Cholesky

GENERIC = """
@wp.kernel
def gemm(A: wp.array2d(dtype=Any), B: wp.array2d(dtype=Any), C: wp.array2d(dtype=Any)):
    a = wp.tile_load(A, shape=(16, 16), storage="shared")
    b = wp.tile_load(B, shape=(16, 16), storage="shared")
    c = wp.tile_matmul(a, b)
    wp.tile_store(C, c)

for dtype in (wp.float16, wp.float64):
    wp.overload(gemm, [wp.array2d(dtype=dtype)] * 3)
"""


def test_overloads_of_a_generic_kernel() -> None:
    found = plan("from typing import Any\n\n" + GENERIC)
    assert sorted((variant_of(v).a.dtype, v.role.value) for v in found.variants) == sorted(
        (dtype, role) for dtype in (H, D) for role in ALL
    )


def test_a_generic_kernel_without_overloads_needs_nothing() -> None:
    text = "from typing import Any\n\n" + GENERIC.partition("for dtype")[0]
    assert plan(text).variants == ()


# wp.tile_matmul is no Python object: it has a value only inside kernels, or in Warp's own table
ALIASES = {
    "import warp": ("import warp", "warp.tile_matmul(a, b)"),
    "import warp as other": ("import warp as other", "other.tile_matmul(a, b)"),
    "a global": ("from warp._src.context import builtin_functions\nmm = builtin_functions['tile_matmul']", "mm(a, b)"),
    "an attribute": (
        "import types\nfrom warp._src.context import builtin_functions\n"
        "ops = types.SimpleNamespace(mm=builtin_functions['tile_matmul'])",
        "ops.mm(a, b)",
    ),
}


@pytest.mark.parametrize(("preamble", "call"), ALIASES.values(), ids=ALIASES.keys())
def test_aliases(preamble: str, call: str) -> None:
    assert roles(plan(f"{preamble}\n\n{gemm(call=call)}"), needed=True) == ALL


def test_a_module_without_products_has_an_empty_plan() -> None:
    found = plan("@wp.kernel\ndef copy(x: wp.array(dtype=float)):\n    x[0] = 1.0\n")
    assert (found.kernels, found.variants) == (("copy",), ())


CHOLESKY = """
@wp.kernel{options}
def factor(A: wp.array2d(dtype=wp.float64), L: wp.array2d(dtype=wp.float64)):
    a = wp.tile_load(A, shape=(16, 16), storage="shared")
    wp.tile_store(L, wp.tile_cholesky(a))
"""


@pytest.mark.slow
def test_the_product_inside_the_adjoint_of_cholesky() -> None:
    # Warp builds the cuSOLVERDx function itself while it generates the code, in seconds
    found = plan(CHOLESKY.format(options=""))
    product = only(found, Role.ADJOINT_A)
    variant = variant_of(product)
    assert (variant.m, variant.n, variant.k, variant.a.dtype) == (16, 16, 16, D)
    assert product.call == "tile_cholesky"
    assert product.needed
    assert product.provider == "mma"
    assert len(found.variants) == 1


@pytest.mark.slow
def test_a_forward_only_cholesky_needs_no_product() -> None:
    assert plan(CHOLESKY.format(options=""), enable_backward=False).needed == ()
    assert plan(CHOLESKY.format(options="(enable_backward=False)")).needed == ()


# ---- operands that are refused


def test_bfloat16_in_a_forward_only_kernel() -> None:
    found = plan_case(Case(16, 16, 16, B, B, F, backward=False))
    assert roles(found, needed=True) == ["forward"]
    assert variant_of(only(found, Role.FORWARD)).a.dtype == B


def test_bfloat16_in_a_forward_only_module() -> None:
    text = gemm(call="wp.tile_zeros(shape=(16, 16), dtype=wp.float32)\n    wp.tile_matmul(a, b, c)")
    text = text.replace("A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32)", "A: BF, B: BF")
    found = plan("BF = wp.array2d(dtype=wp.bfloat16)\n" + text, enable_backward=False)
    assert roles(found, needed=True) == ["forward"]


WITHOUT_MMA = [{"provider": name} for name in ("cublasdx", "libmathdx", "scalar")]


@pytest.mark.parametrize(("a", "b"), [(B, B), (B, F), (F, B)])
def test_bfloat16_in_a_differentiable_kernel(a: str, b: str) -> None:
    found = plan_case(Case(16, 16, 16, a, b, F))
    assert roles(found, needed=True) == ALL
    assert {v.provider for v in found.variants} == {"mma"}
    assert {variant_of(v).c.dtype for v in found.variants} == {a, b, F}


@pytest.mark.parametrize(("a", "b"), [(B, B), (B, F), (F, B)])
@pytest.mark.parametrize(
    ("arch", "threads", "setting"),
    [(None, 1, {}), (70, 64, {}), (90, 48, {}), (90, 16, {}), *((90, 64, setting) for setting in WITHOUT_MMA)],
)
def test_bfloat16_in_a_differentiable_kernel_where_mma_cannot_serve(
    a: str, b: str, arch: int | None, threads: int, setting: dict[str, str]
) -> None:
    kernel = make_kernel(Case(16, 16, 16, a, b, F))
    words = r"(?s)bfloat16 'a' or 'b'.*enable_backward=False.* on the kernel.*provider 'mma' does.* Here "
    with warp_tiles.override(**setting), pytest.raises(TypeError, match=words):
        warp_tiles.plan(kernel.module, arch=arch, block_dim=threads)


def test_bfloat16_in_a_helper_shared_with_a_differentiable_kernel() -> None:
    helper = HELPER.replace("a: wp.tile(dtype=wp.float32", "a: wp.tile(dtype=wp.bfloat16")
    assert "bfloat16" in helper
    calls = [caller("inferred", FORWARD_ONLY), caller("trained")]
    kernels = [text.replace("A: wp.array2d(dtype=wp.float32", "A: wp.array2d(dtype=wp.bfloat16") for text in calls]
    assert roles(plan(helper + kernels[0]), needed=True) == ["forward"]
    assert roles(plan(helper + "".join(kernels)), needed=True) == ALL
    with warp_tiles.override(provider="cublasdx"):
        assert roles(plan(helper + kernels[0]), needed=True) == ["forward"]
        with pytest.raises(TypeError, match="bfloat16"):
            plan(helper + "".join(kernels))


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_bfloat16_result(accumulate: bool) -> None:
    case = Case(16, 16, 16, B, B, B, accumulate=accumulate)
    found = plan_case(case)
    assert {v.provider for v in found.variants} == {"mma"}
    assert {variant_of(v).c.dtype for v in found.variants} == {B}
    refusing: list[tuple[int | None, int, dict[str, str]]] = [(None, 1, {}), (70, 64, {}), (90, 48, {})]
    refusing += [(90, 64, setting) for setting in WITHOUT_MMA]
    for backward in (False, True):
        for arch, threads, setting in refusing:
            kernel = make_kernel(replace(case, backward=backward))
            with warp_tiles.override(**setting), pytest.raises(TypeError, match=r"(?s)bfloat16 'out' tile.*'mma' does"):
                warp_tiles.plan(kernel.module, arch=arch, block_dim=threads)


def test_a_bfloat16_result_where_functions_are_off() -> None:
    kernel = make_kernel(Case(16, 16, 16, B, B, B, backward=False))
    kernel.module.options["enable_mathdx_gemm"] = False
    with pytest.raises(TypeError, match=r"(?s)bfloat16 'out' tile.*enable_mathdx_gemm is off"):
        warp_tiles.plan(kernel.module, arch=90, block_dim=64)


def test_an_unknown_dtype() -> None:
    # Warp's own overload resolution refuses it before the dispatcher is asked
    with pytest.raises(Exception, match=r"(?s)tile_matmul.*int32"):
        plan(gemm().replace("wp.float32", "wp.int32"))


@pytest.mark.parametrize("arch", [90, None])
def test_mismatched_shapes(arch: int | None) -> None:
    text = gemm(m=16, n=16, k=16).replace("B, shape=(16, 16)", "B, shape=(8, 16)")
    with pytest.raises(ValueError, match=r"(?s)sizes of A, B and C.*\(16, 16\).*\(8, 16\)"):
        plan(text, arch=arch)


@needs_tf32
def test_a_precision_that_is_no_literal() -> None:
    text = gemm(call="wp.tile_matmul(a, b, precision=mode)").replace("C: wp.array2d", "mode: str, C: wp.array2d")
    with pytest.raises(ValueError, match="string literal 'default' or 'tf32', got a non-literal argument"):
        plan(text)


def test_complex_tiles_are_refused_as_warp_does() -> None:
    with pytest.raises(TypeError, match="does not support complex tiles"):
        plan(gemm().replace("wp.float32", "wp.vec2f"))


@needs_tf32
def test_an_unknown_precision() -> None:
    with pytest.raises(ValueError, match=r"'default' or 'tf32', got 'bf32'"):
        plan(gemm(call='wp.tile_matmul(a, b, precision="bf32")'))


@needs_tf32
def test_tf32_of_other_than_float32() -> None:
    with pytest.raises(TypeError, match="tf32"):
        plan_case(replace(SQUARE, a=H, b=H, c=H, tf32=True))


def test_a_plan_needs_warp_tiles_to_be_enabled() -> None:
    module = load(gemm())
    warp_tiles.disable()
    try:
        with pytest.raises(warp_tiles.PlanError, match="enable"):
            warp_tiles.plan(module, arch=90)
    finally:
        warp_tiles.enable()


def test_a_module_can_be_given_in_several_ways() -> None:
    module = load(gemm())
    plans = [warp_tiles.plan(given, arch=90) for given in (module, module.__name__, wp.get_module(module.__name__))]
    assert plans[0] == plans[1] == plans[2]
    with pytest.raises(warp_tiles.PlanError, match="no Warp kernels"):
        warp_tiles.plan("nowhere", arch=90)
