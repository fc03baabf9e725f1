"""Reverse passes of loops that load into stages, on a GPU: gradients of integers are exact for every form and type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import load
from tests.staged_cases import FLAT, HEADER, LINEAR, WIDE, Case, Values, drawn

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]
DRAWN = {f"drawn {seed}": drawn(seed) for seed in range(8)}
LARGE = {
    "128x128x64": Case(128, 128, 64, 1024, 1000, 520),
    "128x128x32": Case(128, 128, 32, 1024, 1000, 520),
    "64x64x64": Case(64, 64, 64, 1024, 1000, 520),
    "128x64x64, transposed": Case(128, 64, 64, 1000, 1024, 776, True, True),
}
TYPES = {
    "fp16": ("float16", "default"),
    "bf16": ("bfloat16", "default"),
    "tf32": ("float32", "tf32"),
    "fp32": ("float32", "default"),
    "fp64": ("float64", "default"),
}


def shared_bytes(case: Case) -> int:
    """Bytes of the tiles and of their gradients."""
    stored = 2 if "16" in case.dtype else 8 if case.dtype == "float64" else 4
    total = 8 if case.dtype == "float64" else 4
    return 2 * (case.m * case.n * total + (case.m + case.n) * case.k * stored)


def gradients(case: Case, g: Values, main_loop: str, threads: int, gpu: str) -> tuple[Values, Values, str]:
    """The gradients of A and B that a launch adds to ones, and the plan of the loop's reverse pass."""
    total, dtype = getattr(wp, case.total), getattr(wp, case.dtype)
    with warp_tiles.enabled(), warp_tiles.override(main_loop=main_loop, gemm_gradients="off"):
        kernel = load(HEADER + case.text("case", backward=True), block_dim=threads).case
        a, b, e, _ = case.arrays(1)
        inputs = [wp.array(x, dtype=kind, device=gpu) for x, kind in ((a, dtype), (b, dtype), (e, total))]
        found = [wp.ones_like(array) for array in inputs]
        c, of_c = wp.zeros(g.shape, dtype=total, device=gpu), wp.array(g, dtype=total, device=gpu)
        wp.launch(
            kernel, dim=(*case.grid, threads), inputs=[*inputs, c], adj_inputs=[*found, of_c], adj_outputs=[],
            adjoint=True, block_dim=threads, device=gpu,
        )  # fmt: skip
        (loop,) = warp_tiles.plan(kernel.module, arch=90, block_dim=threads).to_json()["loops"]
        of_a, of_b = (array.numpy().astype(np.float64) for array in found[:2])
        return of_a, of_b, loop["reverse"]


@pytest.mark.parametrize("name", [*LINEAR, *DRAWN, *LARGE, *WIDE, *FLAT])
@pytest.mark.parametrize(("main_loop", "threads"), [("auto", 128), ("auto", 256), ("mma", 128)])
@pytest.mark.parametrize("kind", TYPES)
def test_gradients_of_integers(kind: str, name: str, main_loop: str, threads: int, gpu: str) -> None:
    dtype, precision = TYPES[kind]
    case = replace((LINEAR | DRAWN | LARGE | WIDE | FLAT)[name], dtype=dtype, precision=precision)
    if shared_bytes(case) > 224 * 1024:  # the tiles and their gradients would not fit shared memory
        case = replace(case, m=64, n=64, k=32)
    # few columns are not zero, so that all accumulators are integers that 16-bit types have
    g = np.random.default_rng(5).integers(-1, 2, (case.rows, case.columns)).astype(case.total)
    if dtype == "bfloat16":
        g[:, 8:] = 0
        g[8:] = 0
    elif dtype == "float16":
        g[:, 256:] = 0
        g[256:] = 0
    of_a, of_b, _ = gradients(case, g, main_loop, threads, gpu)
    for found, expected in zip((of_a, of_b), case.gradients(1, g)):
        assert np.array_equal(found, expected + 1)


@pytest.mark.parametrize("scale", [1.0, 2.0**-20, 2.0**30])
@pytest.mark.parametrize(("main_loop", "threads"), [("auto", 128), ("mma", 128)])
def test_a_float32_gradient_keeps_22_bits(scale: float, main_loop: str, threads: int, gpu: str) -> None:
    case = Case(64, 64, 64, 64, 64, 64)
    draw = np.random.default_rng(3)
    g = (draw.integers(-3, 4, (64, 64)) + draw.integers(-3, 4, (64, 64)) * 2.0**-14).astype(np.float32)
    scaled = g * np.float32(scale)
    of_a, of_b, reverse = gradients(case, scaled, main_loop, threads, gpu)
    assert "from stages" in reverse
    for found, expected in zip((of_a, of_b), case.gradients(1, scaled.astype(np.float64))):
        with np.errstate(over="ignore"):
            rounded = (expected.astype(np.float16).astype(np.float32) + 1).astype(np.float16)
        assert np.array_equal(found, rounded.astype(np.float64))
