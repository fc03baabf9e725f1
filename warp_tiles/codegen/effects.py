"""What Warp's builtins may do, by name; a builtin that is not named here is judged by its operands."""

from __future__ import annotations

from warp_tiles.codegen.trace import Effect

LOAD, MATMUL = "tile_load", "tile_matmul"
# another name for an operand's memory: no element is read or written, nobody waits
_ALIASES = frozenset({"tile_transpose", "tile_view", "tile_reshape", "tile_squeeze", "tile_broadcast"})
# they read arrays, or only their descriptors
_READERS = frozenset(
    {LOAD, "address", "array", "copy", "extract", "len", "load", "lower_bound", "tile_load_indexed", "view"}
)


def effect_of_builtin(name: str, *, tiles: bool, arrays: bool, references: bool) -> Effect:
    """What a builtin may do.

    Args:
        name: Its key.
        tiles: Whether an operand or the result is a tile.
        arrays: Whether an operand is an array.
        references: Whether an operand is a reference to memory.
    """
    if (arrays or references) and name not in _READERS:
        return Effect.WRITES
    if tiles:
        return Effect.ALIAS if name in _ALIASES else Effect.TILES
    return Effect.NONE


def joined(effects: list[Effect]) -> Effect:
    """What a function may do whose operations may do this; to return is no effect on its caller."""
    for effect in (Effect.UNKNOWN, Effect.WRITES, Effect.TILES):
        if effect in effects:
            return effect
    return Effect.TILES if Effect.ALIAS in effects else Effect.NONE
