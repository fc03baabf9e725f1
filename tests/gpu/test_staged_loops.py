"""Loops of products that load into stages, on a GPU: results and gradients are exact for every form and type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.emulator.staged import check, check_gradients, check_parts, integers
from tests.gpu.device import DeviceKernels
from tests.integration.helpers import load
from tests.staged_cases import FLAT, FORMS, HEADER, LINEAR, WIDE, Case, drawn

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]
# tiles that reach full speed
LARGE = {
    f"{m}x{n}x{k}, {'a' * both}{'b' * both}": Case(m, n, k, 1024, 1000, 520, both, both)
    for m, n, k, both in (
        *((128, 256, 64, False), (128, 128, 64, False), (128, 128, 32, False), (64, 64, 64, False)),
        *((256, 128, 64, True), (128, 64, 64, True)),
    )
}
CASES = LARGE | WIDE | FLAT
TYPES = {
    "fp16": ("float16", "default"),
    "bf16": ("bfloat16", "default"),
    "tf32": ("float32", "tf32"),
    "fp32": ("float32", "default"),
    "fp64": ("float64", "default"),
}
every_type = pytest.mark.parametrize("kind", TYPES)
every_loop = pytest.mark.parametrize(("main_loop", "threads"), [("auto", 128), ("auto", 256), ("mma", 128)])


def case_of(name: str, kind: str) -> Case:
    dtype, precision = TYPES[kind]
    case = drawn(int(name)) if name.isdecimal() else (FORMS | CASES)[name]
    return replace(case, dtype=dtype, precision=precision)


def kernels_of(case: Case, gpu: str, threads: int, main_loop: str, backward: bool = False) -> DeviceKernels:
    text = HEADER + case.text("case", backward=backward)
    return DeviceKernels(text, gpu, threads, main_loop=main_loop, gemm_gradients="off" if backward else "auto")


@pytest.mark.parametrize("name", [*FORMS, *CASES, *map(str, range(8))])
@every_loop
@every_type
def test_results(kind: str, name: str, main_loop: str, threads: int, gpu: str) -> None:
    case = case_of(name, kind)
    if kind == "fp64" and case.m * case.n + (case.m + case.n) * case.k > 128 * (128 + 64):
        case = replace(case, m=64, n=min(case.n, 128))  # the tiles would not fit shared memory
    kernels = kernels_of(case, gpu, threads, main_loop)
    for _ in range(3):  # a race need not show in one launch
        check(kernels, {"case": case}, 7)


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


# ---- reverse passes


def shared_bytes(case: Case) -> int:
    """Bytes of the tiles and of their gradients."""
    stored = 2 if "16" in case.dtype else 8 if case.dtype == "float64" else 4
    total = 8 if case.dtype == "float64" else 4
    return 2 * (case.m * case.n * total + (case.m + case.n) * case.k * stored)


@pytest.mark.parametrize("name", [*LINEAR, *CASES, *map(str, range(8))])
@every_loop
@every_type
def test_gradients_of_integers(kind: str, name: str, main_loop: str, threads: int, gpu: str) -> None:
    case = case_of(name, kind)
    if shared_bytes(case) > 224 * 1024:  # the tiles and their gradients would not fit shared memory
        case = replace(case, m=64, n=64, k=32)
    kernels = kernels_of(case, gpu, threads, main_loop, backward=True)
    check_gradients(kernels, "case", case, integers(case))


@pytest.mark.parametrize("scale", [1.0, 2.0**-20, 2.0**30])
@pytest.mark.parametrize(("main_loop", "threads"), [("auto", 128), ("mma", 128)])
def test_a_float32_gradient_keeps_22_bits(scale: float, main_loop: str, threads: int, gpu: str) -> None:
    case = Case(64, 64, 64, 64, 64, 64)
    kernels = kernels_of(case, gpu, threads, main_loop, backward=True)
    with warp_tiles.enabled(), warp_tiles.override(main_loop=main_loop, gemm_gradients="off"):
        (loop,) = warp_tiles.plan(kernels.module, arch=90, block_dim=threads).to_json()["loops"]
    assert "from stages" in loop["reverse"]
    check_parts(kernels, "case", case, scale)
