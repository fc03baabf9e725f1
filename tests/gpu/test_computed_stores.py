"""Stores of computed tiles, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.computed_kernels import BODIES, SIZES, TYPES, Case
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
