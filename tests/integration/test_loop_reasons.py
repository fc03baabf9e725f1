"""What the plan of a loop says about its memory, its loads and stores, and the tiles between its products."""

from dataclasses import replace

import pytest

import warp_tiles
from benchmarks.attention import Cell
from benchmarks.loops import BUFFERED, Row
from tests import chain_forms
from tests.chain_forms import BODY, START, THREADS
from tests.integration.helpers import load
from tests.integration.plans import needs_tf32
from tests.nightly import some
from tests.staged_cases import FORMS, Case, with_type
from warp_tiles.plan.planning import PlannedLoop

pytestmark = pytest.mark.usefixtures("enabled")


def planned_text(text: str, threads: int, arch: int = 90, **settings: object) -> PlannedLoop:
    with warp_tiles.override(**settings):
        (*_, loop) = warp_tiles.plan(load(text, block_dim=threads), arch=arch, block_dim=threads).loops
    return loop


def planned(case: Case, arch: int, threads: int, main_loop: str = "auto") -> PlannedLoop:
    return planned_text(case.text("multiply"), threads, arch, main_loop=main_loop)


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
        loop = planned_text(row.source, row.threads, main_loop=main_loop)
        found.append((loop.state, loop.instruction, "few_accumulators" in loop.codes))
    assert found == [("pipelined", "", True), ("pipelined", "fma", False)]


@pytest.mark.parametrize(
    ("dtype", "precision", "b_transposed", "loads"),
    [
        (
            "float16", "default", False,
            "async copies of 16 bytes load tiles, or of 8 or 4 bytes where rows begin at other multiples of these, or "
            "threads load elements where a row has gaps or begins at an odd element",
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
def float16(x: wp.float32):
    return wp.float16(x)


"""


@pytest.mark.parametrize(
    ("case", "result", "code"),
    [
        (replace(HALF, k=16, dtype="float64", a_transposed=True), "", "no_neighbours"),
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
    loop = planned_text(text, 128)
    assert (loop.state, loop.store_code) == ("pipelined", code)
    assert ("are stored from registers" in loop.store) == (not code)


# ---- chains of products


CHAINS = {name: (form.text, form.code) for name, form in chain_forms.FORMS.items()} | {
    "a while loop": (
        chain_forms.kernel(BODY + "step += 64\n", "while step < K.shape[0]:", START + "step = int(0)\n"), "while_loop"
    ),
    "another alpha": (chain_forms.kernel(BODY.replace("v, o)", "v, o, alpha=2.0)")), "has_factors"),
    "another array": (
        chain_forms.kernel("A = K[0:64]\nif step > 0:\n    A = V[0:64]\n" + BODY.replace("load(K,", "load(A,")),
        "chain_with_branches",
    ),
}  # fmt: skip
CHAIN = CHAINS["attention"][0]


@pytest.mark.parametrize("name", CHAINS)
def test_tiles_between_products_stay_in_registers_or_a_code_says_why_not(name: str) -> None:
    text, code = CHAINS[name]
    loop = planned_text(text, THREADS)
    assert (loop.state, loop.instruction) == (("as_warp", "") if code else ("pipelined", "mma_m16n8k16"))
    assert code in loop.codes if code else loop.codes == ()


@pytest.mark.parametrize(
    ("arch", "settings", "code"),
    [
        (75, {}, "no_async_copies"),
        (90, {"async_copies": False}, "async_copies_off"),
        (90, {"main_loop": "double_buffered"}, "setting_to_change"),
    ],
)
def test_a_target_or_a_setting_without_chains(arch: int, settings: dict[str, object], code: str) -> None:
    loop = planned_text(CHAIN, THREADS, arch, **settings)
    assert loop.state == "as_warp"
    assert code in loop.codes


@pytest.mark.parametrize(
    ("sizes", "stages"),
    [
        ((64, 64, 64, 128), "2 stages of 16384 bytes, in idle tiles; 8192"),
        ((128, 64, 128, 128), "1 stage of 65536 bytes, in idle tiles; 16384"),
        ((64, 128, 64, 256), "2 stages of 16384 bytes for each warpgroup, in idle tiles; 16384"),
        ((128, 128, 64, 128), "1 stage of 32768 bytes, in idle tiles; 32768"),
    ],
)
def test_the_stages_of_a_chain(sizes: tuple[int, int, int, int], stages: str) -> None:
    """With one stage, two blocks are resident in place of one."""
    cell = Cell("attention", *sizes)
    loop = planned_text(cell.text("tiles").removeprefix("import warp as wp\n"), cell.threads)
    memory = f"{stages} bytes of them have the left operands from outside"
    assert loop.reason == f"wgmma multiplies {memory}; the tiles between its products stay in registers"


@pytest.mark.parametrize(
    ("sizes", "limit", "reason"),
    [
        ((64, 128, 64, 256), 128, "2 resident blocks hide latency"),
        ((128, 64, 64, 128), 168, "3 resident blocks hide latency"),
        ((64, 128, 128, 256), 255, "one block is resident"),
    ],
)
def test_the_registers_of_a_chain(sizes: tuple[int, int, int, int], limit: int, reason: str) -> None:
    """The left operands from outside, in shared memory, take none. The assembler is told to use what one block has."""
    cell = Cell("attention", *sizes)
    module = load(cell.text("tiles").removeprefix("import warp as wp\n"), block_dim=cell.threads)
    plan = warp_tiles.plan(module, arch=90, block_dim=cell.threads)
    assert (plan.register_limit, plan.register_limit_reason) == (limit, reason)


def test_a_chain_whose_stages_do_not_fit_says_what_the_least_of_them_need() -> None:
    cell = Cell("attention", 128, 32, 64, 64)  # two stages by mma.sync, of 64 keys each
    loop = planned_text(cell.text("tiles").removeprefix("import warp as wp\n"), cell.threads)
    assert "chain_memory" in loop.codes
    assert f"its stages need {2 * 2 * 64 * 128 * 2 + 1024} bytes" in loop.reason


def test_a_chain_says_what_it_takes_and_needs_functions_for_the_reverse_pass_alone() -> None:
    loop = planned_text(CHAIN, THREADS)
    assert (loop.stages, loop.accumulators) == (2, 48)
    start = "mma_m16n8k16 multiplies 2 stages of 8192 bytes, in idle tiles; "
    assert loop.reason == start + "the tiles between its products stay in registers"
    for name, needed in (("attention", 0), ("with an adjoint", 6)):
        module = load(CHAINS[name][0], block_dim=THREADS)
        assert len(warp_tiles.plan(module, arch=90, block_dim=THREADS).needed) == needed
