"""The operations of a traced program, their effects, and their operands: tiles, arrays, and scalars.

Scalars are affine expressions, if these are known. The effects of Warp's builtins follow from their names; the operands
decide about a builtin that is not listed here. Two operations are equal only if they are the same object. Values
compare by their fields.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal


class Effect(Enum):
    """The effects that an operation may have, apart from computing its results.

    Attributes:
        NONE: It has none. It may read arrays.
        ALIAS: It makes a view of an operand's memory, without reading an element.
        TILES: It reads or writes elements of its tiles. It may read arrays.
        WRITES: It writes to arrays. It may also write to its tiles.
        ORDERED: It touches neither tiles nor arrays, but keeps its place and the number of its calls: it may wait for
            other threads, or read a clock.
        LEAVES: It returns from the function.
        UNKNOWN: It may do anything.
    """

    NONE = "none"
    ALIAS = "alias"
    TILES = "tiles"
    WRITES = "writes"
    ORDERED = "ordered"
    LEAVES = "leaves"
    UNKNOWN = "unknown"


LOAD, STORE, MATMUL = "tile_load", "tile_store", "tile_matmul"
ASTYPE = "tile_astype"
REDUCE, SUM = "tile_reduce", "tile_sum"  # of a tile, or along an axis, which is the last operand
SHAPE = "shape"  # of an array
TUPLE = "tuple"  # of numbers, such as an offset
CONDITION = "condition"  # a comparison, or conditions joined by "and" or "or"
JUMPS = ("break", "continue")
ZEROS = "tile_zeros"
TRANSPOSE = "tile_transpose"  # a view of the whole tile
VIEW = "tile_view"  # of a part of a tile
RESHAPES = frozenset({"tile_reshape", "tile_squeeze"})  # views of all elements of a tile, in another shape
ASSIGN = "assign"  # to a variable, to an element, or of a whole tile
TILE_ASSIGN = "tile_assign"  # the builtin, which copies a tile into another one
COPY = "copy"  # of a value to a new variable
UNREAD_ASSIGN = "unread_assign"  # of a tile that nobody reads (warp_tiles.codegen.trace)
# operators on numbers, and on the elements of tiles
OPERATORS = frozenset({"add", "sub", "mul", "div", "neg", "bit_and", "bit_or", "bit_xor"})
# these change a number that they are given, the state of a random sequence
RANDOM = frozenset(
    {
        *("poisson", "randf", "randi", "randn", "randu", "sample_cdf", "sample_triangle", "sample_unit_cube"),
        *("sample_unit_disk", "sample_unit_hemisphere", "sample_unit_hemisphere_surface", "sample_unit_ring"),
        *("sample_unit_sphere", "sample_unit_sphere_surface", "sample_unit_square"),
    }
)
_COMMUTATIVE = frozenset({"add", "max", "min"})  # a product could fuse with a later sum
# Warp unrolls these, so that a thread holds index, address and value of all its elements at once
INDEXED = frozenset({"tile_load_indexed", "tile_store_indexed", "tile_atomic_add_indexed"})
# these make a view of an operand's memory: they read and write no element, and do not wait
_ALIASES = RESHAPES | {TRANSPOSE, VIEW, "tile_broadcast"}
# these read arrays, or only their descriptors
READERS = frozenset(
    {LOAD, TUPLE, "address", "array", "copy", "extract", "len", "load", "lower_bound", "tile_load_indexed", "view"}
)
# Warp loads the elements that references refer to before it calls these
_OF_VALUES = OPERATORS | {"abs", "bool", "float", "float32", "floordiv", "int", "int32", "max", "min", "mod", "where"}


@dataclass(frozen=True)
class Elementwise:
    """A builtin that computes each element of a tile from the same elements of its tiles.

    An entry with a name alone says nothing: Warp's statement stays as it is, and may change all of its tiles.

    Attributes:
        updates: Position of the tile that it changes, among its tiles; None if it computes a new tile in registers.
        sum_sign: 1 or -1 if it adds this multiple of its second tile to its first; 0 if it computes something else.
        on_elements: True if ``kernels/module/stores.cuh`` has it for elements in registers. Else its statement stays.
        adjoint: True if its adjoint changes gradients alone, and can run in bands (``adjoint_chains.cuh``).
        adds: False if it never adds, so that a product in an earlier statement cannot fuse with its sum.
        first_value: Position of the first operand that is a value, behind the function of a map.
    """

    name: str
    updates: int | None = None
    sum_sign: int = 0
    on_elements: bool = False
    adjoint: bool = False
    adds: bool = True
    first_value: int = 0

    def __post_init__(self) -> None:
        if self.sum_sign and self.updates == 1:
            raise ValueError(f"{self.name} adds to its second tile: it has no sum_sign")


_known = functools.partial(Elementwise, on_elements=True, adjoint=True)
ELEMENTWISE = {
    builtin.name: builtin
    for builtin in (
        _known(ASTYPE, adds=False),
        _known("tile_map", first_value=1),
        _known("add", sum_sign=1),
        _known("sub", sum_sign=-1),
        *(_known(name, adds=False) for name in sorted(OPERATORS - {"add", "sub"})),
        _known("add_inplace", updates=0, sum_sign=1),  # the operator +=
        _known("sub_inplace", updates=0, sum_sign=-1),
        Elementwise("tile_axpy", updates=1),
    )
}


def effect_of_builtin(name: str, *, tiles: bool, arrays: bool, references: bool) -> Effect:
    """Returns the effect of a builtin.

    Args:
        tiles: True if an operand or the result is a tile.
        arrays: True if an operand is an array.
        references: True if an operand is a reference to memory.
    """
    if (arrays or (references and name not in _OF_VALUES)) and name not in READERS:
        return Effect.WRITES
    if tiles:
        return Effect.ALIAS if name in _ALIASES else Effect.TILES
    return Effect.NONE


def effect_of_function(effects: list[Effect]) -> Effect:
    """Returns the effect of a function on its caller, from the effects of its operations without returns."""
    for effect in (Effect.UNKNOWN, Effect.WRITES, Effect.TILES):
        if effect in effects:
            return effect
    if Effect.ALIAS in effects:
        return Effect.TILES
    return Effect.ORDERED if Effect.ORDERED in effects else Effect.NONE


_CASTS = (
    *("static_cast", "reinterpret_cast", "bool", "int", "unsigned", "long", "float", "double", "size_t", "uintptr_t"),
    *("int32_t", "uint32_t", "int64_t", "uint64_t"),
)
_COMPARISONS = ("==", "!=", "<=", ">=")
# these change a variable, begin a comment, or end the type of a pointer, which may point to any memory
_NO_OPERATORS = ("++", "--", "<<=", ">>=", "//", "/*", "*)", "*>")


def effect_of_native(snippet: str, parameters: Sequence[str], *, small_numbers: bool) -> Effect:
    """Returns the effect of a function that is written in C++.

    Types alone do not tell: a function that returns an array's address and one that writes to the array have the same.

    Args:
        parameters: The names of its parameters, none of which is a tile.
        small_numbers: True if its parameters and its result are numbers of at most 32 bits. No generic pointer fits
            them. A shared address would, and docs/loops.md says that snippets must not use one.
    """
    if _only_returns(snippet, (*parameters, *(f"{name}.data" for name in parameters), *_CASTS)):
        return Effect.NONE
    return Effect.ORDERED if small_numbers else Effect.UNKNOWN


def _only_returns(snippet: str, names: Collection[str]) -> bool:
    """True if C++ only returns an expression of numbers and some names, without calls and assignments."""
    words = "".join(c if _in_word(c) else " " for c in snippet).split()
    operators = "".join(" " if _in_word(c) else c for c in snippet if not c.isspace()).split()
    if words[:1] != ["return"] or not all(word in names or word[0].isdigit() for word in words[1:]):
        return False
    *others, last = operators or [""]
    return last.endswith(";") and snippet.rstrip().endswith(";") and all(map(_computes, (*others, last[:-1])))


def _computes(operators: str) -> bool:
    """True if C++ operators between two words only compute."""
    others = functools.reduce(lambda rest, comparison: rest.replace(comparison, ""), _COMPARISONS, operators)
    return set(others) <= set("+-*/%&|^~!?:()<>") and not any(word in operators for word in _NO_OPERATORS)


def _in_word(character: str) -> bool:
    return character.isalnum() or character in "_."


# these have no result, and change none of their tiles
_READING = frozenset(
    {STORE, "tile_store_indexed", "tile_atomic_add", "tile_atomic_add_indexed", "print", "return", UNREAD_ASSIGN}
)

UNKNOWN_MEMORY = "?"  # in Tile.memory: the memory of any shared tile


@dataclass(frozen=True)
class Affine:
    """``constant + sum(factor * variable)``, with C++ names of variables, sorted, and without factors of zero."""

    constant: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    @classmethod
    def variable(cls, name: str) -> Affine:
        return cls(0, ((name, 1),))

    @classmethod
    def of(cls, constant: int, terms: Mapping[str, int]) -> Affine:
        return cls(constant, tuple(sorted((name, factor) for name, factor in terms.items() if factor)))

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.terms)

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for name, factor in other.terms:
            terms[name] = terms.get(name, 0) + factor
        return Affine.of(self.constant + other.constant, terms)

    def __neg__(self) -> Affine:
        return self.times(-1)

    def __sub__(self, other: Affine) -> Affine:
        return self + -other

    def times(self, factor: int) -> Affine:
        return Affine.of(self.constant * factor, {name: value * factor for name, value in self.terms})


def affine_result(operation: str, operands: tuple[Affine | None, ...]) -> Affine | None:
    """Returns the result of an arithmetic builtin, by its key; None for an operand or result that is not affine."""
    known = [operand for operand in operands if operand is not None]
    if len(known) != len(operands):
        return None
    match operation, known:
        case "add", [a, b]:
            return a + b
        case "sub", [a, b]:
            return a - b
        case "mul", [a, b]:
            factor, scaled = (b, a) if a.terms else (a, b)
            return None if factor.terms else scaled.times(factor.constant)
        case "neg", [a]:
            return -a
        case "copy" | "int" | "int32", [a]:
            return a
    return None


# ---- values: names, and those of gradients (adjoint), are names of C++ variables


@dataclass(frozen=True)
class Tile:
    """A tile variable of a function.

    Attributes:
        dtype: Warp's name of the element type, e.g. ``float16``.
        storage: ``shared`` or ``register``. For a parameter it is that of the annotation; the caller decides.
        memory: Names of the variables whose shared memory it may use: its own name if it has memory of its own or is a
            parameter, ``?`` if it is unknown.
        size_bytes: Size of a dense tile of this shape.
        dense: True if its elements are stored row by row without gaps.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    storage: Literal["shared", "register"]
    memory: frozenset[str]
    size_bytes: int
    parameter: bool = False
    dense: bool = True
    adjoint: str = ""

    @property
    def owner(self) -> bool:
        return not self.parameter and self.storage == "shared" and self.memory == {self.name}

    @property
    def is_intermediate(self) -> bool:
        """True for a tile in registers. The callers decide about parameters, so these are read like shared tiles."""
        return self.storage == "register" and not self.parameter


