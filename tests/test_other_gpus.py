"""The benchmark of other architectures' limits: padded blocks, rows and tables. No GPU."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

import warp_tiles
from benchmarks import other_gpus, tile_values
from benchmarks.loops import Row as LoopRow
from benchmarks.loops import kernel_of
from benchmarks.other_gpus import CHOSEN, Row
from benchmarks.speed.builds import ARCH
from benchmarks.speed.cells import Cell
from benchmarks.speed.occupancy import Resources, padded_bytes, resident_blocks
from warp_tiles.gemm.hardware import multiprocessor

HERE = multiprocessor(ARCH)


def loop(main_loop: str = CHOSEN, threads: int = 128) -> Row:
    cell = Cell("loop", "float16", "float16", "float32", 128, 64, 32, threads, main_loop=main_loop)
    return Row(89, "fp16", cell)


# ---- resident blocks


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "arch", "blocks"),
    [
        (128, 32, 49152, 80, 3),  # shared memory: 164 KB hold three blocks of 49 KB, 1536 bytes and 1 KB
        (128, 32, 49152, 89, 1),
        (256, 32, 1024, 80, 8),  # threads: 2048
        (256, 32, 1024, 89, 6),  # 1536
        (32, 32, 0, 86, 16),  # blocks
        (128, 168, 1024, 89, 3),  # registers: 168 of 128 threads fit three times
        (128, 169, 1024, 89, 2),  # 169 are allocated as 176
        (64, 104, 1024, 80, 8),  # each quarter has registers for four warps: 16 in all, not 19
        (128, 32, 100 * 1024, 89, 0),
    ],
)
def test_resident_blocks(threads: int, registers: int, shared: int, arch: int, blocks: int) -> None:
    kernel = Resources(threads, registers, 0, 1024 + 4 * threads, shared)
    assert resident_blocks(kernel, multiprocessor(arch)) == blocks


@pytest.mark.parametrize("arch", other_gpus.ARCHS)
def test_padded_blocks_are_as_many_as_on_the_other_architecture(arch: int) -> None:
    limits, padded = multiprocessor(arch), 0
    for threads, registers, kilobytes in itertools.product((32, 64, 128, 256), (32, 80, 128), range(0, 97, 4)):
        kernel = Resources(threads, registers, 0, 1024 + 4 * threads, 1024 * kilobytes)
        blocks = resident_blocks(kernel, limits)
        found = replace(kernel, dynamic_bytes=padded_bytes(kernel, limits, HERE))
        assert resident_blocks(found, HERE) == blocks
        if found != kernel:
            padded += 1
            assert resident_blocks(replace(found, dynamic_bytes=found.dynamic_bytes - 128), HERE) > blocks
    assert padded > 20


# ---- rows


def test_another_pipeline_counts_if_a_build_has_it() -> None:
    def record(stages: int, instruction: str) -> dict[str, Any]:
        return {"loops": [{"stages": stages, "instruction": instruction}]}

    assert other_gpus.is_as_asked("mma,stages=2", record(2, "mma_m16n8k16"))
    assert not other_gpus.is_as_asked("mma,stages=4", record(3, "mma_m16n8k16")), "four stages do not fit"
    assert not other_gpus.is_as_asked("mma,stages=2", record(2, "")), "double buffers are no stages"
    assert other_gpus.is_as_asked("double_buffered", record(2, ""))


def test_loops_multiply_as_often_as_the_other_gpus_tensor_cores_are_slower() -> None:
    fp64 = replace(loop().cell, a="float64", b="float64", c="float64")
    resident = replace(loop().cell, form="resident")
    rows = [loop(), replace(loop(), arch=80), Row(80, "fp64", fp64), Row(89, "fp32", loop().cell)]
    assert [row.passes for row in [*rows, Row(89, "fp16", resident)]] == [5, 1, 2, 1, 1]
    assert [build.label.rpartition("_as_")[2] for build in loop().builds] == ["sm_89", "sm_89_passes_5"]
    assert len(rows[1].builds) == 1


# ---- tables


@pytest.mark.parametrize(
    ("types", "tile", "arch"),
    [("fp16", (128, 64, 32, 128), 89), ("tf32", (64, 64, 32, 128), 80), ("fp32", (128, 128, 16, 128), 120)],
)
def test_a_table_shows_what_a_plan_says(types: str, tile: tuple[int, int, int, int], arch: int) -> None:
    dtype = {"fp16": "float16"}.get(types, "float32")
    row = LoopRow("tf32" if types == "tf32" else dtype, 4096, *tile, "auto")
    with warp_tiles.enabled():
        (found,) = warp_tiles.plan(kernel_of(row).module, arch=arch, block_dim=row.threads).loops
    shown = f"{found.stages} stages, {found.resident_blocks}" if found.instruction else "double buffers"
    cell = Cell("loop", row.stored, row.stored, row.total, *tile, types == "tf32")
    assert tile_values.pipeline_text(cell, arch) == shown
