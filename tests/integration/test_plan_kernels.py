"""Plans of products: forms of tile_matmul, generic kernels, refused operands, and needed adjoints. Nothing is built."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import warp as wp
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
from tests.integration.plans import ALL, ARCHS, HELPER, TILE, B, D, F, H, caller, needs_tf32, plan, plan_case
from tests.products import Case, make_kernel
from warp_tiles.gemm.problem import Role

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


# ---- generic kernels

LOOPS = """
from typing import Any

@wp.func
def product(A: Any, B: Any):
    c = wp.tile_zeros(shape=(16, 16), dtype=A.dtype)
    for k in range(A.shape[1] // 16):  # of the function
        a = wp.tile_load(A, shape=(16, 16), offset=(0, k * 16), storage="shared")
        b = wp.tile_load(B, shape=(16, 16), offset=(k * 16, 0), storage="shared")
        wp.tile_matmul(a, b, c)
    return c

@wp.kernel
def gemm(A: wp.array2d(dtype=Any), B: wp.array2d(dtype=wp.float64), C: wp.array2d(dtype=Any)):
    c = product(A, A)
    for k in range(B.shape[1] // 16):  # of the kernel
        a = wp.tile_load(A, shape=(16, 16), offset=(0, k * 16), storage="shared")
        wp.tile_matmul(a, a, c)
    wp.tile_store(C, c)

for dtype in (wp.float32, wp.float64):
    wp.overload(gemm, [wp.array2d(dtype=dtype), wp.array2d(dtype=wp.float64), wp.array2d(dtype=dtype)])
"""


def test_instances_of_a_generic_kernel_have_their_types_and_loops_their_lines() -> None:
    found = plan(LOOPS)
    instances = {"gemm[float32]", "gemm[float64]"}
    assert set(found.kernels) == {memory.kernel for memory in found.memory} == instances
    assert {(problem_of(v).a.dtype, v.role.value) for v in found.functions} == {*product((F, D), ALL)}
    shown = [(loop.kernel, Path(loop.file).read_text().splitlines()[loop.line - 1]) for loop in found.loops]
    assert {kernel for kernel, _ in shown} == instances
    for kernel in instances:
        assert sorted(line.partition("#")[2] for name, line in shown if name == kernel) == [
            " of the function",
            " of the kernel",
        ]


FACTORY = """
def factory(n, dtype, scale):
    @wp.kernel
    def square(A: wp.array2d(dtype=dtype), C: wp.array2d(dtype=dtype)):
        a = wp.tile_load(A, shape=(n, n))
        wp.tile_store(C, wp.tile_matmul(a, a) * dtype(scale))

    return square

kernels = [factory(16, wp.float32, 2), factory(16, wp.float64, 2), factory(32, wp.float32, 2)]
again = factory(32, wp.float32, 2)
"""


def test_kernels_of_a_factory_are_named_by_the_constants_in_which_they_differ() -> None:
    found = plan(FACTORY)
    (prefix,) = {name.partition("[")[0] for name in found.kernels}
    names = {f"{prefix}[dtype={dtype}, n={n}]" for dtype, n in (("float32", 16), ("float64", 16), ("float32", 32))}
    assert set(found.kernels) == names, "and not by scale, which they share"
    assert {memory.kernel for memory in found.memory} == names
    assert {name for planned in found.functions for name in planned.kernels} == names
    one = plan(FACTORY.replace(", factory(16, wp.float64, 2), factory(32, wp.float32, 2)", "").replace("again", "#"))
    assert one.kernels == (prefix,)


# ---- refused operands


WITHOUT_OWN: list[tuple[int | None, int, dict[str, str]]] = [
    (None, 1, {}), (90, 48, {}), *((90, 64, {"provider": name}) for name in ("cublasdx", "libmathdx", "scalar"))
]  # fmt: skip


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("a", "b", "c"), [(B, B, F), (B, F, F), (F, B, F), (B, B, B)])
def test_own_alone_adds_in_bfloat16(a: str, b: str, c: str, accumulate: bool) -> None:
    """Gradients of bfloat16 operands are sums in bfloat16, as is a bfloat16 result."""
    case = Case(16, 16, 16, a, b, c, accumulate=accumulate)
    found = plan_case(case)
    assert roles(found, needed=True) == ALL
    assert {v.provider for v in found.functions} == {"own"}
    assert {problem_of(v).c.dtype for v in found.functions} == {a, b, c}
    forward = replace(case, backward=False)
    assert roles(plan_case(forward), needed=True) == ["forward"]
    message = r"(?s)bfloat16 'out' tile.*provider 'own' does" if c == B else (
        r"(?s)bfloat16 'a' or 'b'.*enable_backward=False.* on the kernel.*provider 'own' does.* Here "
    )  # fmt: skip
    for refused in (case, forward) if c == B else (case,):
        for arch, threads, setting in WITHOUT_OWN:
            with warp_tiles.override(**setting), pytest.raises(TypeError, match=message):
                warp_tiles.plan(make_kernel(refused).module, arch=arch, block_dim=threads)


def in_bfloat16(text: str) -> str:
    for operand in ("a: wp.tile(dtype=wp.", "A: wp.array2d(dtype=wp."):
        text = text.replace(f"{operand}float32", f"{operand}bfloat16")
    return text


def test_bfloat16_in_a_helper_shared_with_a_differentiable_kernel() -> None:
    helper, inferred, trained = map(in_bfloat16, (HELPER, caller("inferred", FORWARD_ONLY), caller("trained")))
    assert roles(plan(helper + inferred + trained), needed=True) == ALL
    with warp_tiles.override(provider="cublasdx"):
        assert roles(plan(helper + inferred), needed=True) == ["forward"]
        with pytest.raises(TypeError, match="bfloat16"):
            plan(helper + inferred + trained)


BROKEN = {
    "an integer": (gemm().replace("wp.float32", "wp.int32"), Exception, "(?s)tile_matmul.*int32"),  # refused by Warp
    "a complex type": (gemm().replace("wp.float32", "wp.vec2f"), TypeError, "does not support complex tiles"),
    "other sizes": (
        gemm().replace("B, shape=(16, 16)", "B, shape=(8, 16)"),
        ValueError,
        r"(?s)sizes of A, B and C.*\(16, 16\).*\(8, 16\)",
    ),
    "a precision that is no literal": (
        gemm(call="wp.tile_matmul(a, b, precision=mode)").replace("C: wp.array2d", "mode: str, C: wp.array2d"),
        ValueError,
        "string literal 'default' or 'tf32', got a non-literal argument",
    ),
    "an unknown precision": (
        gemm(call='wp.tile_matmul(a, b, precision="bf32")'),
        ValueError,
        "'default' or 'tf32', got 'bf32'",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_tf32 if "precision" in name else ()) for name in BROKEN]
)
def test_broken_products_are_refused(name: str) -> None:
    text, error, message = BROKEN[name]
    with pytest.raises(error, match=message):
        plan(text)


def test_a_module_can_be_given_in_several_ways() -> None:
    module = load(gemm())
    plans = [warp_tiles.plan(given, arch=90) for given in (module, module.__name__, wp.get_module(module.__name__))]
    assert plans[0] == plans[1] == plans[2]
    for unknown in ("nowhere", 3):
        with pytest.raises(warp_tiles.PlanError, match=f"module {unknown!r} has no Warp kernels"):
            warp_tiles.plan(unknown, arch=90)


def test_forward_only_kernels_beside_a_differentiable_one() -> None:
    texts = gemm("again", decorator=FORWARD_ONLY), gemm("trained"), gemm("inferred", 8, 8, 8, decorator=FORWARD_ONLY)
    found = plan("".join(texts))
    assert sorted(found.kernels) == ["again", "inferred", "trained"]
    needed = {(problem_of(v).m, v.role.value): sorted(v.kernels) for v in found.functions if v.needed}
    adjoints = {(16, role): ["trained"] for role in ("adjoint_a", "adjoint_b")}
    assert needed == {(8, "forward"): ["inferred"], (16, "forward"): ["again", "trained"]} | adjoints
    for planned in found.functions:
        if not planned.needed:
            assert (problem_of(planned).m, planned.kernels, "inferred" in planned.reason) == (8, ("inferred",), True)
        elif planned.role is not Role.FORWARD:
            assert "trained" in planned.reason, "the forward-only kernel needs no adjoint"


def test_equal_products_of_several_modules_have_one_key() -> None:
    first, second = plan(gemm("first")), plan(gemm("second"))
    assert {v.key for v in first.functions} == {v.key for v in second.functions}


# a helper with a generic dtype
GENERIC_HELPER = """
@wp.func
def helper(a: wp.tile(dtype=float, shape=(16, 16)), b: wp.tile(dtype=float, shape=(16, 16))):
    return wp.tile_matmul(a, b)
"""


def test_a_helper_shared_by_a_forward_only_and_a_differentiable_kernel() -> None:
    found = plan(HELPER + caller("inferred", FORWARD_ONLY) + caller("trained"))
    assert roles(found, needed=True) == ALL
    for planned in found.functions:
        assert planned.function == "helper"
        assert problem_of(planned).alignments == (4, 4, 4), "a parameter may be a view"
        if planned.role is Role.FORWARD:
            assert sorted(planned.kernels) == ["inferred", "trained"]
        else:
            assert planned.kernels == ("trained",)
            assert "trained" in planned.reason
            assert "inferred" not in planned.reason
    assert roles(plan(HELPER + caller("trained") + caller("inferred", FORWARD_ONLY)), needed=True) == ALL


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


CUSTOM = (
    LOSS
    + """
@wp.func_grad(loss)
def adj_loss(x: wp.float32, adj_ret: wp.float32):
    {gradient}

@wp.kernel
def gemm(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    out[0] = loss(x[0])
"""
)
SCALED = "wp.adjoint[x] += 16.0 * adj_ret"
MULTIPLIED = """a = wp.tile_full(shape=(8, 8), value=adj_ret, dtype=wp.float32, storage="shared")
    b = wp.tile_ones(shape=(8, 8), dtype=wp.float32, storage="shared")
    c = wp.tile_matmul(a, b)
    wp.adjoint[x] += 16.0 * wp.tile_extract(c, 0, 0)"""


def test_a_product_inside_a_custom_gradient_is_built() -> None:
    found = plan(CUSTOM.format(gradient=MULTIPLIED))
    needed = {(problem_of(v).m, v.role.value) for v in found.functions if v.needed}
    assert needed == {(16, "forward"), (8, "forward")}
    assert {v.kernels for v in found.functions if v.needed} == {("gemm",)}


OUTER = f"""
@wp.func
def outer(a: {TILE}, b: {TILE}, c: {TILE}):
    helper(a, b, c)
"""
SQUARE = "@wp.func\ndef square(x: wp.float32):\n    return x * x\n\n"
OF_SQUARE = gemm(call="wp.tile_matmul(a, b)\n    C[0, 0] = wp.grad(square)(2.0)", decorator=FORWARD_ONLY)


@pytest.mark.parametrize(
    ("text", "options", "needed", "reason"),
    [
        (gemm(), {"enable_backward": False}, ["forward"], "module has enable_backward=False"),
        (gemm(decorator=FORWARD_ONLY), {}, ["forward"], "kernel 'gemm' has enable_backward=False"),
        (
            gemm(decorator="@wp.kernel(enable_backward=True)"), {"enable_backward": False}, ALL,
            "kernel 'gemm' has a backward pass",
        ),
        (GENERIC_HELPER + gemm(call="helper(a, b)"), {}, ALL, ""),
        (HELPER + OUTER + caller("gemm").replace("helper(", "outer("), {}, ALL, ""),
        (HELPER + OUTER + caller("gemm", FORWARD_ONLY).replace("helper(", "outer("), {}, ["forward"], ""),
        (HELPER + caller("first", FORWARD_ONLY) + caller("second", FORWARD_ONLY), {}, ["forward"], "'second'"),
        (LOSS + SLOPE, {}, ALL, "wp.grad()"),
        (LOSS + SLOPE, {"enable_backward": False}, ALL, "wp.grad()"),
        (LOSS + VALUE, {}, ["forward"], ""),
        (SQUARE + OF_SQUARE, {}, ["forward"], ""),
        (CUSTOM.format(gradient=SCALED), {}, ["forward"], ""),
    ],
    ids=[
        "module option", "kernel option", "the kernel's comes first", "returns", "helper of a helper", "forward only",
        "helper of two", "grad", "grad in a module without adjoints", "without grad", "grad of another", "custom",
    ],
)  # fmt: skip
def test_adjoints_that_are_needed(text: str, options: dict[str, bool], needed: list[str], reason: str) -> None:
    found = plan(text, **options)
    assert roles(found, needed=True) == needed
    for planned in found.functions:
        assert planned.kernels == found.kernels
        assert reason in planned.reason or planned.role is Role.FORWARD
        assert planned.needed or (planned.provider, planned.key) == ("", "")
