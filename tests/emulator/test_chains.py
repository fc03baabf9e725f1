"""Loops whose tiles stay in registers between their products, on the emulator."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import attention
from benchmarks.runner import difference
from tests.chain_forms import FORMS, Form
from tests.emulator.generated import Runs, build, generate
from tests.emulator.module import Machine
from tests.emulator.staged import bits
from tests.integration.helpers import load


def check(ours: Runs, warps: Runs, form: Form) -> None:
    """Compares results with NumPy's, and the sums of the softmax with Warp's in all bits."""
    found, stock = (kernels.run("attend", (form.blocks,), form.arguments()) for kernels in (ours, warps))
    expected, sums = form.results()
    assert np.allclose(found["O"], expected, rtol=2e-3, atol=2e-3)
    assert np.allclose(found["L"][0], sums, rtol=1e-5)
    assert np.array_equal(found["L"].view(np.uint32), stock["L"].view(np.uint32))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_results(machine: Machine, tmp_path: Path, name: str) -> None:
    form = FORMS[name]
    ours = build(machine, tmp_path / "ours", form.text, form.threads)
    warps = build(machine, tmp_path / "warps", form.text, form.threads, async_copies=False)
    assert bool(ours.source.count(f"wt_module::{form.function}<")) == (not form.code)
    check(ours, warps, form)


def check_benchmark(
    machine: Machine, folder: Path, cell: attention.Cell, main_loop: str, start: str = "wp.tile_zeros("
) -> str:
    """Compares the results of the benchmark's kernel with NumPy's. Returns its source."""
    text = cell.text("tiles").removeprefix("import warp as wp\n").replace("o = wp.tile_zeros(", f"o = {start}")
    kernels = build(machine, folder, text, cell.threads, main_loop=main_loop)
    function = "multiply_chain_by_warpgroups" if main_loop == "wgmma" else "multiply_chain"
    assert kernels.source.count(f"wt_module::{function}<") == 2
    random, rows = np.random.default_rng(1), math.lcm(cell.m, 2 * cell.n)
    operands = [random.standard_normal((2, rows, cell.d)).astype(np.float16) for _ in range(3)]
    found = kernels.run("attention", (2, rows // cell.m), [*operands, 0.1, np.zeros_like(operands[0])])["O"]
    expected = attention.expected(cell, [values.astype(np.float64) for values in operands], 0.1)
    assert difference(found.astype(np.float64), expected) < attention.LARGEST_DIFFERENCE
    return kernels.source


@pytest.mark.parametrize(("name", "is_behind"), [
    ("a division behind the loop", True), ("a quotient that is used twice", False),
    ("a factor behind the loop", True), ("a factor that is used twice", False),
])  # fmt: skip
def test_assignments_behind_a_loop(tmp_path: Path, name: str, is_behind: bool) -> None:
    """Sums go to shared memory behind the assignment, unless something else uses what it computes from."""
    generated = generate(load(FORMS[name].text), tmp_path / "m", 90, FORMS[name].threads)
    (end,) = (line for line in generated.source.splitlines() if line.startswith("#define WT_END_"))
    assert ("wt_module::write_fragment<" in end) == (not is_behind)


def test_zeros_before_a_loop_are_not_read(machine: Machine, tmp_path: Path) -> None:
    """Registers start with zeros, which nothing writes to the tiles. The other vector is read."""
    source = build(machine, tmp_path / "m", FORMS["attention"].text, FORMS["attention"].threads).source
    (begin,) = (line for line in source.splitlines() if line.startswith("#define WT_BEGIN_"))
    assert begin.count("wt_module::read_fragment<") == 1
    fills = [line.split("(")[0].strip() for line in source.splitlines() if "WT_AT_" in line and "tile_zeros<" in line]
    assert [f"#define {fill}(...)" in map(str.strip, source.splitlines()) for fill in fills] == [True] * 3


@pytest.mark.slow
@pytest.mark.parametrize("main_loop", ["wgmma", "mma"])
@pytest.mark.parametrize("size", [(96, 64), (64, 128)])
def test_benchmark(machine: Machine, tmp_path: Path, size: tuple[int, int], main_loop: str) -> None:
    """The benchmark's kernel, whose arrays are views of arrays of three dimensions. 128 rows are 32 for each warp."""
    check_benchmark(machine, tmp_path / "m", attention.Cell("attention", *size, 64, 128), main_loop)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(64, 128), (128, 64)])
def test_one_stage(machine: Machine, tmp_path: Path, sizes: tuple[int, int]) -> None:
    """Two stages would leave one resident block. The left operand is in shared memory."""
    source = check_benchmark(machine, tmp_path / "m", attention.Cell("attention", 128, *sizes, 128), "wgmma")
    assert source.count("wait_for_copy_groups<1>(); WP_TILE_SYNC();") == 1
    assert source.count("wt_module::SharedOperand<") == 1


@pytest.mark.slow
def test_left_operands_in_the_memory_of_a_tile_that_is_read(machine: Machine, tmp_path: Path) -> None:
    cell = attention.Cell("attention", 128, 128, 64, 128)
    source = check_benchmark(machine, tmp_path / "m", cell, "wgmma", "wp.tile_full(value=0.0, ")
    (begin,) = (line for line in source.splitlines() if line.startswith("#define WT_BEGIN_"))
    assert begin.count("wt_module::read_fragment<") == 2  # not that of the sums


@pytest.mark.slow
def test_warpgroups_load_for_themselves(machine: Machine, tmp_path: Path) -> None:
    """Each of two warpgroups has stages of its own, and no barrier of the block lies in the loop."""
    source = check_benchmark(machine, tmp_path / "m", attention.Cell("attention", 64, 128, 64, 256), "wgmma")
    assert source.count("wt_module::warpgroup() * ") == 2
    assert source.count("wt::arch::wait_for_copies(); wt::arch::warpgroup_barrier(wt_module::warpgroup());") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "attention, 128 threads"])
def test_bfloat16(machine: Machine, tmp_path: Path, name: str) -> None:
    form = FORMS[name]
    kernels = build(machine, tmp_path / "m", form.text.replace("wp.float16", "wp.bfloat16"), form.threads)
    assert kernels.source.count(f"wt_module::{form.function}<wt::bf16") == 2
    *operands, o, sums = form.arguments()
    given = [bits(values.astype(np.float32), "bfloat16") for values in operands]
    found = kernels.run("attend", (form.blocks,), [*given, o, sums])["O"]
    assert np.allclose(found, form.results()[0], rtol=2e-2, atol=2e-2)
