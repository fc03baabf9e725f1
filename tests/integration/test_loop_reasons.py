"""What the plan of a loop says about its memory, its number of stages and its loads."""

from dataclasses import replace

import pytest

import warp_tiles
from benchmarks.loops import BUFFERED, Row
from tests.integration.helpers import load
from tests.integration.plans import needs_tf32
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


HALF, TF32 = (
    Case(128, 64, 32, 512, 512, 512),
    replace(Case(128, 64, 32, 512, 512, 512, dtype="float32"), precision="tf32"),
)
RESULTS = """
@wp.func
def vec2(x: wp.float32):
    return wp.vec2(x, x)


@wp.func
def vec3(x: wp.float32):
    return wp.vec3(x, x, x)


@wp.func
def float16(x: wp.float32):
    return wp.float16(x)


"""


@pytest.mark.parametrize(
    ("case", "result", "code"),
    [
        (replace(HALF, k=16, dtype="float64", a_transposed=True), "", "no_neighbours"),
        (HALF, "vec3", "elements_do_not_fit_vector"),
        (HALF, "vec2", ""),
        (replace(HALF, k=16, dtype="float32"), "vec2", "elements_do_not_fit_vector"),
        (HALF, "float16", ""),
        pytest.param(TF32, "", "", marks=needs_tf32),  # its products pass through registers
        pytest.param(TF32, "float16", "few_neighbours", marks=needs_tf32),
        (replace(HALF, m=32), "", ""),  # the transpose of C
        (replace(HALF, m=32), "float16", "few_neighbours"),
    ],
)
def test_which_results_are_stored_from_registers(case: Case, result: str, code: str) -> None:
    text = RESULTS + case.text("multiply")
    if result:
        text = text.replace("C: wp.array2d(dtype=wp.float32)", f"C: wp.array2d(dtype=wp.{result})")
        text = text.replace("C, c,", f"C, wp.tile_map({result}, c),")
    (loop,) = warp_tiles.plan(load(text), arch=90, block_dim=128).loops
    assert (loop.state, loop.store_code) == ("pipelined", code)
    assert ("are stored from registers" in loop.store) == (not code)
