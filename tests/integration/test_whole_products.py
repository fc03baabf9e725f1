"""Kernels that are a product of whole arrays: the plan, and gradients on a tape that need no adjoint kernel."""

import gc
import logging
import warnings
import weakref
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import CPU, Values, integers, on
from tests.integration.helpers import load
from tests.whole_kernels import LOAD_A, LOAD_B, OTHERS, WHOLE, Whole, kernel
from warp_tiles._warp import installed
from warp_tiles._warp.tapes import TapeProduct, Tapes
from warp_tiles.array_products import prepared as prepared_module
from warp_tiles.array_products.backward import Backward, gemm_gradients
from warp_tiles.codegen.whole import LEAST_WORK
from warp_tiles.gemm.rejected import Rejected, code_of
from warp_tiles.plan.planner import DETERMINISTIC_GRADIENTS, WHOLE_GRADIENTS
from warp_tiles.reports.descriptions import loop_rows

pytestmark = pytest.mark.usefixtures("enabled")
M, N, K = 70, 50, 144
THREADS = 64
GPU: Any = SimpleNamespace(is_cuda=True, arch=90)


def plan_of(text: str) -> tuple[Any, warp_tiles.ModulePlan]:
    module = load(text)
    return module.multiply, warp_tiles.plan(module, arch=90, block_dim=THREADS)


