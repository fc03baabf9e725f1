"""The architectures, and the resource model of a block."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import warp
from hypothesis import given
from hypothesis import strategies as st

import warp_tiles
from benchmarks import compile_time
from benchmarks.result_values import result
from tests.gemm.loop_registers import TABLE, measured, most_below, rows
from tests.nightly import some
from warp_tiles.compile.compiler import open_nvrtc
from warp_tiles.compile.find import find_toolchain
from warp_tiles.errors import PlanError
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.hardware import (
    MIN_ARCH,
    MULTIPROCESSORS,
    accumulator_registers,
    allows_pair,
    least_registers,
    loop_registers,
    max_registers,
    multiprocessor,
    pair_limit,
    paired_registers,
    parse_arch,
    resident_blocks,
    shared_limit,
    static_shared_bytes,
)
from warp_tiles.gemm.problem import GemmProblem, dense_operand
from warp_tiles.gemm.tile_config import TileConfig, accumulators_per_thread, fits, registers
from warp_tiles.solver.problem import SolverProblem, register_limit
from warp_tiles.tuning.factory import Limits

ROWS = json.loads(TABLE.read_text("utf-8"))["rows"]


def test_every_architecture_of_warps_compiler_has_an_entry() -> None:
    known = {arch for arch in warp.get_cuda_supported_archs() if arch >= MIN_ARCH}
    assert known
    assert known <= set(MULTIPROCESSORS)


@pytest.mark.parametrize("arch", [70, 91, 130])
def test_an_architecture_without_an_entry_is_an_error_that_names_the_table(arch: int) -> None:
    with pytest.raises(PlanError, match=rf"sm_{arch} has no entry in MULTIPROCESSORS of warp_tiles/gemm/hardware\.py"):
        multiprocessor(arch)


def assembled(arch: int, bounds: str, values: int = 1) -> str:
    """What ptxas says about a kernel with so many values in registers."""
    numbers = range(values)
    loads, stores = (" ".join(text.format(n=n) for n in numbers) for text in ("float v{n} = p[{n}];", "p[{n}] = v{n};"))
    sums = " ".join(f"v{n} = v{n} * q[i] + v{(n + 7) % values};" for n in numbers)
    body = f"{loads} for (int i = 0; i < n; ++i) {{ {sums} }} {stores}"
    source = f'extern "C" __global__ void {bounds} k(float* p, const float* q, int n) {{ p += threadIdx.x; {body} }}'
    nvrtc = open_nvrtc(str(find_toolchain().nvrtc))
    return nvrtc.compile(source, "k.cu", (f"--gpu-architecture=sm_{arch}", "--ptxas-options=-v"), "CUBIN").log


@pytest.mark.parametrize("arch", some(sorted(MULTIPROCESSORS, key=lambda arch: arch not in (90, 120)), 2, "slow"))
def test_the_assembler_has_the_same_threads_blocks_and_registers(arch: int) -> None:
    limits = multiprocessor(arch)
    for threads, blocks in ((512, limits.threads // 512), (32, limits.blocks)):
        assert "out of range" not in assembled(arch, f"__launch_bounds__({threads}, {blocks})")
        assert "out of range" in assembled(arch, f"__launch_bounds__({threads}, {blocks + 1})")
    log = assembled(arch, f"__launch_bounds__({limits.block_threads})", 80)
    assert f"Used {limits.registers // limits.block_threads} registers" in log
    assert f"Used {limits.thread_registers} registers" in assembled(arch, "", 300)


HALF = 190  # no architecture; newer than those with wgmma


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    """An architecture with half the registers of sm_90, and half the threads in a block."""
    monkeypatch.setitem(MULTIPROCESSORS, HALF, replace(multiprocessor(90), registers=32_768, block_threads=512))


@pytest.mark.usefixtures("half")
def test_limits_of_registers_follow_from_the_entry() -> None:
    assert max_registers(HALF, 256) == max_registers(90, 512) == 128
    assert max_registers(HALF, 512) == max_registers(90, 1024)
    assert resident_blocks(HALF, 256, shared_bytes=0, registers=64) == 2
    assert accumulator_registers(HALF, 256) == accumulator_registers(90, 512)
    assert (paired_registers(HALF), paired_registers(90)) == (64, 128)
    assert [pair_limit(HALF, threads) for threads in (128, 256)] == [128, None]
    with pytest.raises(PlanError):
        multiprocessor(HALF + 1)


@pytest.mark.usefixtures("half")
def test_tiles_and_solvers_follow_from_the_entry() -> None:
    matrix = dense_operand("float32", 128, 128)
    problem = GemmProblem(128, 128, 128, matrix, matrix, matrix, "default", 256, 90)
    config = TileConfig("fma", 64, 64, 8, 4)
    assert fits(problem, config)
    assert not fits(replace(problem, arch=HALF), config)
    whole, fewer = (choose(replace(problem, arch=arch)) for arch in (90, HALF))
    assert registers(problem, fewer) <= 128 < 2 * registers(problem, whole)
    fewer = replace(config, tile_m=32)
    assert [accumulators_per_thread(replace(problem, arch=arch), fewer) for arch in (90, HALF)] == [64, 0]
    solver = SolverProblem("cholesky", 128, 128, (matrix, matrix), False, 256, 90)
    assert (register_limit(solver), register_limit(replace(solver, arch=HALF))) == (255, 128)


@pytest.mark.usefixtures("half")
def test_limits_of_a_search_follow_from_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(is_cpu=False, arch=HALF, max_shared_memory_per_block=1000)
    monkeypatch.setattr(warp, "get_device", lambda name: device)
    assert Limits.of("cuda:0") == Limits(1000, registers=32_768, threads=512)


@pytest.mark.parametrize(
    ("threads", "registers"),
    # for 768 threads and more: the registers that ptxas gives a large kernel with these launch bounds (NVRTC 12.9)
    [(1, None), (32, None), (128, None), (256, None), (257, 168), (288, 168), (320, 168), (384, 168), (385, 128),
     (512, 128), (513, 96), (640, 96), (768, 80), (769, 72), (896, 72), (1024, 64)],
)  # fmt: skip
def test_max_registers(threads: int, registers: int | None) -> None:
    assert max_registers(90, threads) == registers


@pytest.mark.parametrize(
    ("threads", "limit"), [(64, None), (128, None), (160, 128), (256, 128), (288, None), (512, None)]
)
def test_the_limit_of_two_blocks_leaves_enough_registers(threads: int, limit: int | None) -> None:
    assert pair_limit(90, threads) == limit


@pytest.mark.parametrize(
    ("arch", "registers", "alone", "allowed"),
    [
        (80, 128, True, True),  # the limit takes nothing away
        (80, 136, False, False),
        (90, 160, False, True),
        (90, 160, True, False),
        (90, 168, False, False),
        (100, 136, False, False),
    ],
)
def test_loops_with_the_limit_of_two_blocks(arch: int, registers: int, alone: bool, allowed: bool) -> None:
    assert allows_pair(arch, 128, registers, alone=alone) == allowed


@pytest.mark.parametrize(("threads", "registers"), [(128, None), (129, 128), (192, 128), (256, 128)])
def test_max_registers_of_two_blocks(threads: int, registers: int | None) -> None:
    assert max_registers(90, threads, 2) == registers


@given(st.integers(1, 1024))
def test_a_block_with_that_many_registers_launches(threads: int) -> None:
    registers = max_registers(90, threads)
    # Registers come in units of 256 per warp, and warps in groups of four, one for each quarter of the multiprocessor
    # (warp allocation granularity and register allocation unit size of NVIDIA's occupancy calculator).
    warps = -(-threads // 128) * 4
    granted = -(-(255 if registers is None else registers) * 32 // 256) * 256
    assert granted * warps <= 65_536
    if registers is not None:
        assert (registers + 8) * 32 * warps > 65_536  # no register is wasted


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


@given(st.sampled_from((75, 80, 86, 89, 90, 100, 120)), st.integers(1, 32), st.integers(0, 240_000))
def test_resident_blocks_fit_the_multiprocessor(arch: int, warps: int, shared_bytes: int) -> None:
    threads, limits = 32 * warps, multiprocessor(arch)
    blocks = resident_blocks(arch, threads, shared_bytes=shared_bytes)
    block_bytes = shared_bytes + static_shared_bytes(threads)
    assert (blocks > 0) == (shared_bytes <= shared_limit(arch, threads) and threads <= limits.threads)
    assert blocks * threads <= limits.threads
    assert blocks * (block_bytes + limits.shared_bytes - limits.block_shared_bytes) <= limits.shared_bytes


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"sm_{row['arch']} {row['loop']}")
def test_the_estimate_of_a_loop_is_not_far_below_what_the_assembler_takes(row: dict[str, Any]) -> None:
    through = row["instruction"] == "wgmma" and "tf32" in row["loop"] and "B columns" not in row["loop"]
    sums, operands = row["accumulators"], row["operands"]
    found = loop_registers(row["arch"], row["instruction"], sums, operands, through_registers=through)
    assert found == row["estimate"], "write the table again"
    assert found >= row["registers"] - most_below(row["loop"], row["arch"])


REMEASURED = (90, "wgmma"), (80, "mma_m16n8k16"), (90, "mma_m16n8k8"), (120, "fma")


@pytest.mark.parametrize(("arch", "instruction"), some(REMEASURED, 1, "slow"))
def test_the_installed_compiler_takes_about_what_the_table_says(arch: int, instruction: str) -> None:
    kept = next(row for row in ROWS if (row["arch"], row["instruction"]) == (arch, instruction))
    loop = next(loop for loop, of_arch in rows() if (loop.name, of_arch) == (kept["loop"], arch))
    with warp_tiles.enabled():
        found = measured(loop, arch)
    assert found is not None
    assert found["estimate"] == kept["estimate"]
    assert found["estimate"] >= found["registers"] - most_below(loop.name, arch)


def test_the_table_has_every_instruction_and_class() -> None:
    found = {(row["instruction"], row["arch"]) for row in ROWS}
    assert found >= {(i, arch) for i in ("mma_m16n8k16", "mma_m16n8k8", "fma") for arch in (80, 89, 90, 100, 120)}
    assert found >= {("wgmma", 90), ("mma_m8n8k4", 80), ("mma_m8n8k4", 89)}


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


def test_every_architecture_was_compiled_from_own_code_in_less_than_three_times_the_time_of_sm_90() -> None:
    rows = [row for row in result("compile_time")["rows"] if row["name"].startswith("arch ")]
    assert len(rows) == 12
    for row in rows:
        assert list(row["sides"]) == [f"sm_{arch}" for arch in MULTIPROCESSORS]
        assert not compile_time.is_bad(row)
    assert compile_time.SLOWEST == 3


# ---- names of architectures


@pytest.mark.parametrize(
    ("value", "arch"),
    [
        (90, 90), ("90", 90), ("sm_90", 90), ("sm_90a", 90), ("90a", 90), ("9.0", 90), ("9.0a", 90), (" 12.1 ", 121),
        ("sm_120f", 120),
    ],
)  # fmt: skip
def test_an_architecture_has_several_spellings(value: int | str, arch: int) -> None:
    assert parse_arch(value) == arch


@pytest.mark.parametrize("value", ["", "9", "sm90", "9.", "9.00", "90b", "1234", "-90", True, 9.0, None])
def test_another_spelling_is_refused(value: object) -> None:
    with pytest.raises(PlanError, match="arch is") as caught:
        parse_arch(value)
    assert "9.0" in caught.value.remedy
