"""Views of one tile are disjoint only if the bounds of the loops around prove it."""

from dataclasses import replace
from typing import Any

from tests.codegen import traces as t
from warp_tiles.codegen.loops import are_disjoint
from warp_tiles.codegen.operations import Affine, Effect, Operation, Scalar, Tile
from warp_tiles.codegen.trace import Node

ROOT = t.tile("root", 64, 4)
C, Y = t.view("c", ROOT, shape=(16, 4)), t.view("y", ROOT, shape=(16, 4))
N = Affine.variable("n")
P, Q = Affine.variable("p"), Affine.variable("q")


def number(value: Affine | int | None, name: str = "") -> Scalar:
    """A number that is known to have a value, and is computed elsewhere if it is no variable."""
    offset = Affine(value) if isinstance(value, int) else value
    is_variable = offset is not None and offset == Affine.variable(next(iter(offset.variables), ""))
    return Scalar(name or (offset.terms[0][0] if is_variable and offset else f"number {value}"), offset=offset)


def calculation(value: Affine, name: str = "") -> Operation:
    """``variable + constant``."""
    operands = number(Affine(0, value.terms)), number(value.constant)
    return t.operation("add", *operands, effect=Effect.NONE, results=(number(value, name),), wait=None)


def calculations(*values: Affine | int | None) -> list[Operation]:
    return [calculation(value) for value in values if isinstance(value, Affine) and value.terms and value.constant]


def view(result: Tile, row: Affine | int | None, source: Tile = ROOT, **fields: Any) -> Operation:
    numbers = (number(row, **fields), number(0), *(number(extent) for extent in result.shape))
    return t.operation("tile_view", source, *numbers, effect=Effect.ALIAS, results=(result,))


def ranged(variable: str, bounds: tuple[Affine | int, ...], *nodes: Node) -> tuple[Node, ...]:
    name = Scalar(f"range_{variable}")
    made = t.operation("range", *map(number, bounds), effect=Effect.NONE, results=(name,), wait=None)
    following = t.operation("iter_next", name, effect=Effect.NONE, results=(Scalar(variable),), wait=None)
    return *calculations(*bounds), made, t.loop(following, *nodes, variable=variable)


def proved(
    rows: tuple[Affine | int, ...],
    blocks: tuple[Affine | int, ...],
    *,
    row: Affine = P,
    block: Affine | None = Q,
    first: tuple[Node, ...] = (),
    last: tuple[Node, ...] = (),
    **fields: Any,
) -> bool:
    """True if the blocks of the inner loop are disjoint from the row of the outer one."""
    product = t.product(t.tile("a", 16, 16), Y, C)
    inner = ranged("q", blocks, view(Y, block, **fields), product, *last)
    nodes = (t.load(ROOT), *ranged("p", rows, *first, view(C, row), *inner))
    function = t.function(*nodes)
    assert are_disjoint(function, product, C, Y) == are_disjoint(function, product, Y, C)
    return are_disjoint(function, product, C, Y)


def test_a_place_that_is_computed_or_unknown() -> None:
    twice, blocks = Q.times(2), (0, P, 16)
    assert (
        proved((0, N, 16), (0, 2, 1), row=P + Affine(64), block=Q.times(16), name="q16") is False
    )  # not computed here
    assert not proved((0, N, 16), blocks, block=twice, name="q2")
    assert not proved((0, N, 16), blocks, block=None)
    assert not proved((0, N, 16), blocks, block=N)


def test_numbers_that_another_iteration_may_have_computed() -> None:
    """The value of a number that a branch computes may be that of an earlier iteration."""
    after = calculation(P + Affine(16), "e")
    fields: dict[str, Any] = {"block": P + Affine(16), "name": "e"}
    assert proved((0, N, 16), (0, 4), first=(after,), **fields)
    assert not proved((0, N, 16), (0, 4), first=(t.branch(after),), **fields)


def test_a_tuple_of_numbers() -> None:
    """Its results are its operands, or one value if they are constants."""
    pair = t.operation("tuple", number(Q), number(P), effect=Effect.NONE, results=(number(Q), number(P)), wait=None)
    assert proved((0, N, 16), (0, P, 16), first=(pair,))
    offset = Scalar("offset")
    made = t.operation("tuple", number(32), number(0), effect=Effect.NONE, results=(offset,), wait=None)
    second = t.operation("tile_view", ROOT, offset, number(16), number(4), effect=Effect.ALIAS, results=(Y,))
    use = t.operation("use", C, Y)
    assert are_disjoint(t.function(view(C, 16), made, second, use), use, C, Y)
    assert not are_disjoint(t.function(view(C, 17), made, second, use), use, C, Y)


def test_a_variable_that_changes() -> None:
    change = t.operation("assign", Scalar("q"), Scalar("x"), effect=Effect.NONE)
    assert not proved((0, N, 16), (0, P, 16), last=(change,))


def test_a_view_that_changes() -> None:
    assert not proved((0, N, 16), (0, P, 16), last=(t.operation("assign", Y, C, hook=1),))


def test_parts_of_a_view_and_of_a_parameter() -> None:
    part, other = t.view("part", ROOT, shape=(4, 4)), t.view("other", ROOT, shape=(4, 4))
    use = t.operation("use", part, other)
    for root, is_known in (
        (ROOT, True),
        (t.parameter("root", 64, 4), True),
        (t.parameter("root", 64, 4, dense=False), False),
    ):
        nodes = view(C, 16, root), view(part, 4, C), view(other, 16, root), use
        assert are_disjoint(t.function(*nodes), use, part, other) == is_known
    nodes = view(C, 16), view(part, 4, C), view(other, 20), use
    assert not are_disjoint(t.function(*nodes), use, part, other)


def test_a_parameter_that_becomes_a_view() -> None:
    use, root = t.operation("use", C, Y), t.parameter("root", 64, 4)
    nodes = view(C, 16, root), view(Y, 32, root), use
    assert are_disjoint(t.function(*nodes), use, C, Y)
    moves = t.operation("assign", root, t.view("other", root, shape=(64, 4)), hook=1)
    assert not are_disjoint(t.function(view(C, 16, root), moves, *nodes[1:]), use, C, Y)


def test_tiles_of_other_memory_are_not_compared() -> None:
    use = t.operation("use", C, Y)
    assert are_disjoint(t.function(view(C, 0), view(Y, 16), use), use, C, Y)
    called = replace(view(Y, 16), name="helper")  # a function of the user with operands as those of a view
    assert not are_disjoint(t.function(view(C, 0), called, use), use, C, Y)
    assert not are_disjoint(t.function(view(C, 0), view(Y, 16, t.tile("x", 64, 4)), use), use, C, Y)
    assert not are_disjoint(t.function(view(C, 0), use, view(Y, 16)), use, C, Y)  # made later
