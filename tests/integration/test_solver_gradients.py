"""The setting ``solver_gradients``: plans, reasons, generated source, shared memory and warnings, without a GPU."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests._warp.generate import generate
from tests.codegen.modules import macros
from tests.integration.helpers import FORWARD_ONLY, compile_module, load, solver_of
from tests.integration.plans import plan
from tests.integration.solvers import CALLS, DIFFERENTIATED, FUNCTIONS, IN_PLACE, solver
from warp_tiles._warp import installed
from warp_tiles._warp.tapes import Tapes
from warp_tiles._warp.tracer import Tracer
from warp_tiles.codegen.prelude import finished_source
from warp_tiles.errors import BuildError
from warp_tiles.gemm.problem import Role
from warp_tiles.gemm.rejected import code_of
from warp_tiles.plan.planning import ModulePlan

pytestmark = pytest.mark.usefixtures("enabled")


def own(text: str, **options: Any) -> ModulePlan:
    with warp_tiles.override(solver_gradients="own"):
        return plan(text, **options)


def functions_of(found: ModulePlan) -> dict[str, str]:
    return {planned.role.value: solver_of(planned).function for planned in found.functions}


# ---- plans


@pytest.mark.parametrize("call", CALLS)
def test_a_plan_says_which_gradients_warp_lacks(call: str) -> None:
    found = plan(solver(call))
    assert functions_of(found) == FUNCTIONS[call]
    (forward,) = (planned for planned in found.functions if planned.role is Role.FORWARD)
    if call in DIFFERENTIATED:
        assert forward.no_gradient is None
    else:
        assert code_of(forward.no_gradient) == "warp_has_no_gradient"
        assert "solver_gradients" in str(forward.no_gradient).lower()
        assert f"; no gradient: {forward.no_gradient}" in forward.reason
        shown = forward.to_json()
        assert (shown["no_gradient"], shown["no_gradient_code"]) == (str(forward.no_gradient), "warp_has_no_gradient")


def test_a_kernel_without_an_adjoint_needs_no_gradient() -> None:
    for found in (plan(solver("tile_upper_solve", decorator=FORWARD_ONLY)),
                  own(solver("tile_upper_solve", decorator=FORWARD_ONLY))):  # fmt: skip
        assert {planned.no_gradient for planned in found.functions} == {None}
        assert {planned.role for planned in found.functions if planned.needed} == {Role.FORWARD}


@pytest.mark.parametrize("call", sorted(set(CALLS) - set(DIFFERENTIATED)))
def test_only_own_templates_have_the_gradient(call: str, libmathdx_solvers: list[str]) -> None:
    with warp_tiles.override(provider="scalar"):
        (forward,) = own(solver(call)).functions
    assert code_of(forward.no_gradient) == "setting_to_change"
    assert str(forward.no_gradient).startswith("only the provider own has one: ")
    found = own(solver(call), block_dim=48).functions[0].no_gradient
    assert found is not None
    assert (found.code, found.values) == ("solver_threads", (48,))


# ---- results that the reverse pass loses

KERNEL = """
@wp.func
def solve(l: wp.tile(dtype=wp.float32, shape=(16, 16)), y: wp.tile(dtype=wp.float32, shape=(16, 4))):
    wp.tile_lower_solve_inplace(l, y)


@wp.func
def scale(y: wp.tile(dtype=wp.float32, shape=(16, 4))):
    y += y


@wp.func
def grow(y: wp.tile(dtype=wp.float32, shape=(16, 4))):
    y += y
    return wp.tile_sum(y)


@wp.func
def grow_view(y: wp.tile(dtype=wp.float32, shape=(16, 4))):
    v = wp.tile_view(y, offset=(0, 0), shape=(8, 4))
    v += v


@wp.func
def add(y: wp.tile(dtype=wp.float32, shape=(16, 4))):
    return wp.tile_sum(y)


@wp.kernel
def kernel(A: wp.array2d(dtype=wp.float32), Y: wp.array2d(dtype=wp.float32), n: int):
    l = wp.tile_load(A, shape=(16, 16), storage="shared")
    y = wp.tile_load(Y, shape=(16, 4), storage="shared")
{body}
    wp.tile_store(Y, y)
