"""Stores of computed tiles, on a GPU."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.computed_kernels import BODIES, REVERSED, SIZES, TYPES, Case, Values
from tests.integration.helpers import load

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


@pytest.mark.parametrize("out", TYPES)
@pytest.mark.parametrize("form", BODIES)
def test_forms(form: str, out: str, gpu: str) -> None:
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
    out, text = REVERSED[form]
    a, b, before, _ = Case("direct", out, size).arrays()
    with warp_tiles.enabled() if hooked else nullcontext():
        kernel = load(text, block_dim=64).rounded
        arrays = [wp.array(values, device=gpu, requires_grad=True) for values in (a, b, before)]
        with wp.Tape() as tape:
            wp.launch_tiled(kernel, dim=(2, 2), inputs=[*arrays, 1], block_dim=64, device=gpu)
        stored = arrays[2].numpy()
        arrays[2].grad = wp.array(np.ones_like(before), device=gpu)
        tape.backward()
        return [stored, arrays[0].grad.numpy(), arrays[1].grad.numpy()]
