"""The text at hooks."""

from __future__ import annotations

from tests.codegen import traces as t
from warp_tiles.codegen.answers import Loads
from warp_tiles.codegen.emit_loops import emit_loads, skip_replays
from warp_tiles.codegen.hooks import Hook, Macros
from warp_tiles.codegen.operations import Operation
from warp_tiles.codegen.trace import FunctionTrace

A, B, C = t.tile("a", 16, 8), t.tile("b", 8, 16), t.tile("c")


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
