"""Loops of products that load into stages, on a GPU: results are exact for every form and instruction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import load
from tests.loop_forms import FORMS as LOOP_FORMS
from tests.loop_forms import K, M, N, in_half
from tests.staged_cases import FLAT, FORMS, HEADER, WIDE, Case, drawn

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]
DRAWN = {f"drawn {seed}": drawn(seed) for seed in range(24)}
# tiles that reach full speed
LARGE = {
    "128x256x64": Case(128, 256, 64, 1024, 1000, 520),
    "128x128x64": Case(128, 128, 64, 1024, 1000, 520),
    "256x128x64, transposed": Case(256, 128, 64, 1000, 1024, 776, True, True),
}


@pytest.mark.parametrize("name", [*FORMS, *DRAWN, *LARGE, *FLAT])
@pytest.mark.parametrize(("main_loop", "threads"), [("auto", 128), ("auto", 256), ("mma", 128)])
def test_cases(name: str, main_loop: str, threads: int, gpu: str) -> None:
    exact((FORMS | DRAWN | LARGE | FLAT)[name], main_loop, threads, gpu)


def exact(case: Case, main_loop: str, threads: int, gpu: str) -> None:
    total, dtype = getattr(wp, case.total), getattr(wp, case.dtype)
    with warp_tiles.enabled(), warp_tiles.override(main_loop=main_loop):
        kernel = load(HEADER + case.text("case"), block_dim=threads).case
        a, b, e, product = case.arrays(7)
        arrays = [wp.array(values, dtype=kind, device=gpu) for values, kind in ((a, dtype), (b, dtype), (e, total))]
        c = wp.full((case.rows, case.columns), np.nan, dtype=total, device=gpu)
        for _ in range(3):  # a race need not show in one launch
            wp.launch_tiled(kernel, dim=case.grid, inputs=arrays, outputs=[c], block_dim=threads, device=gpu)
            assert np.array_equal(c.numpy(), case.expected(product, e))
            c.fill_(np.nan)


TYPES = {
    "tf32": ("float32", "tf32"),
    "fp64": ("float64", "default"),
    "bf16": ("bfloat16", "default"),
    "fp32": ("float32", "default"),
}


@pytest.mark.parametrize("name", [*FORMS, *WIDE, *FLAT])
@pytest.mark.parametrize(("main_loop", "threads"), [("auto", 128), ("auto", 256), ("mma", 64)])
@pytest.mark.parametrize("kind", TYPES)
def test_other_types(kind: str, name: str, main_loop: str, threads: int, gpu: str) -> None:
    dtype, precision = TYPES[kind]
    case = (FORMS | WIDE | FLAT)[name]
    if dtype == "float64" and case.m * case.n > 128 * 128:
        case = replace(case, m=64)  # C would not fit shared memory
    exact(replace(case, dtype=dtype, precision=precision), main_loop, threads, gpu)


HALF_FORMS = [name for name, form in LOOP_FORMS.items() if "= wp.tile_matmul" not in form.text and form.has_half]


@pytest.mark.parametrize("name", HALF_FORMS)
def test_forms_in_half(name: str, gpu: str) -> None:
    form = LOOP_FORMS[name]
    draw = np.random.default_rng(1)
    a, b = (draw.integers(-3, 4, shape).astype(np.float16) for shape in ((M, K), (K, N)))
    given = b.T.copy() if form.b_transposed else b
    with warp_tiles.enabled():
        kernel = load(in_half(form.text), block_dim=64).multiply
        arrays = [wp.array(values, dtype=wp.float16, device=gpu) for values in (a, given)]
        c = wp.full((M, N), np.nan, dtype=wp.float32, device=gpu)
        wp.launch_tiled(kernel, dim=(M // 32, N // 32), inputs=arrays, outputs=[c], block_dim=64, device=gpu)
        assert np.array_equal(c.numpy(), form.expected(a.astype(float), b.astype(float)))


PASS_ROWS = 16  # that 128 threads load at once


@pytest.mark.parametrize("rows", [20, 32])  # a tile at an edge, and a whole one
@pytest.mark.parametrize("pass_bytes", [2**31 - 256, 2**31, 2**32])
def test_rows_that_lie_far_apart(pass_bytes: int, rows: int, gpu: str) -> None:
    case, stride = Case(32, 64, 64, rows, 64, 128), pass_bytes // PASS_ROWS
    a, b, e, product = case.arrays(2)
    memory = wp.empty((rows, stride), dtype=wp.uint8, device=gpu)
    left = wp.array(ptr=memory.ptr, dtype=wp.float16, shape=a.shape, strides=(stride, 2), device=gpu)
    for row in range(rows):
        wp.copy(left[row], wp.array(a[row], dtype=wp.float16, device=gpu))
    with warp_tiles.enabled():
        kernel = load(HEADER + case.text("case"), block_dim=128).case
        (loop,) = warp_tiles.plan(kernel.module, arch=90, block_dim=128).to_json()["loops"]
        assert loop["state"] == "pipelined"
        inputs = [left, wp.array(b, dtype=wp.float16, device=gpu), wp.array(e, dtype=wp.float32, device=gpu)]
        c = wp.full((rows, 64), np.nan, dtype=wp.float32, device=gpu)
        wp.launch_tiled(kernel, dim=case.grid, inputs=inputs, outputs=[c], block_dim=128, device=gpu)
        assert np.array_equal(c.numpy(), case.expected(product, e))
