"""The effects of builtins and of functions on the loads in flight."""

from __future__ import annotations

import pytest

from warp_tiles.codegen.operations import Effect, effect_of_builtin, effect_of_function


@pytest.mark.parametrize(
    ("name", "operands", "effect"),
    [
        ("add", {}, Effect.NONE),
        ("tile_sum", {"tiles": True}, Effect.TILES),
        ("tile_view", {"tiles": True}, Effect.ALIAS),
        ("tile_load", {"tiles": True, "arrays": True}, Effect.TILES),
        ("tile_store", {"tiles": True, "arrays": True}, Effect.WRITES),
        ("array_store", {"arrays": True}, Effect.WRITES),
        ("address", {"arrays": True}, Effect.NONE),
        ("load", {"references": True}, Effect.NONE),
        ("store", {"references": True}, Effect.WRITES),
        ("of a newer Warp", {"arrays": True}, Effect.WRITES),
        ("of a newer Warp", {"tiles": True}, Effect.TILES),
    ],
    ids=str,
)
def test_a_builtin(name: str, operands: dict[str, bool], effect: Effect) -> None:
    given = {"tiles": False, "arrays": False, "references": False, **operands}
    assert effect_of_builtin(name, **given) is effect


@pytest.mark.parametrize(
    ("effects", "effect"),
    [
        ([], Effect.NONE),
        ([Effect.NONE, Effect.ALIAS], Effect.TILES),
        ([Effect.TILES, Effect.NONE], Effect.TILES),
        ([Effect.TILES, Effect.WRITES], Effect.WRITES),
        ([Effect.WRITES, Effect.UNKNOWN, Effect.TILES], Effect.UNKNOWN),
    ],
    ids=str,
)
def test_a_function_has_the_worst_effect_of_its_operations(effects: list[Effect], effect: Effect) -> None:
    assert effect_of_function(effects) is effect
