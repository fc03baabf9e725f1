"""Kernels that are a product of whole arrays: the plan, and gradients on a tape that need no adjoint kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import load
from tests.product.cases import CPU, Values, integers, on
from tests.whole_kernels import OTHERS, WHOLE, Whole, kernel
from warp_tiles._warp.tapes import RecordedProduct, Tapes
from warp_tiles.codegen.module import WHOLE_GRADIENTS
from warp_tiles.plan.whole import LEAST_WORK
from warp_tiles.product.backward import Backward
from warp_tiles.product.whole import whole_gradients

M, N, K = 70, 50, 144
THREADS = 64
GPU: Any = SimpleNamespace(is_cuda=True, arch=90)


@pytest.fixture(autouse=True)
def enabled() -> Any:
    with warp_tiles.enabled():
        yield


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
    assert found.obstacle(blocks(form), shapes) == ""


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels_have_a_reason(name: str) -> None:
    text, reason = OTHERS[name]
    _, plan = plan_of(text)
    assert plan.whole_products == {}
    assert len(plan.loops) >= 1
    for loop in plan.loops:
        assert loop.gradients.startswith("the adjoint kernel: "), loop
        assert reason in loop.gradients, loop


def test_the_setting_is_a_reason() -> None:
    with warp_tiles.override(whole_gradients="off"):
        _, plan = plan_of(kernel())
    assert plan.loops[0].gradients == "the adjoint kernel: the setting whole_gradients (override()) is 'off'"


def test_a_kernel_without_an_adjoint_has_no_gradients() -> None:
    _, plan = plan_of(kernel(options="(enable_backward=False)"))
    assert (plan.loops[0].gradients, plan.whole_products) == ("", {})


@pytest.mark.parametrize("name", WHOLE)
def test_gradients_equal_those_of_the_adjoint_kernel(name: str) -> None:
    form = WHOLE[name]
    multiply, plan = plan_of(form.text)
    g = on(integers(3, M, N, most=1), getattr(wp, form.result))
    found = []
    for is_whole in (False, True):
        values, a, b = arguments(form)
        tape = wp.Tape()
        with tape:
            wp.launch_tiled(multiply, dim=blocks(form), inputs=values, block_dim=THREADS, device=CPU)
        assert np.array_equal(values[3].numpy(), a @ b)
        if is_whole:
            backward = whole_gradients(plan.whole_products["multiply"], values, blocks(form), 0)
            assert isinstance(backward, Backward)
            tape.launches[-1] = RecordedProduct(tape.launches[-1], tape, backward)
        values[3].grad.assign(g)
        tape.backward()
        found.append([values[0].grad.numpy(), values[1].grad.numpy(), values[3].grad.numpy()])
        tape.zero()
        assert not values[0].grad.numpy().any()
    for expected, gradient in zip(*found):
        assert np.array_equal(expected, gradient)
    assert not found[1][2].any()


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
    return values, grid


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("fewer blocks", "blocks do not cover C"),
        ("a part of K", "do not cover K = 144"),
        ("another shape", "A, B and C have shapes"),
        ("C overlaps A", "overlaps out in memory"),
    ],
)
def test_a_launch_that_is_not_whole_has_a_reason(change: str, reason: str) -> None:
    _, plan = plan_of(WHOLE["a size as argument"].text)
    values, grid = changed(arguments(WHOLE["a size as argument"])[0], change)
    found = whole_gradients(plan.whole_products["multiply"], values, grid, 0)
    assert isinstance(found, str)
    assert reason in found


def test_small_products_keep_their_adjoint_kernels() -> None:
    _, plan = plan_of(kernel())
    found = whole_gradients(plan.whole_products["multiply"], arguments(WHOLE["bounds from a shape"])[0], (3, 4))
    assert found == f"{M * N * K} multiplications are fewer than {LEAST_WORK}"


# ---- the hook


def recorder() -> tuple[Tapes, list[int]]:
    planned: list[int] = []

    def plan(module: Any, arch: int, block_dim: int) -> warp_tiles.ModulePlan:
        planned.append(arch)
        return warp_tiles.plan(module, arch=arch, block_dim=block_dim)

    return Tapes(plan, whole_gradients), planned


def test_a_kernel_is_planned_once() -> None:
    tapes, planned = recorder()
    multiply, _ = plan_of(kernel())
    values, _, _ = arguments(WHOLE["bounds from a shape"])
    with warp_tiles.override(whole_gradients="always"):
        for _ in range(2):
            assert isinstance(tapes.gradients(multiply, [3, 4, THREADS], values, GPU, THREADS), Backward)
    assert planned == [90]


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_small_products_are_not_planned(mode: str) -> None:
    tapes, planned = recorder()
    multiply, _ = plan_of(kernel())
    values, _, _ = arguments(WHOLE["bounds from a shape"])
    with warp_tiles.override(whole_gradients=mode):
        assert tapes.gradients(multiply, [3, 4, THREADS], values, GPU, THREADS) is None
    assert planned == []


def test_launches_without_gradients_or_tiles_are_not_planned() -> None:
    tapes, planned = recorder()
    multiply, _ = plan_of(kernel())
    values, a, b = arguments(WHOLE["bounds from a shape"])
    plain = [on(a), on(b), K, on(np.zeros((M, N)))]
    with warp_tiles.override(whole_gradients="always"):
        assert tapes.gradients(multiply, [3, 4, THREADS], plain, GPU, THREADS) is None
        assert tapes.gradients(multiply, [3, 4], values, GPU, THREADS) is None
        assert tapes.gradients(multiply, [3, 4, THREADS], values, wp.get_device(CPU), THREADS) is None
    assert planned == []


def test_a_tape_records_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    tapes, _ = recorder()
    multiply, _ = plan_of(kernel())
    monkeypatch.setattr(
        Tapes,
        "gradients",
        lambda self, kernel, dim, values, device, block_dim: whole_gradients(
            tapes._whole_product(kernel, 90, THREADS), values, dim[:2], 0
        ),
    )
    values, a, b = arguments(WHOLE["bounds from a shape"])
    g = integers(3, M, N)
    with wp.Tape() as tape:
        wp.launch_tiled(multiply, dim=(3, 4), inputs=values[:3], outputs=values[3:], block_dim=THREADS, device=CPU)
    (launch,) = tape.launches
    assert isinstance(launch, RecordedProduct)
    assert launch[0] is multiply
    tape.backward(grads={values[3]: on(g)})
    assert np.array_equal(values[0].grad.numpy(), g @ b.T)
    assert np.array_equal(values[1].grad.numpy(), a.T @ g)
    assert set(tape.gradients) == {values[0], values[1], values[3]}
