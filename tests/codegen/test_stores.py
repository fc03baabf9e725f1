"""Which stores of converted tiles convert the tile themselves, decided from hand-written traces."""

from __future__ import annotations

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.macros import Macros
from warp_tiles.codegen.stores import converted_stores, emit_converted_stores
from warp_tiles.codegen.trace import Effect, Node, Operation, Tile

C, D = t.tile("c"), t.register("d", dtype="float16")


def convert(result: Tile = D) -> Operation:
    return t.operation("tile_astype", C, results=(result,), hook=t.number())


def store(tile: Tile = D) -> Operation:
    return t.operation("tile_store", tile, effect=Effect.WRITES, hook=t.number())


def count(*nodes: Node) -> int:
    return len(list(converted_stores(t.function(*nodes))))


def test_a_store_that_follows() -> None:
    assert count(convert(), store()) == 1
    assert count(convert(), t.arithmetic(), store()) == 1
    assert count(t.loop(convert(), store())) == 1
    assert count(t.branch(convert(), store()), convert(), store()) == 0, "the name is used twice"


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
        (convert(SHARED), store(SHARED)),
    ],
)
def test_other_stores(nodes: tuple[Node, ...]) -> None:
    assert count(*nodes) == 0


def test_the_code() -> None:
    first, second = convert(), store()
    function = t.function(first, second)
    macros = Macros()
    emit_converted_stores(macros, function)
    lines = macros.definitions([function])
    assert first.hook is not None
    assert second.hook is not None
    assert f"#define {Hook.AT.name_of(first.hook)}(...) " in lines
    (found,) = (line for line in lines if line.startswith(f"#define {Hook.AT.name_of(second.hook)}("))
    assert found.endswith(
        "{ auto wt_converted = wt_module::converted<decltype(d)>(c); auto& d = wt_converted; __VA_ARGS__ }"
    )
