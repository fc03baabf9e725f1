"""What the plan of a loop says about its memory, its number of stages and its loads."""

from dataclasses import replace

import pytest

import warp_tiles
from benchmarks.loops import BUFFERED, Row
from tests.integration.helpers import load
from tests.nightly import some
from tests.staged_cases import FORMS, Case, with_type
from warp_tiles.plan.planning import PlannedLoop

pytestmark = pytest.mark.usefixtures("enabled")


def planned(case: Case, arch: int, threads: int, main_loop: str = "auto") -> PlannedLoop:
    module = load(case.text("multiply"), block_dim=threads)
    with warp_tiles.override(main_loop=main_loop):
        (loop,) = warp_tiles.plan(module, arch=arch, block_dim=threads).loops
    return loop


@pytest.mark.parametrize(
    ("tile", "arch", "threads", "stages", "codes"),
    [
        ((128, 128, 64), 90, 128, 3, ("next_stage_leaves_fewer_blocks",)),
        ((128, 128, 64), 86, 256, 3, ("next_stage_does_not_fit",)),
        ((128, 256, 64), 90, 256, 4, ("next_stage_does_not_fit",)),
        ((128, 256, 16), 90, 256, 6, ()),
    ],
)
def test_why_there_are_no_more_stages(
    tile: tuple[int, int, int], arch: int, threads: int, stages: int, codes: tuple[str, ...]
) -> None:
    loop = planned(Case(*tile, 512, 512, 512), arch, threads)
    assert (loop.state, loop.stages, loop.codes) == ("pipelined", stages, codes)


def test_a_start_value_leaves_the_memory_of_c_to_the_stages() -> None:
    case = replace(FORMS["start value"], m=128, n=256, k=64, rows=512, columns=512, depth=512)
    loop = planned(case, 90, 256)
    assert (loop.stages, loop.store) == (4, "the accumulators are stored from registers")


def test_a_start_value_of_float64_costs_no_shared_memory() -> None:
    case = replace(FORMS["start value"], m=128, n=64, k=16, rows=512, columns=512, depth=512, dtype="float64")
    loop, zeros = planned(case, 90, 256), planned(replace(case, start=FORMS["common"].start), 90, 256)
    assert (loop.reason, loop.store) == (zeros.reason, "the accumulators are stored from registers")


@pytest.mark.parametrize("row", some(BUFFERED, 4), ids=lambda row: row.name)
def test_measured_loops_have_double_buffers_unless_stages_are_fixed(row: Row) -> None:
    """``benchmarks/loops.py --buffered`` compares both."""
    found = []
    for main_loop in (row.main_loop, "stages=2"):
        with warp_tiles.override(main_loop=main_loop):
            module = load(row.source, block_dim=row.threads)
            (loop,) = warp_tiles.plan(module, arch=90, block_dim=row.threads).loops
        found.append((loop.state, loop.instruction, "few_accumulators" in loop.codes))
    assert found == [("pipelined", "", True), ("pipelined", "fma", False)]


@pytest.mark.parametrize(
    ("dtype", "precision", "b_transposed", "loads"),
    [
        (
            "float16", "default", False,
            "async copies of 16 bytes load tiles, or of 4 bytes where rows begin at other multiples of 4, or threads "
            "load elements where a row has gaps or begins at an odd element",
        ),
        (
            "float64", "default", False,
            "async copies of 16 bytes load tiles, or of 8 bytes where rows begin at other multiples of 8, or threads "
            "load elements where a row has gaps",
        ),
        ("float32", "default", True, "async copies of single elements transpose tiles on their way"),
    ],
)  # fmt: skip
def test_how_tiles_are_loaded(dtype: str, precision: str, b_transposed: bool, loads: str) -> None:
    case = Case(128, 128, 16, 512, 512, 512, b_transposed=b_transposed)
    (case,) = with_type({"": case}, dtype, precision).values()
    assert planned(case, 90, 256).loads.endswith(loads)
    assert planned(case, 90, 256, "double_buffered").loads == ""
