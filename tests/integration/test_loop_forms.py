"""The plan of common loops of products, and its agreement with the generated source."""

import re
from types import ModuleType
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import generated_source, load
from tests.loop_forms import FORMS, INTO_PARAMETER, SPELLINGS, in_half
from tests.loop_texts import ONES, OTHER, RANGE, START, STORE, indented, kernel

pytestmark = pytest.mark.usefixtures("enabled")


def loops_of(module: ModuleType, arch: int = 90) -> list[warp_tiles.PlannedLoop]:
    return list(warp_tiles.plan(module, arch=arch, block_dim=64).loops)


@pytest.mark.parametrize("name", FORMS)
def test_the_plan_has_state_and_reason(name: str) -> None:
    form = FORMS[name]
    loops = loops_of(load(form.text))
    assert len(loops) == form.loops, loops
    for loop in loops:
        assert loop.state == form.state, loop
        assert form.code in loop.codes if form.code else form.reason in loop.reason, loop
        assert loop.kernel == "multiply"
        assert loop.stages == (form.stages if form.state == "pipelined" else 1)


@pytest.mark.parametrize("name", SPELLINGS)
def test_module_options_do_not_matter(name: str) -> None:
    (loop,) = loops_of(load(SPELLINGS[name].text, lineinfo=True, fast_math=True, max_unroll=4))
    assert loop.state == "pipelined", loop


def test_lines_refer_to_the_users_file() -> None:
    module = load(SPELLINGS["bounds from a shape"].text)
    (loop,) = loops_of(module)
    assert loop.file == module.__file__
    with open(loop.file, encoding="utf-8") as file:
        assert file.read().splitlines()[loop.line - 1].strip().startswith("for k in range")


def test_the_plan_as_json() -> None:
    module = load(SPELLINGS["while"].text)
    (loop,) = warp_tiles.plan(module, arch=90, block_dim=64).to_json()["loops"]
    facts = (
        "kernel file line products state treatment stages reason instruction accumulators operands gradients reverse"
    )
    facts += " reverse_instructions store loads cost shared_bytes registers resident_blocks"
    facts += " codes gradients_code reverse_code store_code"
    assert set(loop) == set(facts.split())
    assert (loop["kernel"], loop["products"], loop["state"], loop["stages"]) == ("multiply", 1, "pipelined", 2)


def test_a_setting_is_a_reason_and_the_scalar_path_another() -> None:
    for settings, codes in (({"provider": "cublasdx"}, ("foreign_function", "few_accumulators")),
                            ({"policy": "scalar"}, ("setting_to_change",))):  # fmt: skip
        with warp_tiles.override(**settings):
            (loop,) = loops_of(load(SPELLINGS["bounds from a shape"].text))
        assert (loop.state, loop.codes) == ("as_warp", codes)


def test_a_loop_of_two_kernels_is_listed_for_both() -> None:
    text = SPELLINGS["in a function"].text
    other = text[text.index("@wp.kernel") :].replace("def multiply", "def again")
    loops = loops_of(load(text + other))
    assert sorted(loop.kernel for loop in loops) == ["again", "multiply"]
    assert len({(loop.file, loop.line) for loop in loops}) == 1


def test_a_cpu_module_has_no_loops() -> None:
    module = load(SPELLINGS["bounds from a shape"].text)
    assert warp_tiles.plan(module, arch=None).loops == ()
    assert wp.is_cpu_available()


READ = kernel(START, "d = c + wp.tile_ones(shape=(32, 32), dtype=wp.float32)", RANGE, STORE, "wp.tile_store(C, d)")
ZEROS: dict[str, tuple[str, list[bool]]] = {
    "usual": (SPELLINGS["bounds from a shape"].text, [False]),
    "numbers between": (kernel(START, "n = A.shape[1]", RANGE.replace("A.shape[1]", "n"), STORE), [False]),
    "a condition": (kernel(START, "if A.shape[1] > 0:\n" + indented(RANGE), STORE), [True]),
    "an outer loop": (kernel(START, "for part in range(A.shape[0]):\n" + indented(RANGE), STORE), [True]),
    "read": (READ, [True]),
    "zeros of another tile": (kernel(START, OTHER, RANGE, STORE), [False, True]),
    "another tile": (kernel(START, "s = wp.tile_sum(wp.tile_ones(shape=8, dtype=wp.float32))", RANGE, STORE), [False]),
    "a view": (kernel(START, "v = wp.tile_transpose(c)", RANGE, STORE), [True]),
    "an earlier condition": (kernel(START, "n = int(0)", "if A.shape[1] > 0:\n    n = 1", RANGE, STORE), [True]),
    "an earlier loop": (kernel(START, "n = int(0)", "for q in range(A.shape[0]):\n    n = q", RANGE, STORE), [True]),
    "in one condition": (kernel("if A.shape[1] > 0:", indented(START, RANGE, STORE)), [False]),
    "in one loop": (kernel("for part in range(A.shape[0]):", indented(START, RANGE, STORE)), [False]),
    "other values": (FORMS["a start value"].text, []),
}


