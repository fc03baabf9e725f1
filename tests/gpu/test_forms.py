"""The kernels that the emulator launches too, on a GPU: loop forms, computed stores, blocked solves, random kernels."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.blocked_solves import BLOCKS, MOST, matrices, solution, text
from tests.computed_kernels import BODIES, REVERSED, SIZES, TYPES, Case, Values
from tests.form_gradients import wrong_gradients
from tests.integration.helpers import load
from tests.loop_forms import FORMS, SPELLINGS, Form, K, M, N, in_half
from tests.random_kernels import shared_names
from tests.random_kernels.execute import difference, execute, import_kernel, of_model
from tests.random_kernels.generate import draw
from tests.random_kernels.run import main

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]
OPTIONS: dict[str, dict[str, Any]] = {
    "lineinfo": {"lineinfo": True},
    "fast_math": {"fast_math": True},
    "max_unroll": {"max_unroll": 4},
    "debug": {"mode": "debug"},
}


# ---- loops of products: results and gradients are exact, whatever the plan decides


def check(form: Form, gpu: str, threads: int, *, half: bool = False, **options: Any) -> None:
    draw = np.random.default_rng(1)
    a, b, g = (draw.integers(1, 4, shape) * draw.choice([-1, 1], shape) for shape in ((M, K), (K, N), (M, N)))
    given, backward = b.T.copy() if form.b_transposed else b, form.differentiable and not half
    with warp_tiles.enabled():
        kernel = load(in_half(form.text) if half else form.text, block_dim=threads, **options).multiply
        dtype = wp.float16 if half else wp.float32
        arrays = [wp.array(values, dtype=dtype, device=gpu, requires_grad=backward) for values in (a, given)]
        c = wp.full((M, N), np.nan, dtype=wp.float32, device=gpu, requires_grad=backward)
        with wp.Tape() as tape:
            wp.launch_tiled(kernel, dim=(M // 32, N // 32), inputs=arrays, outputs=[c], block_dim=threads, device=gpu)
        assert np.array_equal(c.numpy(), form.expected(a.astype(float), b.astype(float)))
        if backward:
            c.grad.assign(g.astype(np.float32))
            tape.backward()
            of_a, of_b = (array.grad.numpy() for array in arrays)
            assert not wrong_gradients(form, a, b, g, of_a, of_b.T if form.b_transposed else of_b)


@pytest.mark.parametrize("name", FORMS)
def test_loops(name: str, gpu: str) -> None:
    check(FORMS[name], gpu, 64)


HALF_FORMS = [name for name, form in FORMS.items() if "= wp.tile_matmul" not in form.text and form.has_half]


@pytest.mark.parametrize("name", HALF_FORMS)
def test_loops_of_float16_operands(name: str, gpu: str) -> None:
    check(FORMS[name], gpu, 64, half=True)


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("options", OPTIONS)
def test_options(name: str, options: str, gpu: str) -> None:
    check(SPELLINGS[name], gpu, 128, **OPTIONS[options])


# ---- stores of computed tiles


@pytest.mark.parametrize("out", TYPES)
@pytest.mark.parametrize("form", BODIES)
def test_computed_stores(form: str, out: str, gpu: str) -> None:
    with warp_tiles.enabled():
        case = Case(form, out, "whole")
        kernel = load(case.functions() + case.text("store"), block_dim=64).store
        for size in SIZES:
            a, b, before, expected = Case(form, out, size).arrays()
            c = wp.array(before, dtype=getattr(wp, out), device=gpu)
            arrays = [wp.array(values, device=gpu) for values in (a, b)]
            wp.launch_tiled(kernel, dim=(2, 2), inputs=[*arrays, c, 1], block_dim=64, device=gpu)
            assert np.array_equal(c.numpy(), expected), size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", REVERSED)
def test_rounding_and_gradients_are_those_of_warp(form: str, size: str, gpu: str) -> None:
    """The compiler may fuse a product and a sum in one of the kernels only."""
    for ours, warps in zip(_rounded(form, size, gpu, hooked=True), _rounded(form, size, gpu, hooked=False)):
        assert np.any(warps != 0)
        np.testing.assert_allclose(ours, warps, rtol=2e-3, atol=2e-3)


def _rounded(form: str, size: str, gpu: str, *, hooked: bool) -> list[Values]:
    """C and the gradients of A and B."""
    out, source = REVERSED[form]
    a, b, before, _ = Case("direct", out, size).arrays()
    with warp_tiles.enabled() if hooked else nullcontext():
        kernel = load(source, block_dim=64).rounded
        arrays = [wp.array(values, device=gpu, requires_grad=True) for values in (a, b, before)]
        with wp.Tape() as tape:
            wp.launch_tiled(kernel, dim=(2, 2), inputs=[*arrays, 1], block_dim=64, device=gpu)
        stored = arrays[2].numpy()
        arrays[2].grad = wp.array(np.ones_like(before), device=gpu)
        tape.backward()
        return [stored, arrays[0].grad.numpy(), arrays[1].grad.numpy()]


# ---- blocked factorizations, solves and inverses as clients write them, compared with float64


@pytest.mark.parametrize("main_loop", ["auto", "stages=3"])
@pytest.mark.parametrize("threads", [64, 128])
@pytest.mark.parametrize(("dtype", "atol"), [("float32", 2e-5), ("float64", 1e-12)])
def test_blocked_solves_and_inverses(dtype: str, atol: float, threads: int, main_loop: str, gpu: str) -> None:
    count = 40
    with warp_tiles.enabled(), warp_tiles.override(main_loop=main_loop):
        module = load(text(dtype), block_dim=threads)

        def check(kernel: str, given: list[Any], outputs: list[Any], expected: Values) -> None:
            for _ in range(3):  # a race need not show in one launch
                launched = {"dim": count, "block_dim": threads, "device": gpu}
                wp.launch_tiled(getattr(module, kernel), inputs=given, outputs=outputs, **launched)
                np.testing.assert_allclose(outputs[1].numpy(), expected, rtol=0, atol=atol)

        for n, size in itertools.product(BLOCKS, (32, MOST)):
            a, b = matrices(size, count, dtype)
            x, y = (wp.array(values, device=gpu) for values in (a, b))
            check(f"solve_{n}", [x, y, size], [wp.zeros_like(x), wp.zeros_like(y)], solution(a, b, size))
            lower = np.linalg.cholesky(a[:, :size, :size].astype(np.float64))
            x, y = (wp.array(values.astype(dtype), device=gpu) for values in (lower, np.eye(size)))
            inverse = np.linalg.inv(lower @ lower.swapaxes(1, 2))
            check(f"invert_{n}", [x, y, size], [wp.zeros_like(x), wp.zeros_like(x)], inverse)


# ---- random kernels, compared with Warp's CPU device: exactly equal, gradients too


def test_random_kernels_agree_with_the_cpu(gpu: str, tmp_path: Path) -> None:
    stored, count = tmp_path / "out.json", 60
    status = main(["--count", str(count), "--device", gpu, "--jobs", "4", "--json", str(stored)])
    found = json.loads(stored.read_text())
    assert status == 0, found["differing"]
    assert found["done"] == count
    assert found["refused"] <= 0.03 * count, found["refused_by_reason"]
    assert found["with_gradients"] == sum(draw(seed).gradients for seed in range(count))


def test_loops_with_the_same_names(gpu: str, tmp_path: Path) -> None:
    """Compared with the model, because the reverse pass of Warp alone fails."""
    with warp_tiles.enabled():
        for kernel in itertools.islice(shared_names.kernels(64), 8):
            found = execute(kernel, import_kernel(kernel, tmp_path), gpu)
            assert difference(found, of_model(kernel)) == "", kernel.source
