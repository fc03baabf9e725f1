"""Ordinary loops of products on a GPU: results and gradients are exact, whatever the plan decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.form_gradients import wrong_gradients
from tests.integration.helpers import load
from tests.loop_forms import FORMS, SPELLINGS, Form, K, M, N

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]
OPTIONS: dict[str, dict[str, Any]] = {
    "lineinfo": {"lineinfo": True},
    "fast_math": {"fast_math": True},
    "max_unroll": {"max_unroll": 4},
    "debug": {"mode": "debug"},
}


def integers(seed: int, *shape: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.integers(1, 4, shape) * random.choice([-1, 1], shape)).astype(np.float32)


def check(form: Form, gpu: str, threads: int, **options: Any) -> None:
    with warp_tiles.enabled():
        kernel = load(form.text, block_dim=threads, **options).multiply
        a, b, g = integers(1, M, K), integers(2, K, N), integers(3, M, N)
        given = b.T.copy() if form.b_transposed else b
        arrays = [wp.array(values, dtype=wp.float32, device=gpu, requires_grad=True) for values in (a, given)]
        c = wp.full((M, N), np.nan, dtype=wp.float32, device=gpu, requires_grad=True)
        with wp.Tape() as tape:
            wp.launch_tiled(kernel, dim=(M // 32, N // 32), inputs=arrays, outputs=[c], block_dim=threads, device=gpu)
        assert np.array_equal(c.numpy(), form.expected(a.astype(float), b.astype(float)))
        if form.differentiable:
            c.grad.assign(g)
            tape.backward()
            of_a, of_b = (array.grad.numpy() for array in arrays)
            assert not wrong_gradients(form, a, b, g, of_a, of_b.T if form.b_transposed else of_b)


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str, gpu: str) -> None:
    check(FORMS[name], gpu, 64)


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("options", OPTIONS)
def test_options(name: str, options: str, gpu: str) -> None:
    check(SPELLINGS[name], gpu, 128, **OPTIONS[options])
