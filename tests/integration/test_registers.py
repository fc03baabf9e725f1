"""Registers of small products, read from cubins. Small products are fast if many blocks are resident.

The bounds are what the kernels took before loops had stages. With up to 44 more, products were up to 36 % slower on an
H200, and no test of results could tell.
"""

from pathlib import Path

import pytest

import warp_tiles
from benchmarks.loops import ROWS
from benchmarks.speed.cubin import registers as registers_of
from benchmarks.speed.cubin import stack_bytes
from tests.integration.helpers import FORWARD_ONLY, compile_module, gemm_loop, load
from tests.nightly import some
from warp_tiles.gemm.hardware import resident_blocks, static_shared_bytes

pytestmark = pytest.mark.usefixtures("enabled")

KERNEL = """
@wp.kernel(enable_backward={backward})
def gemm(
    A: wp.array3d(dtype=wp.{dtype}), B: wp.array3d(dtype=wp.{dtype}), C: wp.array3d(dtype=wp.{total}), calls: int
):
    i = wp.tid()
    a = wp.tile_load(A[i % A.shape[0]], shape=({m}, {k}), storage="shared")
    b = wp.tile_load(B[i % B.shape[0]], shape=({k}, {n}), storage="shared")
    c = wp.tile_zeros(shape=({m}, {n}), dtype=wp.{total}, storage="shared")
    for _ in range(calls):
        wp.tile_matmul(a, b, c, precision="{precision}")
    wp.tile_store(C[i], c)
"""
CASES = {
    "tf32 32x32x32": (("float32", "tf32", (32, 32, 32), 128, False), {"forward": 108}),
    "fp16 16x16x128": (("float16", "default", (16, 16, 128), 128, False), {"forward": 73}),
    "fp64 8x8x8": (("float64", "default", (8, 8, 8), 32, False), {"forward": 54}),
    "fp64 6x6x6 and its adjoint": (("float64", "default", (6, 6, 6), 64, True), {"forward": 48, "backward": 64}),
    "fp32 8x8x8 and its adjoint": (("float32", "default", (8, 8, 8), 128, True), {"forward": 48, "backward": 64}),
    "fp32 24x24x24 and its adjoint": (("float32", "default", (24, 24, 24), 64, True), {"forward": 56, "backward": 136}),
}
ZEROS = 'wp.tile_zeros(shape=(64, 64), dtype=wp.float64, storage="shared")'
LOADED = 'wp.tile_load(C, shape=(64, 64), offset=(i * 64, j * 64), storage="shared")'
SLACK = 7  # registers are allocated in eights


