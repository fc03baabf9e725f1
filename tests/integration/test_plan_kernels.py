"""Plans of generic kernels, and refused operands. Nothing is built."""

from dataclasses import replace
from pathlib import Path

import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import FORWARD_ONLY, gemm, load, problem_of, roles, single_problem
from tests.integration.plans import ALL, HELPER, B, D, F, H, caller, needs_tf32, plan, plan_case
from tests.products import Case, make_kernel
from warp_tiles.gemm.problem import Role

pytestmark = pytest.mark.usefixtures("enabled")


# ---- generic kernels

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
    assert sorted((problem_of(v).a.dtype, v.role.value) for v in found.functions) == sorted(
        (dtype, role) for dtype in (H, D) for role in ALL
    )


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


def test_a_generic_kernel_without_overloads_needs_nothing() -> None:
    text = "from typing import Any\n\n" + GENERIC.partition("for dtype")[0]
    assert plan(text).functions == ()


def test_a_module_without_products_has_an_empty_plan() -> None:
    found = plan("@wp.kernel\ndef copy(x: wp.array(dtype=float)):\n    x[0] = 1.0\n")
    assert (found.kernels, found.functions) == (("copy",), ())


# ---- refused operands


def test_bfloat16_in_a_forward_only_kernel() -> None:
    found = plan_case(Case(16, 16, 16, B, B, F, backward=False))
    assert roles(found, needed=True) == ["forward"]
    assert problem_of(single_problem(found, Role.FORWARD)).a.dtype == B


WITHOUT_MMA = [{"provider": name} for name in ("cublasdx", "libmathdx", "scalar")]


@pytest.mark.parametrize(("a", "b"), [(B, B), (B, F), (F, B)])
def test_bfloat16_in_a_differentiable_kernel(a: str, b: str) -> None:
    found = plan_case(Case(16, 16, 16, a, b, F))
    assert roles(found, needed=True) == ALL
    assert {v.provider for v in found.functions} == {"own"}
    assert {problem_of(v).c.dtype for v in found.functions} == {a, b, F}


@pytest.mark.parametrize(
    ("a", "b", "arch", "threads", "setting"),
    [
        *((B, B, None, 1, {}), (B, B, 90, 48, {}), (B, F, 90, 16, {}), (F, B, 90, 16, {})),
        *((B, B, 90, 64, setting) for setting in WITHOUT_MMA),
    ],
)
def test_bfloat16_in_a_differentiable_kernel_where_mma_cannot_serve(
    a: str, b: str, arch: int | None, threads: int, setting: dict[str, str]
) -> None:
    kernel = make_kernel(Case(16, 16, 16, a, b, F))
    message = r"(?s)bfloat16 'a' or 'b'.*enable_backward=False.* on the kernel.*provider 'own' does.* Here "
    with warp_tiles.override(**setting), pytest.raises(TypeError, match=message):
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
    assert {v.provider for v in found.functions} == {"own"}
    assert {problem_of(v).c.dtype for v in found.functions} == {B}
    refusing: list[tuple[int | None, int, dict[str, str]]] = [(None, 1, {}), (90, 48, {})]
    refusing += [(90, 64, setting) for setting in WITHOUT_MMA]
    for backward in (False, True):
        for arch, threads, setting in refusing:
            kernel = make_kernel(replace(case, backward=backward))
            with warp_tiles.override(**setting), pytest.raises(TypeError, match=r"(?s)bfloat16 'out' tile.*'own' does"):
                warp_tiles.plan(kernel.module, arch=arch, block_dim=threads)


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
    for given in ("nowhere", 3):
        with pytest.raises(warp_tiles.PlanError, match=f"module {given!r} has no Warp kernels"):
            warp_tiles.plan(given, arch=90)