def blocks(form: Whole) -> tuple[int, int]:
    tiles = -(-M // 32), -(-N // 16)
    return tiles[::-1] if form.swapped else tiles


def arguments(form: Whole) -> tuple[list[Any], Values, Values]:
    """The arguments of a launch, and A and B."""
    a, b = integers(1, M, K, most=1), integers(2, K, N, most=1)
    dtype, result = getattr(wp, form.dtype), getattr(wp, form.result)
    arrays = [
        on(a.T if form.a_transposed else a, dtype, requires_grad=True),
        on(b.T if form.b_transposed else b, dtype, requires_grad=True),
        on(np.zeros((M, N)), result, requires_grad=True),
    ]
    return [*arrays[:2], K, arrays[2]], a, b


def launched(multiply: Any, values: list[Any], dim: tuple[int, int] = (3, 4)) -> wp.Tape:
    """A tape with a launch on the CPU."""
    tape = wp.Tape()
    with tape:
        wp.launch_tiled(multiply, dim=dim, inputs=values[:3], outputs=values[3:], block_dim=THREADS, device=CPU)
    return tape


def usual() -> tuple[Any, warp_tiles.ModulePlan, list[Any]]:
    """A kernel that is a whole product, its plan, and the arguments of a launch."""
    return *plan_of(kernel()), arguments(WHOLE["bounds from a shape"])[0]


def gradients_of(
    plan: warp_tiles.ModulePlan, values: list[Any], grid: tuple[int, int], least: int = 0
) -> Backward | Rejected:
    """The gradients of a launch, or the reason why its adjoint kernel computes them."""
    shapes = [value if isinstance(value, int) else tuple(value.shape) for value in values]
    return gemm_gradients(plan.whole_products["multiply"], values, shapes, grid, least)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_products_are_recognised(name: str) -> None:
    form = WHOLE[name]
    _, plan = plan_of(form.text)
    assert [loop.gradients for loop in plan.loops] == [WHOLE_GRADIENTS]
    found = plan.whole_products["multiply"]
    assert found.tile == (32, 16, 8)
    assert (found.a.transposed, found.b.transposed) == (form.a_transposed, form.b_transposed)
    assert (found.row_axis, found.column_axis) == ((1, 0) if form.swapped else (0, 1))
    values, _, _ = arguments(form)
    shapes = [value if isinstance(value, int) else tuple(value.shape) for value in values]
    assert found.reason_unsupported(blocks(form), shapes) is None


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels_have_a_reason(name: str) -> None:
    text, code = OTHERS[name]
    _, plan = plan_of(text)
    assert plan.whole_products == {}
    assert len(plan.loops) >= 1
    for loop in plan.loops:
        assert loop.gradients.startswith("the adjoint kernel: "), loop
        assert loop.gradients_code == code, loop


def test_a_kernel_without_an_adjoint_has_no_gradients() -> None:
    _, plan = plan_of(kernel(options="(enable_backward=False)"))
    assert (plan.loops[0].gradients, plan.whole_products) == ("", {})
    assert loop_rows(plan.to_json())[0][-1] == ""


def test_the_table_shows_how_gradients_are_computed_and_the_setting_is_a_reason() -> None:
    _, plan = plan_of(kernel())
    gradients = loop_rows(plan.to_json())[0][-1]
    assert WHOLE_GRADIENTS in gradients
    assert "no stages:" in gradients
    with warp_tiles.override(gemm_gradients="off"):
        _, plan = plan_of(kernel())
    assert plan.loops[0].gradients_code == "setting_to_change"


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_gradients_equal_those_of_the_adjoint_kernel(name: str) -> None:
    form = WHOLE[name]
    multiply, plan = plan_of(form.text)
    g = on(integers(3, M, N, most=1), getattr(wp, form.result))
    found = []
    for is_whole in (False, True):
        values, a, b = arguments(form)
        tape = launched(multiply, values, blocks(form))
        assert np.array_equal(values[3].numpy(), a @ b)
        if is_whole:
            backward = gradients_of(plan, values, blocks(form))
            assert isinstance(backward, Backward)
            tape.launches[-1] = TapeProduct(tape.launches[-1], tape, backward)
        values[3].grad.assign(g)
        tape.backward()
        # on the CPU, numpy() shares the memory that the tape zeroes
        found.append([values[index].grad.numpy().copy() for index in (0, 1, 3)])
        tape.zero()
        assert not values[0].grad.numpy().any()
    for expected, gradient in zip(*found):
        assert np.array_equal(expected, gradient)
    assert found[1][0].any()
    assert found[1][1].any()
    assert not found[1][2].any()


def sliding(rows: int, columns: int, step: int = 4) -> Any:
    """A matrix whose rows begin ``step`` bytes after each other, and its gradient."""
    strides = {"shape": (rows, columns), "strides": (step, 4), "dtype": float, "device": CPU}
    memory = [wp.zeros(rows + columns, dtype=float, device=CPU) for _ in range(2)]
    gradient = wp.array(ptr=memory[1].ptr, **strides)
    found = wp.array(ptr=memory[0].ptr, grad=gradient, **strides)
    found.memory = memory
    return found


def changed(values: list[Any], change: str) -> tuple[list[Any], tuple[int, int]]:
    """The arguments and blocks of a launch that is not the whole product."""
    grid = blocks(WHOLE["bounds from a shape"])
    if change == "fewer blocks":
        return values, (grid[0] - 1, grid[1])
    if change == "a part of K":
        values[2] = K - 8
    elif change == "another shape":
        values[3] = wp.zeros((M - 32, N), dtype=float, device=CPU, requires_grad=True)
    elif change == "C overlaps A":
        values[3] = values[0][:, :N]
    elif change == "A slides":
        values[0] = sliding(M, K)
    elif change == "A is one row":
        values[0] = sliding(M, K, 0)
    elif change == "K is empty":
        values[0], values[1] = (on(np.zeros(shape), requires_grad=True) for shape in ((M, 0), (0, N)))
        values[2] = 0
    return values, grid


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        ("fewer blocks", "blocks_do_not_cover", (2, 4)),
        ("a part of K", "steps_do_not_cover", 17),
        ("another shape", "shapes", None),
        ("C overlaps A", "unsuitable_arguments", "overlaps out in memory"),
        ("A slides", "unsuitable_arguments", "strides (4, 4): elements share memory"),
        ("A is one row", "unsuitable_arguments", "strides (0, 4): elements share memory"),
        ("K is empty", "little_work", 0),
    ],
)
def test_a_launch_that_is_not_whole_has_a_reason(change: str, code: str, value: Any) -> None:
    _, plan = plan_of(WHOLE["a size as argument"].text)
    values, grid = changed(arguments(WHOLE["a size as argument"])[0], change)
    found = gradients_of(plan, values, grid)
    assert isinstance(found, Rejected)
    assert found.code == code
    assert value in (None, found.values[0]) or value in found.values[0]


def test_small_products_and_captures_of_products_that_are_not_built_keep_the_adjoint_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, plan, values = usual()
    assert gradients_of(plan, values, (3, 4), LEAST_WORK) == Rejected("little_work", (M * N * K, LEAST_WORK))
    monkeypatch.setattr(Backward, "is_prepared", lambda self: False)
    monkeypatch.setattr(Backward, "prepare", lambda self: pytest.fail("a kernel was built"))
    monkeypatch.setattr(type(values[3].device), "is_capturing", True)
    assert code_of(gradients_of(plan, values, (3, 4))) == "capturing"


# ---- the hook


