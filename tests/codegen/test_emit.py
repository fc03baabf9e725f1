"""The text at hooks."""

from __future__ import annotations

from tests.codegen import traces as t
from warp_tiles.codegen.answers import Loads
from warp_tiles.codegen.emit_loops import emit_loads, emit_loops, skip_replays
from warp_tiles.codegen.hooks import Hook, Macros
from warp_tiles.codegen.loops import decide
from warp_tiles.codegen.operations import Operation
from warp_tiles.codegen.trace import FunctionTrace, Node

A, B, C, D = t.tile("a", 16, 8), t.tile("b", 8, 16), t.tile("c"), t.tile("d")


def defined(macros: Macros, *functions: FunctionTrace) -> dict[str, str]:
    """The body of each macro, by its name."""
    found = {}
    for line in macros.definitions(hook for function in functions for hook in function.hooks()):
        word, _, rest = line.removeprefix("#define ").partition(" ")
        name = word.removesuffix("(...)")
        assert name not in found
        takes = name.startswith(("WT_AT_", "WT_REPLAY_")) and "WAIT" not in name
        assert word.endswith("(...)") is takes
        found[name] = rest
    return found


def macros_of(*nodes: Node, ahead: bool = True) -> dict[str, str]:
    function = t.function(*nodes)
    macros = Macros()
    module = t.module(function)
    emit_loops(macros, decide(module, function, t.accumulators_of(0, 1), ahead=ahead))
    return defined(macros, function)


def at(found: dict[str, str], operation: Operation) -> str:
    return found[f"WT_AT_{operation.hook}"]


def product(site: int = 0, a: object = A, b: object = B, c: object = C) -> Operation:
    return t.product(a, b, c, site)  # type: ignore[arg-type]


# ---- definitions


def test_names_of_hooks() -> None:
    assert [hook.name_of(3) for hook in Hook] == [
        *("WT_WAIT_3", "WT_REPLAY_WAIT_3", "WT_AT_3", "WT_REPLAY_3", "WT_BEGIN_3", "WT_END_3"),
        *("WT_ADJOINT_3", "WT_RECOMPUTE_3", "WT_ZERO_3", "WT_REVERSE_BEGIN_3", "WT_REVERSE_END_3"),
    ]
    assert [hook for hook in Hook if hook.takes_statement] == [
        *(Hook.AT, Hook.REPLAY, Hook.ADJOINT, Hook.RECOMPUTE, Hook.ZERO)
    ]
    assert Hook.AT.around(3, "f(a, b);") == "WT_AT_3(f(a, b);)"


def test_hooks_without_a_decision_are_defined_and_empty() -> None:
    load = t.load(A, wait=2, hook=1)
    body = t.branch(t.operation("x", wait=5), wait=6, end_wait=7)
    function = t.function(t.loop(load, body, hook=3, wait=4, end_wait=8), t.arithmetic(), end_wait=9)
    found = defined(Macros(), function)
    waits = {f"WT_{kind}_{number}": "" for number in (2, 4, 5, 6, 7, 8, 9) for kind in ("WAIT", "REPLAY_WAIT")}
    assert found == {
        **waits,
        "WT_AT_1": "__VA_ARGS__",
        "WT_REPLAY_1": "__VA_ARGS__",
        "WT_BEGIN_3": "",
        "WT_END_3": "",
    }


def test_missing_hooks_are_not_defined() -> None:
    nodes = (t.operation("x", wait=None), t.branch(wait=None, end_wait=None), t.load(A, hook=None, wait=None))
    assert Macros().definitions(t.function(*nodes, end_wait=None).hooks()) == []
    unrolled = t.loop(t.arithmetic(), kind="unrolled", hook=3)
    assert set(defined(Macros(), t.function(unrolled, end_wait=None))) == {"WT_BEGIN_3", "WT_END_3"}


def test_statements_at_one_hook_stay_in_order() -> None:
    macros = Macros()
    macros.add(Hook.BEGIN, 3, "one;")
    macros.add(Hook.BEGIN, 3, "two;")
    macros.add(Hook.END, 4, "other;")
    assert defined(macros, t.function(t.loop(hook=3)))["WT_BEGIN_3"] == "one; two;"


