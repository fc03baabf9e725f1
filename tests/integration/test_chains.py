"""What plans say about loops whose tiles stay in registers between their products."""

import pytest

import warp_tiles
from benchmarks.attention import Cell
from tests.chain_forms import BODY, FORMS, LOADS, SCORES, SOFTMAX, START, STORE, THREADS, VALUES, kernel
from tests.integration.helpers import load
from warp_tiles.plan.planning import PlannedLoop

pytestmark = pytest.mark.usefixtures("enabled")


def planned(text: str, threads: int = THREADS, arch: int = 90, **settings: object) -> PlannedLoop:
    module = load(text, block_dim=threads)
    with warp_tiles.override(**settings):
        (*_, loop) = warp_tiles.plan(module, arch=arch, block_dim=threads).loops
    return loop


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    loop, code = planned(FORMS[name].text), FORMS[name].code
    assert (loop.state, loop.instruction) == (("as_warp", "") if code else ("pipelined", "mma_m16n8k16"))
    assert code in loop.codes if code else loop.codes == ()


def test_a_chain_says_what_it_takes() -> None:
    loop = planned(FORMS["attention"].text)
    assert (loop.stages, loop.accumulators) == (2, 48)
    start = "mma_m16n8k16 multiplies 2 stages of 8192 bytes, in idle tiles; "
    assert loop.reason == start + "the tiles between its products stay in registers"


def test_functions_are_built_only_for_the_reverse_pass() -> None:
    for name, needed in (("attention", 0), ("with an adjoint", 6)):
        module = load(FORMS[name].text, block_dim=THREADS)
        assert len(warp_tiles.plan(module, arch=90, block_dim=THREADS).needed) == needed


OTHERS = {
    "a while loop": (
        kernel(BODY + "step += 64\n", "while step < K.shape[0]:", START + "step = int(0)\n"),
        "while_loop",
    ),
    "another alpha": (kernel(BODY.replace("v, o)", "v, o, alpha=2.0)")), "has_factors"),
    "an unknown offset": (kernel(BODY.replace("(step, 0)", "(step * step, 0)")), "unknown_range"),
    "another array": (
        kernel("A = K[0:64]\nif step > 0:\n    A = V[0:64]\n" + BODY.replace("load(K,", "load(A,")),
        "chain_with_branches",
    ),
    "an A that the loop does not make": (
        kernel(BODY.replace("matmul(q,", "matmul(wp.tile_astype(o, dtype=wp.float16),")),
        "new_c",
    ),
    "a loaded float32": (
        kernel(LOADS + "e = wp.tile_load(O, shape=(32, 32), storage='shared')\n" + SCORES + SOFTMAX + VALUES),
        "chain_tile",
    ),
    "an operand of the loop that is used after it": (
        kernel(store=STORE + "wp.tile_store(O, wp.tile_astype(k, dtype=float))\n"),
        "used_outside",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_as_warp_has_them(name: str) -> None:
    text, code = OTHERS[name]
    loop = planned(text)
    assert loop.state == "as_warp"
    assert code in loop.codes


@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        ((128, 128, 64, 128), "chain_registers"),
        ((128, 32, 64, 64), "chain_memory"),
        ((64, 64, 32, 128), "chain_reduction"),
    ],
)
def test_what_does_not_fit(sizes: tuple[int, int, int, int], code: str) -> None:
    cell = Cell("attention", *sizes)
    loop = planned(cell.text("tiles").removeprefix("import warp as wp\n"), cell.threads)
    assert loop.state == "as_warp"
    assert code in loop.codes


@pytest.mark.parametrize(
    ("threads", "arch", "settings", "code"),
    [
        (128, 90, {}, "chain_rows"),
        (64, 75, {}, "no_async_copies"),
        (64, 90, {"async_copies": False}, "async_copies_off"),
        (64, 90, {"main_loop": "double_buffered"}, "setting_to_change"),
    ],
)
def test_targets(threads: int, arch: int, settings: dict[str, object], code: str) -> None:
    loop = planned(FORMS["attention"].text, threads, arch, **settings)
    assert loop.state == "as_warp"
    assert code in loop.codes
