"""The resource model of a block."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warp_tiles.gemm.hardware import (
    least_registers,
    limit_of_blocks,
    loop_registers,
    max_registers,
    multiprocessor,
    resident_blocks,
    shared_limit,
    static_shared_bytes,
)
from warp_tiles.gemm.pipeline import PlannedLoop


@pytest.mark.parametrize(
    ("threads", "registers"),
    # for 768 threads and more: the registers that ptxas gives a large kernel with these launch bounds (NVRTC 12.9)
    [(1, None), (32, None), (128, None), (256, None), (257, 168), (288, 168), (320, 168), (384, 168), (385, 128),
     (512, 128), (513, 96), (640, 96), (768, 80), (769, 72), (896, 72), (1024, 64)],
)  # fmt: skip
def test_max_registers(threads: int, registers: int | None) -> None:
    assert max_registers(threads) == registers


@pytest.mark.parametrize(
    ("threads", "own_templates", "blocks"),
    [(64, True, 1), (128, True, 1), (160, True, 2), (256, True, 2), (288, True, 1), (512, True, 1), (256, False, 1)],
)
def test_blocks_of_the_register_limit(threads: int, own_templates: bool, blocks: int) -> None:
    assert limit_of_blocks(threads, own_templates=own_templates)[1] == blocks


@pytest.mark.parametrize(("threads", "registers"), [(128, None), (129, 128), (192, 128), (256, 128)])
def test_max_registers_of_two_blocks(threads: int, registers: int | None) -> None:
    assert max_registers(threads, 2) == registers


@given(st.integers(1, 1024))
def test_a_block_with_that_many_registers_launches(threads: int) -> None:
    registers = max_registers(threads)
    # Registers come in units of 256 per warp, and warps in groups of four, one for each quarter of the multiprocessor
    # (warp allocation granularity and register allocation unit size of NVIDIA's occupancy calculator).
    warps = -(-threads // 128) * 4
    granted = -(-(255 if registers is None else registers) * 32 // 256) * 256
    assert granted * warps <= 65_536
    if registers is not None:
        assert (registers + 8) * 32 * warps > 65_536  # no register is wasted


@pytest.mark.parametrize(
    ("accumulators", "operands", "reverse", "blocks"),
    [
        (64, 0, (), 2),
        (65, 0, (), 1),
        (64, 64, (), 2),
        (64, 65, (), 1),
        (63, 128, (), 2),
        (64, 32, ("fma",), 1),
        (63, 32, ("fma",), 2),
        (64, 0, ("wgmma",), 2),
    ],
)
def test_loops_that_leave_one_block(accumulators: int, operands: int, reverse: tuple[str, ...], blocks: int) -> None:
    loop = PlannedLoop("k", "file.py", 1, 1, "pipelined", 4, "", "fma", accumulators)
    loop = replace(loop, operands=operands, reverse_instructions=reverse)
    assert limit_of_blocks(256, large_loop=loop.is_large)[1] == blocks


@pytest.mark.parametrize(
    ("arch", "threads", "shared_bytes", "registers", "blocks"),
    [
        (90, 128, 0, 0, 16),  # 2,048 threads
        (90, 32, 0, 0, 32),  # blocks
        (86, 128, 0, 0, 12),  # 1,536 threads
        (75, 32, 0, 0, 16),
        (90, 128, 100_000, 0, 2),
        (86, 128, 100_000, 0, 0),  # more than a block may have
        (86, 128, 98_304, 0, 1),
        (90, 256, 0, 128, 2),
        (90, 256, 0, 300, 1),  # a thread has 255 at most
    ],
)
def test_resident_blocks(arch: int, threads: int, shared_bytes: int, registers: int, blocks: int) -> None:
    assert resident_blocks(arch, threads, shared_bytes=shared_bytes, registers=registers) == blocks


@settings(deadline=None)
@given(st.sampled_from((75, 80, 86, 89, 90, 100, 120)), st.integers(1, 32), st.integers(0, 240_000))
def test_resident_blocks_fit_the_multiprocessor(arch: int, warps: int, shared_bytes: int) -> None:
    threads, limits = 32 * warps, multiprocessor(arch)
    blocks = resident_blocks(arch, threads, shared_bytes=shared_bytes)
    block_bytes = shared_bytes + static_shared_bytes(threads)
    assert (blocks > 0) == (shared_bytes <= shared_limit(arch, threads) and threads <= limits.threads)
    assert blocks * threads <= limits.threads
    assert blocks * (block_bytes + limits.shared_bytes - limits.block_shared_bytes) <= limits.shared_bytes


def test_a_loop_keeps_its_accumulators_and_operands_in_registers() -> None:
    assert loop_registers(64, 0) == 120
    assert loop_registers(33, 32) == 128


@pytest.mark.parametrize(
    ("instruction", "arch", "in_double", "registers"),
    [
        ("mma_m16n8k8", 90, True, 64),
        ("mma_m16n8k8", 80, True, 0),  # it has none
        ("mma_m16n8k8", 90, False, 0),
        ("mma_m8n8k4", 90, True, 0),
        ("fma", 90, False, 0),
    ],
)
def test_least_registers(instruction: str, arch: int, in_double: bool, registers: int) -> None:
    assert least_registers(instruction, arch, in_double=in_double) == registers