def recorder() -> tuple[Tapes, list[int]]:
    planned: list[int] = []

    def plan(module: Any, arch: int, block_dim: int) -> warp_tiles.ModulePlan:
        planned.append(arch)
        return warp_tiles.plan(module, arch=arch, block_dim=block_dim)

    return Tapes(plan, lambda kernel, names: False, gemm_gradients), planned


def asked(
    text: str = kernel(),
    *,
    mode: str = "always",
    dim: tuple[int, ...] = (3, 4, THREADS),
    device: Any = GPU,
    requires_grad: bool = True,
    more: tuple[Any, ...] = (),
    options: dict[str, Any] | None = None,
) -> tuple[list[bool], list[int]]:
    """For two launches, whether products compute the gradients, and the architectures that were planned for."""
    tapes, planned = recorder()
    multiply, _ = plan_of(text)
    multiply.module.options.update(options or {})
    values = arguments(WHOLE["bounds from a shape"])[0]
    for array in (values[0], values[1], values[3]):
        array.requires_grad = requires_grad
    values[3:3] = more
    with warp_tiles.override(gemm_gradients=mode):
        found = [tapes.gradients(multiply, [*dim], values, device, THREADS) for _ in range(2)]
    return [isinstance(one, Backward) for one in found], planned


OTHER_ARRAY = kernel().replace("n: int,", "n: int, D: wp.array2d(dtype=wp.float32),")
OTHER_NUMBER = (
    WHOLE["a size as argument"].text.replace("n: int,", "n: wp.int64,").replace("(n + 7)", "int(n + wp.int64(7))")
)
DETERMINISTIC = {"deterministic": getattr(wp, "DeterministicMode", bool)(1)}
needs_deterministic = pytest.mark.skipif(
    not hasattr(wp, "DeterministicMode"), reason="Warp has no deterministic mode before 1.19"
)


@pytest.mark.parametrize(
    ("launch", "by_products", "is_planned"),
    [
        ({}, True, True),
        ({"mode": "auto"}, False, False),  # a small product
        ({"mode": "off"}, False, False),
        ({"requires_grad": False}, False, False),
        ({"dim": (3, 4)}, False, False),  # without tiles
        ({"device": SimpleNamespace(is_cuda=False, arch=None)}, False, False),
        ({"text": OTHER_ARRAY, "more": (on(np.zeros((2, 2))),)}, True, True),
        ({"text": OTHER_NUMBER}, False, True),  # a number of another type decides no range
        *(
            pytest.param({"mode": mode, "options": DETERMINISTIC}, expected, expected, marks=needs_deterministic)
            for mode, expected in (("auto", True), ("always", True), ("off", False))
        ),
    ],
    ids=str,
)
def test_a_kernel_is_planned_once_if_products_may_compute_its_gradients(
    launch: dict[str, Any], by_products: bool, is_planned: bool
) -> None:
    assert asked(**launch) == ([by_products] * 2, [90] * is_planned)


def test_kernels_of_a_factory_have_their_own_products() -> None:
    loads = (LOAD_A.replace("8", "step"), LOAD_B.replace("8", "step"))
    text = indent(kernel(head="for k in range(0, A.shape[1], step):", loads=loads), "    ")
    text = f"def factory(step):\n{text}\n    return multiply\n\nkernels = factory(8), factory(16)\n"
    tapes, _ = recorder()
    *_, values = usual()
    with warp_tiles.override(gemm_gradients="always"):
        for one in load(text).kernels:
            assert isinstance(tapes.gradients(one, [3, 4, THREADS], values, GPU, THREADS), Backward)


