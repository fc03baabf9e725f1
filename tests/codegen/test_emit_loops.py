"""The text at hooks."""

from __future__ import annotations

from tests.codegen import traces as t
from warp_tiles.codegen.macros import Macros
from warp_tiles.codegen.trace import FunctionTrace

A = t.tile("a", 16, 8)


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