@pytest.mark.parametrize("name", ZEROS)
def test_zeros_that_a_loop_overwrites_are_not_written(name: str, tmp_path: Any) -> None:
    text, kept = ZEROS[name]
    source = generated_source(load(in_half(text), block_dim=64), tmp_path)
    fills = re.findall(r"WT_AT_(\d+)\(var_\d+ = wp::tile_zeros", source)
    macros = dict(re.findall(r"#define WT_AT_(\d+)\(\.\.\.\) ?(.*)", source))
    assert [macros[number] == "__VA_ARGS__" for number in dict.fromkeys(fills)] == kept


ONE = "one = wp.tile_ones(shape=(32, 32), dtype=wp.float32, storage='shared')"
IF, FOR, UNROLLED = "if A.shape[1] > 0:", "for part in range(A.shape[0]):", "for part in range(2):"
CHANGE, CHANGE_VIEW = "c += one", "v = wp.tile_view(c, shape=(16, 32), offset=(0, 0))\nv += v"
ADD, PASS_ON = "add_product(A, B, i, j, {})", "pass_on(A, B, i, j, c)"
ONES_D, VIEW_C = ONES.replace("c =", "d ="), "v = wp.tile_view(c, shape=(32, 32), offset=(0, 0))"


def called(*lines: str) -> str:
    """A kernel whose loop is in a function that gets C."""
    head = INTO_PARAMETER[: INTO_PARAMETER.index("    for")].replace("add_product", "pass_on")
    return kernel(*lines, STORE, above=f"{INTO_PARAMETER}{head}    {ADD.format('c')}\n\n")


IDLE: dict[str, tuple[str, bool]] = {
    "zeros": (kernel(START, RANGE, STORE), True),
    "zeros of another tile": (kernel(ONES, OTHER, RANGE, STORE), False),
    "a sum of another tile between": (kernel(ONE, START, "s = wp.tile_sum(one)", RANGE, STORE), True),
    "zeros of another tile between": (kernel(START, OTHER, RANGE, STORE), True),
    "a change between": (kernel(ONE, START, CHANGE, RANGE, STORE), False),
    "a change of a view between": (kernel(START, CHANGE_VIEW, RANGE, STORE), False),
    "a view between": (kernel(START, "v = wp.tile_transpose(c)", RANGE, STORE), True),
    **{
        f"{what}, {block}": (kernel(ONE, START, block, indented(statement), RANGE, STORE), is_idle)
        for block in (IF, FOR)
        for what, statement, is_idle in (
            ("a sum in a block", "s = wp.tile_sum(one)", True),
            ("a change in a block", CHANGE, False),
            ("a view in a block", "v = wp.tile_transpose(c)", True),
        )
    },
    "in a condition": (kernel(START, IF, indented(RANGE), STORE), True),
    "with zeros, in a condition": (kernel(IF, indented(START, RANGE, STORE)), True),
    "with a change, in a condition": (kernel(ONE, START, IF, indented(CHANGE, RANGE), STORE), False),
    "with a change before a condition": (kernel(ONE, START, CHANGE, IF, indented(RANGE), STORE), False),
    "with zeros, in a loop": (kernel(FOR, indented(START, RANGE, STORE)), True),
    "stored in each iteration": (kernel(START, IF, indented(FOR, indented(RANGE, STORE))), False),
    "in an unrolled loop": (kernel(START, UNROLLED, indented(RANGE), STORE), True),
    "with a change, in an unrolled loop": (kernel(ONE, START, UNROLLED, indented(CHANGE, RANGE), STORE), False),
    "into a parameter": (called(START, ADD.format("c")), True),
    "into a parameter that holds values": (called(ONES, ADD.format("c")), False),
    "into a parameter, by two calls": (called(START, OTHER, ADD.format("c"), ADD.format("d")), True),
    "into a parameter, by a call with values": (called(START, ONES_D, ADD.format("c"), ADD.format("d")), False),
    "into a parameter twice": (called(START, ADD.format("c"), ADD.format("c")), False),
    "into a parameter that is a view": (called(START, VIEW_C, ADD.format("v")), False),
    "into a parameter that is passed on": (called(START, PASS_ON), True),
    "into a parameter with values that is passed on": (called(ONES, PASS_ON), False),
}


@pytest.mark.parametrize("name", IDLE)
def test_the_memory_of_c_holds_buffers_while_it_has_zeros(name: str) -> None:
    text, is_idle = IDLE[name]
    found = warp_tiles.plan(load(text), arch=90, block_dim=64).code.loops
    in_c = {buffer.c is not None for loop in found for buffer in loop.buffers}
    assert in_c == {True} if is_idle else True not in in_c


TIMES = """
@wp.func
def times(B: wp.array2d(dtype=wp.float32), x: Any, p: Any):
    for k in range(0, B.shape[0], 32):
        b = wp.tile_load(B, shape=(32, 32), offset=(k, 0), storage="shared")
        wp.tile_matmul(x, b, p)

"""


@pytest.mark.parametrize(
    ("calls", "overlap"), [(["times(B, one, c)"], False), (["times(B, one, c)", "times(B, c, c)"], True)]
)
def test_parameters_share_memory_if_one_call_passes_equal_tiles(calls: list[str], overlap: bool) -> None:
    loops = loops_of(load(kernel(ONE, START, *calls, STORE, above=TIMES)))
    assert {("c_overlaps" in loop.codes, loop.state == "as_warp") for loop in loops} == {(overlap, overlap)}
