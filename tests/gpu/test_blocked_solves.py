"""Blocked factorizations, solves and inverses as clients write them, on a GPU, compared with float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.blocked_solves import BLOCKS, MOST, matrices, solution, text
from tests.integration.helpers import load

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]
COUNT = 40
TOLERANCES = {"float32": 2e-5, "float64": 1e-12}


@pytest.mark.parametrize("main_loop", ["auto", "stages=3"])
@pytest.mark.parametrize("threads", [64, 128])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_solves_and_inverses(dtype: str, threads: int, main_loop: str, gpu: str) -> None:
    with warp_tiles.enabled(), warp_tiles.override(main_loop=main_loop):
        module = load(text(dtype), block_dim=threads)
        for n, size in itertools.product(BLOCKS, (32, MOST)):
            a, b = matrices(size, COUNT, dtype)
            given = [wp.array(values, dtype=getattr(wp, dtype), device=gpu) for values in (a, b)]
            u, x = (wp.zeros_like(one) for one in given)
            for _ in range(3):  # a race need not show in one launch
                launched = {"dim": COUNT, "block_dim": threads, "device": gpu}
                wp.launch_tiled(getattr(module, f"solve_{n}"), inputs=[*given, size], outputs=[u, x], **launched)
                np.testing.assert_allclose(x.numpy(), solution(a, b, size), rtol=0, atol=TOLERANCES[dtype])
            lower = np.linalg.cholesky(a[:, :size, :size].astype(np.float64))
            given = [wp.array(values.astype(dtype), device=gpu) for values in (lower, np.eye(size))]
            found, inverse = wp.zeros_like(given[0]), wp.zeros_like(given[0])
            for _ in range(3):
                launched = {"dim": COUNT, "block_dim": threads, "device": gpu}
                wp.launch_tiled(
                    getattr(module, f"invert_{n}"), inputs=[*given, size], outputs=[found, inverse], **launched
                )
                expected = np.linalg.inv(lower @ lower.swapaxes(1, 2))
                np.testing.assert_allclose(inverse.numpy(), expected, rtol=0, atol=TOLERANCES[dtype])
