"""The adjoints that a plan needs, by options, shared helpers, ``wp.grad()`` and custom gradients. Nothing is built."""

import pytest

from tests.integration.helpers import FORWARD_ONLY, gemm, problem_of, roles, single_problem
from tests.integration.plans import ALL, HELPER, TILE, caller, plan
from warp_tiles.gemm.problem import Role

pytestmark = pytest.mark.usefixtures("enabled")


# ---- options


def test_a_forward_only_kernel_beside_a_differentiable_one() -> None:
    found = plan(gemm("trained", 16, 16, 16) + gemm("inferred", 8, 8, 8, decorator=FORWARD_ONLY))
    assert sorted(found.kernels) == ["inferred", "trained"]
    needed = {(problem_of(v).m, v.role.value): v.kernels for v in found.functions if v.needed}
    assert needed == {(8, "forward"): ("inferred",)} | {(16, role): ("trained",) for role in ALL}
    skipped = [v for v in found.functions if not v.needed]
    assert {problem_of(v).m for v in skipped} == {8}
    assert all("inferred" in v.reason and v.kernels == ("inferred",) for v in skipped)


def test_equal_problems_of_a_forward_only_and_a_differentiable_kernel_are_merged() -> None:
    found = plan(gemm("first", decorator=FORWARD_ONLY) + gemm("second"))
    assert roles(found, needed=True) == ALL
    assert roles(found, needed=False) == []
    assert sorted(single_problem(found, Role.FORWARD).kernels) == ["first", "second"]
    assert single_problem(found, Role.ADJOINT_A).kernels == ("second",), "the forward-only kernel needs no adjoint"
    assert "second" in single_problem(found, Role.ADJOINT_A).reason


def test_equal_products_of_several_modules_have_one_key() -> None:
    first, second = plan(gemm("first")), plan(gemm("second"))
    assert {v.key for v in first.functions} == {v.key for v in second.functions}


# ---- helpers

# a helper with a generic dtype
GENERIC_HELPER = """
@wp.func
def helper(a: wp.tile(dtype=float, shape=(16, 16)), b: wp.tile(dtype=float, shape=(16, 16))):
    return wp.tile_matmul(a, b)
"""


def test_a_helper_with_tile_arguments() -> None:
    found = plan(HELPER + caller("gemm"))
    assert roles(found, needed=True) == ALL
    for planned in found.functions:
        assert planned.function == "helper"
        assert planned.kernels == ("gemm",)
        assert problem_of(planned).alignments == (4, 4, 4), "a parameter may be a view"


def test_a_helper_shared_by_a_forward_only_and_a_differentiable_kernel() -> None:
    found = plan(HELPER + caller("inferred", FORWARD_ONLY) + caller("trained"))
    assert roles(found, needed=True) == ALL
    assert sorted(single_problem(found, Role.FORWARD).kernels) == ["inferred", "trained"]
    assert single_problem(found, Role.ADJOINT_A).kernels == ("trained",)
    assert "trained" in single_problem(found, Role.ADJOINT_A).reason
    assert "inferred" not in single_problem(found, Role.ADJOINT_A).reason
    assert roles(plan(HELPER + caller("trained") + caller("inferred", FORWARD_ONLY)), needed=True) == ALL


def test_a_helper_of_only_forward_only_kernels() -> None:
    found = plan(HELPER + caller("first", FORWARD_ONLY) + caller("second", FORWARD_ONLY) + gemm("other", 8, 8, 8))
    by_function = {(v.function, v.role.value): v.needed for v in found.functions}
    assert by_function == {
        ("helper", "forward"): True, ("helper", "adjoint_a"): False, ("helper", "adjoint_b"): False,
        ("other", "forward"): True, ("other", "adjoint_a"): True, ("other", "adjoint_b"): True,
    }  # fmt: skip
    skipped = next(v for v in found.functions if not v.needed)
    assert sorted(skipped.kernels) == ["first", "second"]
    assert "'first'" in skipped.reason
    assert "'second'" in skipped.reason


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
        (LOSS + SLOPE, {}, ALL, "wp.grad()"),
        (LOSS + SLOPE, {"enable_backward": False}, ALL, "wp.grad()"),
        (LOSS + VALUE, {}, ["forward"], ""),
        (SQUARE + OF_SQUARE, {}, ["forward"], ""),
        (CUSTOM.format(gradient=SCALED), {}, ["forward"], ""),
    ],
    ids=[
        "module option", "kernel option", "the kernel's comes first", "returns", "helper of a helper", "forward only",
        "grad", "grad in a module without adjoints", "without grad", "grad of another", "custom gradient",
    ],
)  # fmt: skip
def test_adjoints_that_are_needed(text: str, options: dict[str, bool], needed: list[str], reason: str) -> None:
    found = plan(text, **options)
    assert roles(found, needed=True) == needed
    for planned in found.functions:
        assert planned.kernels == found.kernels
        assert reason in planned.reason or planned.role is Role.FORWARD
        assert planned.needed or (planned.provider, planned.key) == ("", "")
