"""Compiled loops of products: each architecture gets the instructions that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.codegen.modules import macros
from tests.integration.helpers import compile_module, gemm_loop, generated_source, load
from tests.mixed_tiles import mixed_tiles
from tests.nightly import some
from warp_tiles import settings

ASYNC = re.compile(r"cp\.async\.cg\.shared\.global")
VECTOR_ADD = re.compile(r"red\.\S*global\.\S*v4\.(?:f32|f16x2|bf16x2)")


def ptx_of(tmp_path: Path, dtype: str, arch: int) -> str:
    module = load(gemm_loop(dtype=dtype), block_dim=128)
    output, record = compile_module(module, tmp_path, arch, use_ptx=True)
    assert record["linker"] == "warp_tiles", record
    return output.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize(
    ("dtype", "arch"),
    some(
        [
            *(("float16", 75), ("bfloat16", 80), ("float32", 90), ("float16", 120), ("float16", 80), ("float16", 90)),
            *(("bfloat16", arch) for arch in (75, 90, 120)),
            *(("float32", arch) for arch in (75, 80, 120)),
        ],
        3,
    ),
)
def test_instructions(tmp_path: Path, dtype: str, arch: int) -> None:
    text = ptx_of(tmp_path, dtype, arch)
    assert bool(ASYNC.search(text)) is (arch >= 80)
    assert bool(VECTOR_ADD.search(text)) is (arch >= 90)


@pytest.mark.slow
@pytest.mark.usefixtures("enabled")
def test_tiles_in_registers_and_narrow_tiles_beside_a_product(tmp_path: Path) -> None:
    output, record = compile_module(load(mixed_tiles(enable_backward=True), block_dim=128), tmp_path, 90, use_ptx=True)
    assert record["linker"] == "warp_tiles", record
    assert ASYNC.search(output.read_text())


BODIES = {
    "copied": "copy = a\n        wp.tile_matmul(copy, b, c)",
    "break after the product": "wp.tile_matmul(a, b, c)\n        if step == j:\n            break",
    "a third tile": """d = wp.tile_load(C, shape=(16, 16), offset=(step, 0), storage="shared")
        wp.tile_matmul(a, b, c)
        s += d""",
    "plain": "wp.tile_matmul(a, b, c)",
}
LOOP = """
@wp.kernel(enable_backward=False)
def gemm(A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32)):
    i, j = wp.tid()
    s = wp.tile_zeros(shape=(16, 16), dtype=wp.float32)
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    for step in range(A.shape[1] // 32):
        a = wp.tile_load(A, shape=(64, 32), offset=(i * 64, step * 32), storage="shared")
        b = wp.tile_load(B, shape=(32, 64), offset=(step * 32, j * 64), storage="shared")
        {}
    wp.tile_store(C, c, offset=(i * 64, j * 64))
    wp.tile_store(C, s)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("arch", [75, 80, 90])
def test_only_loops_that_multiply_every_loaded_tile_are_pipelined(tmp_path: Path, body: str, arch: int) -> None:
    source = generated_source(load(LOOP.format(BODIES[body]), block_dim=128), tmp_path, arch)
    pipeline = "wt_module::PipelineState wt_state_" if arch == 75 else "wt_module::Ring<"
    pipelined = body in ("plain", "break after the product")
    assert (pipeline in source) is pipelined
    assert ("Product<wt_module::WarpgroupProduct<" in source) is (pipelined and arch == 90)
    copies = re.findall(r"(.*)\n(?:\s*//.*\n)*.*\bwp::copy\(", source)
    assert bool(copies) is (body == "copied")
    assert all(macros(source)[before.strip()] == "wt_module::wait_for_loads();" for before in copies)


@pytest.mark.slow
@pytest.mark.usefixtures("enabled")
def test_the_setting_leaves_loads_to_warp(tmp_path: Path) -> None:
    with settings.override(async_copies=False):
        text = ptx_of(tmp_path, "float16", 90)
    assert not ASYNC.search(text)
    assert not VECTOR_ADD.search(text)
