"""The effects of Warp's builtins, by name. The operands decide about a builtin that is not listed here."""

from __future__ import annotations

from enum import Enum


class Effect(Enum):
    """The effects that an operation may have, apart from computing its results.

    Attributes:
        NONE: It has none. It may read arrays.
        ALIAS: It makes a view of an operand's memory, without reading an element.
        TILES: It reads or writes elements of its tiles. It may read arrays.
        WRITES: It writes to arrays. It may also write to its tiles.
        LEAVES: It returns from the function.
        UNKNOWN: It may do anything.
    """

    NONE = "none"
    ALIAS = "alias"
    TILES = "tiles"
    WRITES = "writes"
    LEAVES = "leaves"
    UNKNOWN = "unknown"


LOAD, STORE, MATMUL = "tile_load", "tile_store", "tile_matmul"
ASTYPE, MAP = "tile_astype", "tile_map"  # these compute a tile in registers
SHAPE = "shape"  # of an array
JUMPS = ("break", "continue")
ZEROS = "tile_zeros"
TRANSPOSE = "tile_transpose"  # a view of the whole tile
ADD_INPLACE, SUB_INPLACE = "add_inplace", "sub_inplace"  # the operators += and -=
INPLACE = frozenset({ADD_INPLACE, SUB_INPLACE})  # these change the elements of their first tile
# operators on the elements of tiles, which compute a tile in registers as ASTYPE and MAP do
OPERATORS = frozenset({"add", "sub", "mul", "div", "neg", "bit_and", "bit_or", "bit_xor"})
# these compute each element of their result from the same elements of their tiles
ELEMENTWISE = frozenset({ASTYPE, MAP}) | OPERATORS | INPLACE
# these change a number that they are given, the state of a random sequence
RANDOM = frozenset(
    {
        *("poisson", "randf", "randi", "randn", "randu", "sample_cdf", "sample_triangle", "sample_unit_cube"),
        *("sample_unit_disk", "sample_unit_hemisphere", "sample_unit_hemisphere_surface", "sample_unit_ring"),
        *("sample_unit_sphere", "sample_unit_sphere_surface", "sample_unit_square"),
    }
)
# Warp unrolls these, so that a thread holds index, address and value of all its elements at once
INDEXED = frozenset({"tile_load_indexed", "tile_store_indexed", "tile_atomic_add_indexed"})
# these make a view of an operand's memory: they read and write no element, and do not wait
_ALIASES = frozenset({"tile_transpose", "tile_view", "tile_reshape", "tile_squeeze", "tile_broadcast"})
# these read arrays, or only their descriptors
_READERS = frozenset(
    {LOAD, "address", "array", "copy", "extract", "len", "load", "lower_bound", "tile_load_indexed", "view"}
)


def effect_of_builtin(name: str, *, tiles: bool, arrays: bool, references: bool) -> Effect:
    """Returns the effect of a builtin.

    Args:
        name: Its key.
        tiles: True if an operand or the result is a tile.
        arrays: True if an operand is an array.
        references: True if an operand is a reference to memory.
    """
    if (arrays or references) and name not in _READERS:
        return Effect.WRITES
    if tiles:
        return Effect.ALIAS if name in _ALIASES else Effect.TILES
    return Effect.NONE


def effect_of_function(effects: list[Effect]) -> Effect:
    """Returns the effect of a function on its caller.

    Args:
        effects: The effects of its operations, without returns.
    """
    for effect in (Effect.UNKNOWN, Effect.WRITES, Effect.TILES):
        if effect in effects:
            return effect
    return Effect.TILES if Effect.ALIAS in effects else Effect.NONE
