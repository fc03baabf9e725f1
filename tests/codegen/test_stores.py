"""Which stores of computed tiles compute the tile themselves, decided from hand-written traces."""

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.operations import Affine, Array, Effect, Operation, Scalar, Tile, Value
from warp_tiles.codegen.stores import computed_stores
from warp_tiles.codegen.trace import Node

C, W, D, E = t.tile("c"), t.tile("w"), t.register("d", dtype="float16"), t.register("e")


def convert(source: Tile = C, result: Tile = D) -> Operation:
    return compute("tile_astype", source, result=result)


def compute(name: str, *operands: Value, result: Tile = D) -> Operation:
    return t.compute(name, *operands, result=result)


def store(tile: Tile = D) -> Operation:
    return t.store(tile, Array("stored"))


def count(*nodes: Node) -> int:
    return len(list(computed_stores(t.function(*nodes))))


SHARED = t.tile("d", dtype="float16")
OTHER = t.register("other")


@pytest.mark.parametrize(
    "nodes",
    [
        (convert(),),
        (store(), convert()),
        (convert(), t.zeros(C), store()),
        (convert(), store(), store()),
        (convert(), store(), t.operation("tile_sum", D)),
        (convert(), t.branch(store())),
        (t.branch(convert()), store()),
        (convert(), t.loop(t.arithmetic()), store()),
        (t.loop(convert(), t.jump("break"), store()),),
        (convert(), store(OTHER)),
        (convert(result=SHARED), store(SHARED)),
        (t.operation("tile_sum", C, results=(D,), hook=t.number()), store()),
        (t.operation("add", C, W, results=(D,)), store()),
    ],
)
def test_other_stores(nodes: tuple[Node, ...]) -> None:
    assert count(*nodes) == 0


def test_views_between() -> None:
    view = t.view("v", W)
    operations = compute("add", C, W, result=E), compute("add", E, view)
    assert count(operations[0], t.alias(view, W, "tile_broadcast"), operations[1], store()) == 1
    assert count(compute("add", C, view), t.alias(view, W), store()) == 0, "the first operation reads the old view"


# ---- operands that are loaded into registers

R = t.register("r")
OF_R = compute("add", C, R)


@pytest.mark.parametrize(
    "nodes",
    [
        (t.load(R, Array("read")), OF_R, t.operation("tile_sum", R)),
        (t.load(R, Array("read")), t.operation("tile_store", W, effect=Effect.WRITES), OF_R),
        (t.load(R, Array("read")), t.branch(t.arithmetic()), OF_R),
        (t.branch(t.load(R, Array("read"))), OF_R),
        (t.load(R, Array("read")), compute("tile_map", Scalar("f"), R, t.parameter("p"))),
        (t.load(t.register("r", shape=(16,)), Array("read")), compute("add", C, t.register("r", shape=(16,)))),
        (t.load(R, Array("read"), hook=None), OF_R),
        (t.load(D),),
    ],
    ids=[
        "used later", "a store between", "a branch between", "conditional", "parameter", "one dimension", "no hook",
        "copy",
    ],
)  # fmt: skip
def test_other_loads(nodes: tuple[Node, ...]) -> None:
    assert count(*nodes, store()) == 0


def at(*offsets: Scalar) -> tuple[Value, ...]:
    """The operands of an access to the array that is stored."""
    return Array("A"), *offsets, Scalar("None", constant=True)


def test_a_load_of_the_stored_array() -> None:
    """The store may write to elements before it loads others, so both must be at the same place."""
    i, j, two = Scalar("i"), Scalar("j"), Scalar("n", constant=2)
    same, other = (Scalar(name, offset=Affine.of(0, {"t": 64})) for name in ("p", "q"))
    end = t.store(D, *at(i, two))

    def loads(*offsets: Scalar, stored: Operation = end) -> int:
        return count(t.load(R, *at(*offsets)), OF_R, stored)

    assert loads(i, two) == 1
    assert loads(i, Scalar("m", constant=2)) == 1
    assert loads(j, two) == loads(two, i) == loads(i, Scalar("m", constant=3)) == loads(i) == 0
    assert loads(other, two, stored=t.store(D, *at(same, two))) == 1
    assert count(t.load(R, Array("B"), j, two), OF_R, end) == 1, "another array"
    narrow = t.register("r", shape=(16, 8))
    assert count(t.load(narrow, *at(i, two)), compute("add", C, narrow), end) == 0


def test_a_random_number_between() -> None:
    number = t.operation("randi", Scalar("state"), effect=Effect.NONE, results=(Scalar("n"),))
    assert count(compute("tile_map", Scalar("f"), C, Scalar("state")), number, store()) == 0


def test_a_number_that_a_call_between_changes() -> None:
    for changed, stores in ((frozenset[str](), 1), (frozenset({"index"}), 0)):
        operands = Scalar("query"), Scalar("index")
        found = Scalar("found")
        call = t.operation("query_next", *operands, effect=Effect.NONE, results=(found,), changed=changed)
        assert count(compute("tile_map", Scalar("f"), C, Scalar("index")), call, store()) == stores


def test_an_earlier_operation_reads_the_old_tile() -> None:
    first = compute("add", C, W, result=E)
    assert count(first, t.load(W), compute("add", E, C), store()) == 0
