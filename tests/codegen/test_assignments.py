"""Assignments of tiles that nobody reads leave the trace; all others stay."""

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.operations import UNKNOWN_MEMORY, Effect, Operation, Scalar, Tile
from warp_tiles.codegen.trace import Node, without_unread_assignments

A, SECOND, C = t.tile("a"), t.tile("second"), t.tile("c")


def assign(target: Tile, source: Tile, **fields: object) -> Operation:
    return t.operation("assign", target, source, **{"hook": t.number(), **fields})


def use(*tiles: Tile) -> Operation:
    return t.operation("tile_sum", *tiles)


def names(*nodes: Node) -> list[str]:
    """The names of the operations of a cleaned trace, whose removed assignments touch nothing."""
    found = list(without_unread_assignments(t.function(*nodes)).operations())
    assert all(not one.values and one.effect is Effect.NONE for one in found if one.name == "unread_assign")
    return [one.name for one in found]


def first(*more: Node) -> Node:
    return t.loop(t.load(A), use(A), *more)


def second(*more: Node) -> Node:
    return t.loop(t.load(SECOND), use(SECOND), *more, assign(A, SECOND))


def test_a_second_loop_with_the_same_names() -> None:
    assert names(first(), second()).count("unread_assign") == 1


def test_hooks_stay() -> None:
    before = t.function(first(), second())
    assert set(without_unread_assignments(before).hooks()) == set(before.hooks())


@pytest.mark.parametrize(
    "nodes",
    [
        (t.load(A), t.loop(t.load(SECOND), assign(A, SECOND))),  # the assignment itself follows the load
        (first(), second(), use(A)),
        (first(), second(), use(t.view("v", A))),
        (first(), second(), use(t.tile("v", memory=frozenset({UNKNOWN_MEMORY})))),
        (first(), second(), t.operation("return", A, effect=Effect.LEAVES)),
        (t.loop(use(A), t.load(A)), second()),  # an iteration reads what the second loop left, if this runs again
        (first(), second(), t.operation("assign", A, Scalar("row"), Scalar("column"), Scalar("value"))),
        (first(), t.load(A), second()),  # two statements make it
    ],
    ids=["loop", "use", "view", "unknown", "return", "earlier", "element", "two makers"],
)
def test_a_copy_that_may_be_read_stays(nodes: tuple[Node, ...]) -> None:
    assert "unread_assign" not in names(*nodes)


def test_a_view_is_read_by_its_name_alone() -> None:
    view, other = t.view("v", C), t.view("w", C)
    made, again = t.loop(t.alias(view, C), use(view)), t.loop(t.alias(other, C), use(other), assign(view, other))
    assert "unread_assign" in names(t.load(C), made, again, use(C))
    assert "unread_assign" not in names(t.load(C), made, again, use(view))


def test_a_view_of_a_tile_that_a_second_loop_replaces() -> None:
    """The assignment to the view reads the first tile, until it is removed."""
    view, other = t.view("v", A), t.view("w", SECOND)
    made = t.loop(t.load(A), t.alias(view, A), use(view))
    again = t.loop(t.load(SECOND), t.alias(other, SECOND), assign(A, SECOND), assign(view, other))
    assert names(made, again).count("unread_assign") == 2
    assert names(made, again, use(view)).count("unread_assign") == 0


def test_a_parameter_stays() -> None:
    parameter = t.parameter("p")
    assert "unread_assign" not in names(t.loop(t.load(SECOND), assign(parameter, SECOND)))