def test_hooks_of_every_function() -> None:
    assert len(defined(Macros(), t.function(t.loop()), t.function(t.loop(), label="f"))) == 2 * 8


# ---- loads and products


def test_loads_and_waits_of_both_passes() -> None:
    first, second, use = t.load(A), t.load(B), t.operation("tile_sum", A)
    function = t.function(first, second, use)
    macros = Macros()
    forward = Loads({first.hook: True, second.hook: False}, frozenset({use.wait}))  # type: ignore[dict-item,arg-type]
    replayed = Loads({second.hook: True}, frozenset({function.end_wait}))  # type: ignore[dict-item,arg-type]
    emit_loads(macros, forward, replayed)
    found = defined(macros, function)
    assert at(found, first) == "wt_module::Load<true>() << __VA_ARGS__"
    assert at(found, second) == "wt_module::Load<false>() << __VA_ARGS__"
    assert found[f"WT_REPLAY_{first.hook}"] == "__VA_ARGS__"
    assert found[f"WT_REPLAY_{second.hook}"] == "wt_module::Load<true>() << __VA_ARGS__"
    assert found[f"WT_WAIT_{use.wait}"] == "wt_module::wait_for_loads();"
    assert found[f"WT_REPLAY_WAIT_{use.wait}"] == ""
    assert found[f"WT_WAIT_{function.end_wait}"] == ""
    assert found[f"WT_REPLAY_WAIT_{function.end_wait}"] == "wt_module::wait_for_loads();"


def test_products_that_the_reverse_pass_does_not_repeat() -> None:
    one, other = product(0), product(1)
    function, macros = t.function(one, other), Macros()
    skip_replays(macros, [one.hook])
    found = defined(macros, function)
    assert found[f"WT_REPLAY_{one.hook}"] == "WP_TILE_SYNC();"
    assert found[f"WT_REPLAY_{other.hook}"] == "__VA_ARGS__"
    assert at(found, one) == "__VA_ARGS__"


# ---- loops


def test_sums_in_registers() -> None:
    one = product()
    body = t.loop(t.load(A), t.load(B), one)
    outer = t.loop(body)
    found = macros_of(t.zeros(C), outer, ahead=False)
    array = f"wt_accumulators_{one.hook}"
    zeroed = f"for (int wt_i = 0; wt_i < 8; ++wt_i) {array}[wt_i] = wp::float32(0);"
    assert found[f"WT_BEGIN_{outer.hook}"] == f"wp::float32 {array}[8]; {zeroed}"
    assert found[f"WT_BEGIN_{body.hook}"] == found[f"WT_END_{body.hook}"] == ""
    assert at(found, one) == f"f0_add({array}, a.data.ptr, b.data.ptr); WP_TILE_SYNC();"
    assert found[f"WT_END_{outer.hook}"] == f"WP_TILE_SYNC(); f0_finish({array}, c.data.ptr); WP_TILE_SYNC();"


def test_two_products_share_one_array() -> None:
    one, again = product(), product()
    body = t.loop(one, again)
    found = macros_of(t.zeros(C), body)
    array = f"wt_accumulators_{one.hook}"
    assert found[f"WT_BEGIN_{body.hook}"].count(f"{array}[8];") == 1
    assert found[f"WT_END_{body.hook}"].count("_finish(") == 1
    assert at(found, one) == at(found, again)


