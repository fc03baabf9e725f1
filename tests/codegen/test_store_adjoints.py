"""Which adjoints of stores are computed in bands, decided from hand-written traces, and their code."""

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.operations import Array, Effect, Operation, Scalar, Tile, Value
from warp_tiles.codegen.stores import reversed_stores
from warp_tiles.codegen.trace import Node

C, W = t.tile("c"), t.tile("w")
D, E = t.register("d"), t.register("e")
N = Scalar("n")


def compute(name: str, *operands: Value, result: Tile = D, reverses: bool = True) -> Operation:
    return t.compute(name, *operands, result=result, reverses=reverses)


def convert(source: Tile = C, result: Tile = D, *, reverses: bool = True) -> Operation:
    return compute("tile_astype", source, result=result, reverses=reverses)


def store(tile: Tile = D, *, reverses: bool = True) -> Operation:
    return t.store(tile, reverses=reverses)


def number(name: str, *operands: Value, result: Scalar = N) -> Operation:
    return t.operation(name, *operands, effect=Effect.NONE, results=(result,))


def count(*nodes: Node) -> int:
    return len(list(reversed_stores(t.context(t.function(*nodes)))))


INTEGERS = Tile("i", "int32", (16, 16), "shared", frozenset({"i"}), 1024)
VECTORS = Tile("i", "vec2f", (16, 16), "shared", frozenset({"i"}), 2048)
NARROW = t.register("d", cols=6)
HALVES = t.register("d", cols=12, dtype="float16")


@pytest.mark.parametrize(
    "nodes",
    [
        (convert(reverses=False), store()),
        (convert(), store(reverses=False)),
        (convert(INTEGERS), store()),
        (convert(VECTORS), store()),
        (convert(t.tile("c", cols=6), NARROW), store(NARROW)),
        (convert(t.tile("c", cols=12), HALVES), store(HALVES)),
        (convert(t.tile("c", cols=32)), store()),
        (compute("tile_map", Scalar("f"), C, Array("x")), store()),
        (convert(t.register("r")), store()),
    ],
)
def test_other_stores(nodes: tuple[Node, ...]) -> None:
    assert count(*nodes) == 0


def test_one_dimension() -> None:
    source, result = (Tile(n, "float32", (64,), "shared", frozenset({n}), 256) for n in "cd")
    register = Tile("d", "float32", (64,), "register", result.memory, 256)
    assert count(convert(source, register), store(register)) == 0


# ---- operands that change

FIRST, LAST = compute("mul", C, N, result=E), compute("add", E, W)
CHAIN = FIRST, LAST, store()
VIEW = t.view("v", C)


@pytest.mark.parametrize(
    "later",
    [
        t.addition(C, t.tile("x")),
        t.zeros(W),
        t.load(C),
        t.fresh_product(t.tile("x"), t.tile("y"), C),
        t.product(t.tile("x"), t.tile("y"), W),
        t.alias(VIEW, C),
        t.call("f", C),
        t.operation("tile_sort", C),
        t.operation("assert", effect=Effect.UNKNOWN),
        t.operation("assign", N, Scalar("m"), effect=Effect.NONE),
        number("mul", Scalar("m"), Scalar("m")),
        t.call("f", N, effect=Effect.NONE, results=(Scalar("m"),)),
    ],
    ids=lambda one: str(one.name),
)
def test_later_changes(later: Operation) -> None:
    assert count(*CHAIN, later) == 0
    assert count(*CHAIN, t.loop(later)) == count(*CHAIN, t.branch(later)) == 0
    assert count(t.branch(*CHAIN), later) == 0, "the reverse pass repeats all statements before the first adjoint"
    assert count(t.loop(*CHAIN, kind="unrolled"), later) == 0
    assert count(t.loop(*CHAIN), later) == 1, "each iteration of the reversed loop repeats its statements"
    assert count(later, *CHAIN) == 1


@pytest.mark.parametrize(
    "later",
    [
        t.addition(t.tile("x"), C),
        store(C),
        t.product(C, W, t.tile("x")),
        compute("mul", C, N, result=t.register("x")),
        t.alias(VIEW, C, "tile_broadcast"),
        number("mul", N, N, result=Scalar("m")),
        t.operation("return", effect=Effect.LEAVES),
    ],
    ids=lambda one: str(one.name),
)
def test_later_reads(later: Operation) -> None:
    assert count(*CHAIN, later) == 1


def test_numbers_between() -> None:
    """The adjoint of such a statement runs before those of earlier operations."""
    half = number("float16", Scalar("x", 0.5))
    assert count(half, *CHAIN) == count(FIRST, half, LAST, store()) == 1
    made = number("load", Array("s"))
    assert count(made, *CHAIN) == 1
    assert count(FIRST, made, LAST, store()) == 0
    assert count(FIRST, number("mul", Scalar("m"), Scalar("m"), result=Scalar("k")), LAST, store()) == 1
    changed = t.operation("assign", Scalar("h"), Scalar("m"), effect=Effect.NONE)
    start, end = number("float16", Scalar("x", 0.5), result=Scalar("h")), number("neg", Scalar("h"))
    assert count(start, FIRST, end, LAST, store()) == 1
    assert count(start, changed, FIRST, end, LAST, store()) == 0


def test_views_between() -> None:
    last = compute("add", E, VIEW)
    assert count(FIRST, t.alias(VIEW, W, "tile_broadcast"), last, store()) == 1
    assert count(FIRST, t.alias(VIEW, W), last, store()) == 0, "its adjoint writes the tile"
    assert count(t.alias(VIEW, W), FIRST, last, store()) == 1


def test_arrays_between() -> None:
    """The adjoint of a read may add to the gradient of the stored array, which the adjoint of the store clears."""
    read, shape = number("load", Array("C"), result=Scalar("k")), number("shape", Array("C"), result=Scalar("k"))
    called = t.call("f", Scalar("struct"), effect=Effect.NONE, results=(Scalar("k"),))
    assert count(read, called, *CHAIN) == count(*CHAIN, read, called) == 1
    assert count(FIRST, read, LAST, store()) == count(FIRST, called, LAST, store()) == 0
    assert count(FIRST, shape, LAST, store()) == 1


# ---- operands that share memory


def test_operands_that_share_memory() -> None:
    def overlap(*operands: Tile) -> bool:
        nodes = compute("tile_map", Scalar("f"), *operands), store()
        (one,) = reversed_stores(t.context(t.function(*nodes)))
        return one.overlap

    assert not overlap(C)
    assert not overlap(C, W)
    assert not overlap(C, C), "each of its elements is one operand"
    assert overlap(C, VIEW)
    assert overlap(W, C, t.view("v", C))