"""
SOLVE = "wp.tile_lower_solve_inplace(l, y)"
OTHER = "x = wp.tile_load(Y, shape=(16, 4))"
LOST = {
    "a parameter": (["solve(l, y)"], "solves_parameter"),
    "a tile from outside a loop": (["for i in range(n):", f"    {SOLVE}"], "solves_tile_from_outside"),
    "an addition": ([SOLVE, "y += y"], "result_changed"),
    "an axpy": ([OTHER, SOLVE, "wp.tile_axpy(2.0, x, y)"], "result_changed"),
    "a product": ([SOLVE, "wp.tile_matmul(l, y, y)"], "result_changed"),
    "a function": ([SOLVE, "scale(y)"], "result_changed"),
    "a function that returns": ([SOLVE, 'wp.printf("%f", grow(y)[0])'], "result_changed"),
    "a function that changes a view": ([SOLVE, "grow_view(y)"], "result_changed"),
    "a change in a loop": ([SOLVE, "for i in range(n):", "    y += y"], "result_changed"),
}
KEPT = {
    "two solves": [SOLVE, "wp.tile_upper_solve_inplace(wp.tile_transpose(l), y)"],
    "a change before": ["y += y", SOLVE],
    "an axpy that reads": [OTHER, SOLVE, "wp.tile_axpy(2.0, y, x)", "wp.tile_store(Y, x)"],
    "a reader": [SOLVE, "wp.tile_atomic_add(Y, y + y)", "wp.printf(\"%f\", add(y)[0])"],
    "a tile of the loop": [
        "for i in range(n):",
        '    z = wp.tile_load(Y, shape=(16, 4), storage="shared")',
        "    wp.tile_lower_solve_inplace(l, z)",
        "    wp.tile_store(Y, z)",
    ],
    "an unrolled loop": ["for i in range(2):", f"    {SOLVE}"],
    "a product that reads": [SOLVE, "z = wp.tile_matmul(l, y)", "wp.tile_store(Y, z)"],
    "a factor for several": ["wp.tile_cholesky_inplace(l)", "wp.tile_cholesky_solve_inplace(l, y)"],
}  # fmt: skip


def in_kernel(body: list[str]) -> str:
    return KERNEL.replace("{body}", "\n".join(f"    {line}" for line in body))


@pytest.mark.parametrize("name", LOST)
def test_a_result_that_the_reverse_pass_loses_has_no_gradient(name: str) -> None:
    body, code = LOST[name]
    found = own(in_kernel(body))
    (lost,) = (planned for planned in found.functions if planned.no_gradient)
    assert code_of(lost.no_gradient) == code
    assert not any(planned.role is Role.ADJOINT for planned in found.functions)
    module = load(in_kernel(body))
    with warp_tiles.override(solver_gradients="own"):
        source = finished_source(generate(module).source, found.code)
    (site,) = (name for name in macros(source) if name.endswith("_adjoint"))
    assert macros(source)[site] == "0"


def test_a_solver_that_the_trace_lacks_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tracer, "resolve_solver", lambda self, site: None)
    (planned,) = own(solver("tile_lower_solve_inplace")).functions
    assert code_of(planned.no_gradient) == "not_followed"


@pytest.mark.parametrize("name", KEPT)
def test_a_result_that_stays_has_a_gradient(name: str) -> None:
    found = own(in_kernel(KEPT[name]))
    assert {planned.no_gradient for planned in found.functions} == {None}
    assert any(planned.role is Role.ADJOINT and planned.needed for planned in found.functions)


# ---- source, memory and builds


@pytest.mark.parametrize("upper", ["", ', fill_mode="upper"'])
@pytest.mark.parametrize("call", sorted(set(CALLS) - set(DIFFERENTIATED)))
def test_the_reverse_pass_calls_the_adjoint(call: str, upper: str) -> None:
    text = solver(call, arguments=f"{CALLS[call]}{upper}" if "cholesky" in call else "")
    module = load(text)
    with warp_tiles.override(solver_gradients="own"):
        found = warp_tiles.plan(module, arch=90, block_dim=64)
        source = finished_source(generate(module).source, found.code)
    symbols = {planned.role: planned.symbol for planned in found.functions}
    assert macros(source)["wt_site0_adjoint"] == f"wt::Solver<{symbols[Role.ADJOINT]}_call>{{}}"
    template = rf"<{str(bool(upper)).lower()}>" if "cholesky" in call else ""
    tiles = (1 if call.startswith("tile_cholesky_inplace") else 2) + (call not in IN_PLACE)
    names = ", ".join([r"var_\d+"] * tiles)
    gradients = ", ".join([r"adj_\d+"] * (tiles + (call not in IN_PLACE)))
    pattern = rf"wp::adj_{call}{template}\(wt_site0_adjoint, {names}, wt_site0_adjoint, {gradients}\);"
    assert len(re.findall(pattern, source)) == 1
    assert re.search(rf"\b{call}{template}\(wt_site0_forward, {names}\);", source)


def test_shared_memory_of_an_adjoint_counts() -> None:
    def backward_bytes(found: ModulePlan) -> int:
        (memory,) = (memory for memory in found.memory if memory.direction == "backward")
        return memory.needed_bytes

    text = solver("tile_cholesky_solve")
    scratch = next(solver_of(p).scratch_bytes for p in own(text).functions if p.role is Role.ADJOINT)
    assert scratch == 2 * 17 * 4 * 4
    assert backward_bytes(own(text)) == backward_bytes(plan(text)) + scratch
    twice = text.replace("    wp.tile_store(Y, x)", "    x = wp.tile_cholesky_solve(a, x)\n    wp.tile_store(Y, x)")
    assert backward_bytes(own(twice)) == backward_bytes(plan(twice)) + scratch, "they use the memory one by one"
    large = text.replace("16", "96").replace("(96, 4)", "(96, 96)")
    assert plan(large).launch_failures == ()
    (problem,) = own(large).launch_failures
    assert problem.startswith("the backward pass of kernel solver fails: a block needs ")


def test_a_gradient_that_does_not_compile_is_an_error(
    cold: Path, tmp_path: Path, refuse_solver: Callable[[str], None]
) -> None:
    refuse_solver("upper_solve_adjoint")
    with (
        warp_tiles.override(solver_gradients="own"),
        pytest.warns(RuntimeWarning, match="upper_solve_adjoint"),
        pytest.raises(BuildError, match="Warp has no gradient of tile_upper_solve") as caught,
    ):
        compile_module(load(solver("tile_upper_solve")), tmp_path)
    assert "solver_gradients to 'warp'" in caught.value.remedy


# ---- tapes

GPU = SimpleNamespace(is_cuda=True, arch=90)


def warned(text: str, *, requires_grad: bool = True) -> list[str]:
    """The warnings of two launches on a tape."""
    module = load(text)
    planned: list[int] = []

    def planner(module: Any, arch: int, block_dim: int) -> ModulePlan:
        planned.append(arch)
        return warp_tiles.plan(module, arch=arch, block_dim=block_dim)

    tapes = Tapes(planner, installed().mentions, lambda *_: "")
    arrays = [wp.zeros((16, 16), dtype=float, device="cpu", requires_grad=requires_grad) for _ in range(2)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            tapes.warn_of_lost_gradients(module.solver, arrays, GPU, 64)
    assert len(planned) <= 1
    return [str(each.message) for each in caught]


HELPER = """
@wp.func
def factor(a: wp.tile(dtype=wp.float32, shape=(16, 16))):
    return wp.tile_cholesky_solve(a, a)