def test_a_pipelined_loop() -> None:
    first, second, one = t.load(A), t.load(B), product()
    body = t.loop(first, second, one, hook=90)
    found = macros_of(t.zeros(C), body)
    begin = found["WT_BEGIN_90"]
    assert begin.index("wt_module::PipelineState wt_state_90; wt_state_90.start();") > 0
    for name, offset in (("a", 0), ("b", 512)):
        address = f"wt_module::address(c.data.ptr) + {offset}"
        buffer = f"wt_buffer_90_{name}"
        assert f"wt_module::DoubleBuffer<decltype({name})> {buffer}; {buffer}.start({name}, {address});" in begin
        assert f"{buffer}.end({name}, {address});" in found["WT_END_90"]
    assert at(found, first) == (
        "wt_module::wait_for_loads(); wt_buffer_90_a.load_next(a); wt_buffer_90_b.load_next(b); "
        "wt_module::Load<false>() << __VA_ARGS__"
    )
    assert at(found, second) == "wt_module::Load<false>() << __VA_ARGS__"
    add = f"f0_add(wt_accumulators_{one.hook}, wt_buffer_90_a.ready(), wt_buffer_90_b.ready());"
    assert at(found, one) == (
        f"wt_multiply_90:; if (wt_state_90.pending) {{ {add} }} wt_state_90.pending = true; "
        "wt_buffer_90_a.swap(); wt_buffer_90_b.swap(); if (!wt_state_90.more) goto wt_done_90;"
    )
    end = found["WT_END_90"]
    parts = [
        "wt_state_90.more = false; wt_module::wait_for_loads(); goto wt_multiply_90; wt_done_90:;",
        ".end(a",
        "wt_module::zero(c);",
        "f0_finish(",
    ]
    assert [end.index(part) for part in parts] == sorted(end.index(part) for part in parts)
    assert end.count("wt_module::zero(") == 1


def test_products_of_a_pipelined_loop_move_to_the_last_one() -> None:
    one, last = product(), product(1, c=D)
    found = macros_of(t.zeros(C), t.zeros(D), t.loop(t.load(A), t.load(B), one, last))
    assert at(found, one) == ""
    text = at(found, last)
    assert text.index("f0_add(") < text.index("f1_add(")
    assert text.count("if (wt_state_") == 1


def test_operands_of_a_pipelined_product() -> None:
    transposed, constant = t.view("v", B), t.tile("s", 16, 8)
    one = t.product(constant, transposed, C)
    found = macros_of(t.zeros(C), t.load(constant), t.loop(t.load(B), t.alias(transposed, B), one, hook=91))
    assert "s.data.ptr, wt_buffer_91_b.ready(wt_buffer_91_b_v));" in at(found, one)
    assert "if (wt_state_91.more) { wt_buffer_91_b_v = wt_buffer_91_b.offset(v, b); }" in at(found, one)


def test_only_memory_of_buffers_is_zeroed() -> None:
    body = t.loop(t.load(A), t.load(B), product(), product(1, c=D), hook=92)
    found = macros_of(t.zeros(C), t.zeros(D), body)
    assert "wt_module::zero(c);" in found["WT_END_92"]
    assert "wt_module::zero(d);" not in found["WT_END_92"], "it holds no buffers"


def test_an_unrolled_loop() -> None:
    tiles = [(t.tile(f"a{i}", 16, 8), t.tile(f"b{i}", 8, 16)) for i in range(3)]
    nodes = [(t.load(a), t.load(b), t.product(a, b, C)) for a, b in tiles]
    body = t.loop(*(node for group in nodes for node in group), kind="unrolled")
    found = macros_of(t.zeros(C), body)
    array = f"wt_accumulators_{nodes[0][2].hook}"
    adds = [f"f0_add({array}, a{i}.data.ptr, b{i}.data.ptr);" for i in range(3)]
    assert [at(found, one) for _, _, one in nodes] == ["", adds[0], adds[1]]
    for first, second, _ in nodes:
        assert at(found, first) == "wt_module::wait_for_loads(); wt_module::Load<false>() << __VA_ARGS__"
        assert at(found, second) == "wt_module::Load<false>() << __VA_ARGS__"
    end = found[f"WT_END_{body.hook}"]
    assert end.startswith(f"wt_module::wait_for_loads(); {adds[2]}")
    assert "wt_module::zero(" not in end
    assert "wt_module::PipelineState" not in found[f"WT_BEGIN_{body.hook}"]


def test_a_loop_that_stays_unchanged() -> None:
    one = t.product(A, B, C, alpha=None)
    body = t.loop(t.load(A), t.load(B), one)
    assert set(macros_of(t.zeros(C), body).values()) == {"", "__VA_ARGS__"}