def test_the_log_says_once_why_a_launch_has_its_adjoint_kernel(caplog: pytest.LogCaptureFixture) -> None:
    tapes, _ = recorder()
    multiply, _, values = usual()
    with warp_tiles.override(gemm_gradients="always"), caplog.at_level(logging.INFO, "warp_tiles"):
        for _ in range(2):
            assert tapes.gradients(multiply, [2, 4, THREADS], values, GPU, THREADS) is None
    (message,) = [record.getMessage() for record in caplog.records if "computes the gradients" in record.getMessage()]
    assert message.startswith(
        "kernel multiply: its adjoint kernel computes the gradients: (2, 4) blocks do not cover C"
    )


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_tape_records_the_product_which_runs_the_adjoint_kernel_if_it_is_not_prepared(
    is_prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply, plan, values = usual()

    def of_products(tapes: Tapes, kernel: Any, dim: Any, values: list[Any], *_: Any) -> Backward | Rejected:
        return gradients_of(plan, values, tuple(dim[:2]))

    monkeypatch.setattr(Tapes, "gradients", of_products)
    tape = launched(multiply, values)
    (launch,) = tape.launches
    assert isinstance(launch, TapeProduct)
    assert launch[0] is multiply
    if not is_prepared:
        monkeypatch.setattr(Backward, "__call__", lambda self: pytest.fail("the products were launched"))
        monkeypatch.setattr(prepared_module, "_prepared", {})
    g, a, b = integers(3, M, N), values[0].numpy(), values[1].numpy()
    tape.backward(grads={values[3]: on(g)})
    assert np.array_equal(values[0].grad.numpy(), g @ b.T)
    assert np.array_equal(values[1].grad.numpy(), a.T @ g)
    assert set(tape.gradients) == {values[0], values[1], values[3]}


def test_a_tape_is_freed_with_its_last_reference() -> None:
    multiply, plan, values = usual()
    tape = launched(multiply, values)
    tape.launches[-1] = TapeProduct(tape.launches[-1], tape, gradients_of(plan, values, (3, 4)))
    alive = weakref.ref(tape)
    gc.disable()
    try:
        del tape
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("device", ["cpu", None])
def test_launches_can_be_recorded_by_hand(device: Any) -> None:
    multiply, _, values = usual()
    tape = wp.Tape()
    with wp.ScopedDevice(CPU):
        tape.record_launch(multiply, [3, 4, 1], 0, values[:3], values[3:], device)
    assert tape.launches[0][5] == wp.get_device(CPU)


@needs_deterministic
def test_the_plan_of_a_deterministic_module_says_how_gradients_are_ordered() -> None:
    def planned(text: str, **settings: Any) -> tuple[str, str]:
        module = load(text)
        wp.set_module_options({"deterministic": wp.DeterministicMode.RUN_TO_RUN}, module=module)
        with warp_tiles.override(**settings):
            (loop, *_) = warp_tiles.plan(module, arch=90, block_dim=THREADS).loops
        return loop.gradients, loop.gradients_code

    unordered = "the adjoint kernel, whose additions to the gradients of loaded arrays have no fixed order"
    assert planned(kernel()) == (f"{DETERMINISTIC_GRADIENTS}; else {unordered}", "")
    text, code = planned(kernel(), gemm_gradients="off")
    assert (text.partition(": ")[0], code) == (unordered, "setting_to_change")
    other, expected = next(iter(OTHERS.values()))
    text, code = planned(other)
    assert (text.partition(": ")[0], code) == (unordered, expected)


COPY = """
@wp.kernel
def copy(A: wp.array2d(dtype=float), B: wp.array2d(dtype=float)):
    i, j = wp.tid()
    wp.tile_store(B, wp.tile_load(A, shape=(8, 8)), offset=(8 * i, 8 * j))
"""


LOAD = "wp.tile_load(A, shape=(8, 8))"


@pytest.mark.parametrize(
    ("kernel_text", "gradients", "deterministic", "warns"),
    [
        (COPY, (True, True), True, True),
        (COPY, (True, True), False, False),
        (COPY, (False, True), True, False),
        (COPY.replace(LOAD, "wp.tile_load_indexed(A, wp.tile_arange(8, dtype=int), shape=(8, 8))"), (True, True), True,
         True),
        (COPY.replace("@wp.kernel", "@wp.kernel(enable_backward=False)"), (True, True), True, False),
        (COPY.replace(LOAD, "wp.tile_zeros(shape=(8, 8), dtype=float)"), (True, True), True, False),
    ],
    ids=["all", "any order", "no gradient of A", "indexed", "forward alone", "without a load"],
)  # fmt: skip
def test_a_tape_warns_once_of_gradients_without_an_order(
    kernel_text: str, gradients: tuple[bool, bool], *, deterministic: bool, warns: bool
) -> None:
    tapes = Tapes(lambda *_: None, installed().mentions, lambda *_: "")
    copy = load(kernel_text).copy
    copy.module.options["deterministic"] = deterministic
    values = [wp.zeros((8, 8), dtype=float, device=CPU, requires_grad=requires_grad) for requires_grad in gradients]
    tape = SimpleNamespace(launches=[[copy, (1, 1, 64), 0, values[:1], values[1:], GPU, 64]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            tapes._record_launch(lambda *_: None, tape)
    found = [str(each.message) for each in caught]
    assert len(found) == warns
    assert all("tile_load adds atomically" in text and "warp_tiles.matmul" in text for text in found)
