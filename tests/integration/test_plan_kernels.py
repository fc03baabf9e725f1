"""Plans of generic kernels, and refused operands. Nothing is built."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import FORWARD_ONLY, gemm, load, problem_of, roles
from tests.integration.plans import ALL, HELPER, B, D, F, caller, needs_tf32, plan, plan_case
from tests.products import Case, make_kernel

pytestmark = pytest.mark.usefixtures("enabled")


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


def test_a_module_without_products_has_an_empty_plan() -> None:
    found = plan("@wp.kernel\ndef copy(x: wp.array(dtype=float)):\n    x[0] = 1.0\n")
    assert (found.kernels, found.functions) == (("copy",), ())


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
    for given in ("nowhere", 3):
        with pytest.raises(warp_tiles.PlanError, match=f"module {given!r} has no Warp kernels"):
            warp_tiles.plan(given, arch=90)