"""


@pytest.mark.parametrize("call", CALLS)
def test_a_tape_warns_once_of_a_launch_without_gradient(call: str) -> None:
    messages = warned(solver(call))
    assert len(messages) == (call not in DIFFERENTIATED)
    for message in messages:
        assert f"a tape records kernel solver, in which {call} has no gradient: Warp has none: " in message


def test_a_solver_in_a_function_counts_and_a_tape_does_not_warn_without_need() -> None:
    assert len(warned(HELPER + solver("factor", name="solver"))) == 1
    with warp_tiles.override(solver_gradients="own"):
        assert warned(solver("tile_cholesky_solve")) == []
    assert warned(solver("tile_cholesky_solve"), requires_grad=False) == []
    assert warned(solver("tile_cholesky_solve", decorator=FORWARD_ONLY)) == []


def test_a_tape_on_the_cpu_warns_too() -> None:
    module = load(solver("tile_upper_solve"), block_dim=64)
    arrays = [wp.array(np.eye(16, k, dtype=np.float32), device="cpu", requires_grad=True) for k in (16, 4)]
    with warp_tiles.override(solver_gradients="own"), wp.Tape(), pytest.warns(RuntimeWarning, match="on the CPU"):
        wp.launch_tiled(module.solver, dim=1, inputs=arrays, block_dim=64, device="cpu")