@dataclass(frozen=True)
class Array:
    """An array variable: a parameter of the function, or a struct's member or a view."""

    name: str
    parameter: bool = False
    adjoint: str = ""


@dataclass(frozen=True)
class Scalar:
    """A value that is neither a tile nor an array.

    Attributes:
        constant: Its value if it is constant, else None.
        offset: Its value as an affine expression of loop variables and of values that no loop changes; None if unknown.
    """

    name: str
    constant: float | int | bool | str | None = None
    offset: Affine | None = None


Value = Tile | Array | Scalar


@dataclass(frozen=True)
class Product:
    """The properties that only a ``wp.tile_matmul`` has.

    Attributes:
        site: Number of the site within its module.
        alpha: The factor of A B: a number, or the name of a C++ variable that the function never assigns to; None for
            any other factor.
        beta: The factor of C; None if it is not constant.
    """

    site: int
    alpha: float | str | None
    beta: float | None


@dataclass(frozen=True, eq=False)
class Operation:
    """A call of a builtin or function, or a statement of another kind.

    Attributes:
        name: Key of the builtin or function, e.g. ``tile_load``, or the kind of statement.
        hook: Number of the hook around it in the generated source; None if it has none.
        wait: Number of the hook before it; None if no load can be in flight there.
        callee: Label of the user's function that it calls, or empty.
        product: The properties of a ``tile_matmul``; None for other operations.
        reverses: True if its adjoint has a hook.
        zeroes: True if there is a hook where an iteration of the reverse pass sets its result's gradient to zeros.
        changed: C++ names of the operands that a call may change in place, other than tiles and arrays.
    """

    name: str
    line: int
    effect: Effect
    operands: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    hook: int | None = None
    wait: int | None = None
    callee: str = ""
    product: Product | None = None
    reverses: bool = False
    zeroes: bool = False
    changed: frozenset[str] = frozenset()
    solver: int | None = None

    @functools.cached_property
    def assigned(self) -> frozenset[str]:
        """The C++ names of the variables that it assigns to, or may change in place."""
        return self.changed.union(value.name for value in self.operands[:1] if self.name == ASSIGN)

    @functools.cached_property
    def values(self) -> tuple[Value, ...]:
        return (*self.operands, *self.results)

    @functools.cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """The operands and results that are tiles."""
        return tuple(value for value in self.values if isinstance(value, Tile))

    @property
    def changed_tiles(self) -> tuple[Tile, ...]:
        """The tiles whose elements it may change. A call of a user's function may change all of its tiles."""
        if self.callee:
            return tuple(value for value in self.operands if isinstance(value, Tile))
        if self.results or self.name in _READING:
            return ()
        if self.product is not None or self.solver is not None:
            return self.tiles[-1:]
        if self.name == ASSIGN:
            return self.tiles[:1]
        updated = None if self.elementwise is None else self.elementwise.updates
        return self.tiles if updated is None else (self.tiles[updated],)

    @property
    def elementwise(self) -> Elementwise | None:
        """What is known of an elementwise builtin; None for other operations."""
        return ELEMENTWISE.get(self.name)

    @property
    def operand_values(self) -> tuple[Value, ...]:
        """The operands without the function of a map."""
        return self.operands[0 if self.elementwise is None else self.elementwise.first_value :]

    @property
    def reduction(self) -> str:
        """The commutative builtin that a reduction of a tile applies; empty for other operations."""
        if self.name == SUM:
            return "add"
        name = self.operands[0].name if self.name == REDUCE else ""
        return name if name in _COMMUTATIVE else ""

    @property
    def assigned_tile(self) -> Tile | None:
        """The tile to which it copies another tile as a whole."""
        is_copy = self.name == ASSIGN and self.hook is not None and len(self.operands) == len(self.tiles) == 2
        return self.tiles[0] if is_copy else None

    @property
    def own_hook(self) -> int:
        assert self.hook is not None
        return self.hook

    @property
    def site(self) -> int:
        assert self.product is not None
        return self.product.site

    @property
    def alpha(self) -> float | str | None:
        """The factor of A B of a product, see :class:`Product`."""
        assert self.product is not None
        return self.product.alpha

    @property
    def matrices(self) -> tuple[Tile, Tile, Tile]:
        a, b, c = self.tiles
        return a, b, c
