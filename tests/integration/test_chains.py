"""What plans say about loops whose tiles stay in registers between their products."""

import pytest

import warp_tiles
from tests.chain_forms import BODY, FORMS, START, THREADS, kernel
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
    "another array": (
        kernel("A = K[0:64]\nif step > 0:\n    A = V[0:64]\n" + BODY.replace("load(K,", "load(A,")),
        "chain_with_branches",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_as_warp_has_them(name: str) -> None:
    text, code = OTHERS[name]
    loop = planned(text)
    assert loop.state == "as_warp"
    assert code in loop.codes


@pytest.mark.parametrize(
    ("arch", "settings", "code"),
    [
        (75, {}, "no_async_copies"),
        (90, {"async_copies": False}, "async_copies_off"),
        (90, {"main_loop": "double_buffered"}, "setting_to_change"),
    ],
)
def test_targets(arch: int, settings: dict[str, object], code: str) -> None:
    loop = planned(FORMS["attention"].text, arch=arch, **settings)
    assert loop.state == "as_warp"
    assert code in loop.codes
