"""Registers of the threads of a module."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.heuristics.registers import max_registers, resident_blocks
from warp_tiles.plan.planning import PlannedLoop


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
def test_resident_blocks(threads: int, own_templates: bool, blocks: int) -> None:
    assert resident_blocks(threads, own_templates) == blocks


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
    ("sums", "operands", "reverse", "blocks"),
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
def test_loops_that_leave_one_block(sums: int, operands: int, reverse: tuple[str, ...], blocks: int) -> None:
    small = PlannedLoop("k", "file.py", 1, 1, "pipelined", 4, "", "fma", 32)
    loop = replace(small, sums=sums, operands=operands, reverse_instructions=reverse)
    assert resident_blocks(256, True, [small, loop]) == blocks