def registers(cubin: bytes) -> dict[str, int]:
    """Registers of a thread, by the last part of the kernels' names."""
    return {name.rsplit("_", 1)[1]: count for name, count in registers_of(cubin).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_small_products_leave_registers_to_other_blocks(tmp_path: Path, name: str) -> None:
    (dtype, precision, (m, n, k), threads, backward), bounds = CASES[name]
    total = "float32" if dtype == "float16" else dtype
    source = KERNEL.format(dtype=dtype, total=total, m=m, n=n, k=k, precision=precision, backward=backward)
    with warp_tiles.override(provider="own"):
        cubin, record = compile_module(load(source, block_dim=threads), tmp_path)
    assert record["linker"] == "warp_tiles"
    found = registers(cubin.read_bytes())
    assert found.keys() == bounds.keys()
    assert {kind: value for kind, value in found.items() if value > bounds[kind] + SLACK} == {}


@pytest.mark.slow
def test_a_start_value_takes_no_registers_from_a_loop_of_float64(tmp_path: Path) -> None:
    found = []
    text = gemm_loop(m=64, n=64, k=16, decorator=FORWARD_ONLY, dtype="float64", total="float64")
    assert ZEROS in text
    for number, start in enumerate((ZEROS, LOADED)):
        cubin, _ = compile_module(load(text.replace(ZEROS, start), block_dim=128), tmp_path / str(number))
        found.append(registers(cubin.read_bytes())["forward"])
    zeros, loaded = found
    assert loaded <= zeros + SLACK


SUBSTITUTION = """
@wp.kernel(enable_backward=False)
def solve(A: wp.array2d(dtype=wp.float64), B: wp.array2d(dtype=wp.float64), x: wp.array(dtype=wp.float64)):
    a = wp.tile_load(A, shape=(16, 16), storage="shared")
    b = wp.tile_load(B, shape=(16, 16), storage="shared")
    y = wp.tile_load(x, shape=16, storage="shared")
    wp.tile_store(x, wp.tile_lower_solve(a, y))
    wp.tile_store(B, wp.tile_matmul(a, b))
"""


@pytest.mark.slow
@pytest.mark.parametrize("arch", [90, 100])
def test_a_product_of_float64_beside_a_substitution_has_the_registers_of_its_instruction(
    tmp_path: Path, arch: int
) -> None:
    """With the 56 registers that the substitution alone would get, the assembler refuses mma.m16n8k8 of float64."""
    with warp_tiles.override(linker="own"):
        _, record = compile_module(load(SUBSTITUTION, block_dim=64), tmp_path, arch)
    assert (record["linker"], record["register_limit"]) == ("warp_tiles", 64)
    assert record["register_limit_reason"] == "mma_m16n8k8 needs as many"


# loops of benchmarks/loops.py by name, without their size; large matrices have the same loops
LOOPS = {row.name.replace(f" {row.size} ", " ", 1): row for row in ROWS}
FIRST = (
    ("float16 128x128x32 256 threads, auto", 80),  # had 64 bytes of a limit for two blocks that did not fit
    ("float16 128x128x64 256 threads, auto", 89),
    ("float16 128x128x64 256 threads, auto", 120),
    ("float16 128x128x32 256 threads, auto", 90),
    ("tf32 128x128x32 256 threads, auto", 90),  # spills, and says so
    ("float64 128x64x16 256 threads, auto", 100),  # had 40 bytes of a limit for two blocks
    ("float16 128x256x64 256 threads, mma", 90),  # a setting decides, and the loop says that it may spill
    ("float32 128x128x32 256 threads, double_buffered", 100),
    ("float32 128x128x32 256 threads, auto", 80),
)
OTHERS = [(name, arch) for name in LOOPS for arch in (80, 86, 89, 90, 100, 120) if (name, arch) not in FIRST]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arch"), some([*FIRST, *OTHERS], len(FIRST)))
def test_loops_spill_no_registers_unless_the_plan_says_so(tmp_path: Path, name: str, arch: int) -> None:
    """Nor are fewer blocks resident than stages were chosen for."""
    row = LOOPS[name]
    with warp_tiles.override(main_loop=row.main_loop):
        module = load(row.source, block_dim=row.threads)
        plan = warp_tiles.plan(module, arch=arch, block_dim=row.threads)
        if plan.launch_failures:
            pytest.skip(f"no block has the memory: {plan.launch_failures[0]}")
        cubin, record = compile_module(module, tmp_path, arch)
    (loop,), used = record["loops"], registers(cubin.read_bytes())["forward"]
    if loop["instruction"]:  # it has stages
        resident = resident_blocks(arch, row.threads, shared_bytes=loop["shared_bytes"], registers=used)
        assert resident >= loop["resident_blocks"] > 0
    reason = record["register_limit_reason"]
    frame = max(stack_bytes(cubin.read_bytes()).values())
    if "a few registers may spill, which costs less" in reason:
        assert arch == 90, "measured there alone"
    elif "full_registers" in plan.loops[0].codes:
        assert row.main_loop != "auto"
        assert frame <= 40
    else:
        assert frame == 0
    fits = all(
        resident_blocks(arch, row.threads, shared_bytes=kernel.needed_bytes - static_shared_bytes(row.threads)) > 1
        for kernel in plan.memory
    )
    assert fits or "2 resident blocks" not in reason
