"""Which stores of computed tiles compute the tile themselves, decided from hand-written traces."""

from __future__ import annotations

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.macros import Macros
from warp_tiles.codegen.stores import computed_stores, emit_computed_stores
from warp_tiles.codegen.trace import Effect, Node, Operation, Scalar, Tile

C, D = t.tile("c"), t.register("d", dtype="float16")


def convert(result: Tile = D) -> Operation:
    return t.operation("tile_astype", C, results=(result,), hook=t.number())


def store(tile: Tile = D) -> Operation:
    return t.operation("tile_store", tile, effect=Effect.WRITES, hook=t.number())


def count(*nodes: Node) -> int:
    return len(list(computed_stores(t.function(*nodes))))


def test_a_store_that_follows() -> None:
    assert count(convert(), store()) == 1
    assert count(convert(), t.arithmetic(), store()) == 1
    assert count(t.loop(convert(), store())) == 1
    assert count(t.branch(convert(), store()), convert(), store()) == 0, "the name is used twice"


def test_operands_of_a_map() -> None:
    def mapped(*operands: Tile | Scalar) -> int:
        return count(t.operation("tile_map", Scalar("f"), *operands, results=(D,), hook=t.number()), store())

    assert mapped(C) == mapped(C, C) == mapped(C, Scalar("x", 2.0), t.tile("e")) == 1
    assert mapped(t.parameter("p")) == mapped(C, t.parameter("p")) == 1, "a parameter may be a shared tile"
    assert mapped(C, t.register("r")) == 0
    assert mapped(*[C] * 5) == 1
    assert mapped(*[C] * 6) == 0


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


def test_the_code_passes_the_parameters() -> None:
    """The compiler decides by their types."""
    p, q = t.parameter("p"), t.parameter("q")
    mapped = t.operation("tile_map", Scalar("f"), p, q, C, q, p, results=(D,), hook=t.number())
    macros, function = Macros(), t.function(mapped, store())
    emit_computed_stores(macros, function)
    assert "wt_module::store_computed(wt_compute, wt_store, d, p, q); }" in "".join(macros.definitions([function]))


def test_the_code() -> None:
    first, second = convert(), store()
    function = t.function(first, second)
    macros = Macros()
    emit_computed_stores(macros, function)
    lines = macros.definitions([function])
    assert first.hook is not None
    assert second.hook is not None
    texts = {line.split("(")[0].split()[1]: line.partition(") ")[2] for line in lines if "(...)" in line}
    compute = "{ const auto wt_compute = [&](auto& c, auto& d) { __VA_ARGS__ };"
    stored = (
        "const auto wt_store = [&](auto& d) { __VA_ARGS__ }; wt_module::store_computed(wt_compute, wt_store, d, c); }"
    )
    assert texts[Hook.AT.name_of(first.hook)] == compute
    assert texts[Hook.AT.name_of(second.hook)] == stored
