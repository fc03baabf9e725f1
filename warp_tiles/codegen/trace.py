"""The trace of a kernel or function, recorded while Warp generates its code.

A :class:`FunctionTrace` is a tree of operations, loops and branches in the order of the user's program. Decisions about
code are pure functions of traces (:mod:`warp_tiles.codegen.loops`, :mod:`warp_tiles.codegen.loads`,
:mod:`warp_tiles.codegen.adjoints`). Their code is written at hooks (:mod:`warp_tiles.codegen.hooks`). A trace contains
the numbers of the hooks.

Two nodes are equal only if they are the same object. Values compare by their fields.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from warp_tiles.codegen.affine import Affine

UNKNOWN_MEMORY = "?"  # in Tile.memory: the memory of any shared tile


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


@dataclass(frozen=True)
class Tile:
    """A tile variable of a function.

    Attributes:
        name: The C++ variable.
        dtype: Warp's name of the element type, e.g. ``float16``.
        shape: Elements in each dimension.
        storage: ``shared`` or ``register``. For a parameter it is that of the annotation; the caller decides.
        memory: Names of the variables whose shared memory it may use: its own name if it has memory of its own or is a
            parameter, ``?`` if it is unknown.
        size_bytes: Size of a dense tile of this shape.
        parameter: True for a parameter of the function.
        dense: True if its elements are stored row by row without gaps.
        adjoint: The C++ variable of its gradient.
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
        """True if it has shared memory of its own."""
        return not self.parameter and self.storage == "shared" and self.memory == {self.name}


@dataclass(frozen=True)
class Array:
    """An array variable.

    Attributes:
        name: The C++ variable.
        parameter: True for a parameter of the function, False for a struct's member or a view.
        adjoint: The C++ variable of its gradient.
    """

    name: str
    parameter: bool = False
    adjoint: str = ""


@dataclass(frozen=True)
class Scalar:
    """A value that is neither a tile nor an array.

    Attributes:
        name: The C++ variable.
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
        alpha: The factor of A B; None if it is not constant.
        beta: The factor of C; None if it is not constant.
    """

    site: int
    alpha: float | None
    beta: float | None


@dataclass(frozen=True, eq=False)
class Operation:
    """A call of a builtin or function, or a statement of another kind.

    Attributes:
        name: Key of the builtin or function, e.g. ``tile_load``, or the kind of statement.
        line: Line of the user's source file.
        hook: Number of the hook around it in the generated source; None if it has none.
        wait: Number of the hook before it; None if no load can be in flight there.
        callee: Label of the user's function that it calls, or empty.
        product: The properties of a ``tile_matmul``; None for other operations.
        reverses: True if its adjoint has a hook.
        zeroes: True if there is a hook where an iteration of the reverse pass sets its result's gradient to zeros.
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

    @functools.cached_property
    def values(self) -> tuple[Value, ...]:
        """The operands and results."""
        return (*self.operands, *self.results)

    @functools.cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """The operands and results that are tiles."""
        return tuple(value for value in self.values if isinstance(value, Tile))

    @property
    def matrices(self) -> tuple[Tile, Tile, Tile]:
        """The tiles A, B and C of a product."""
        a, b, c = self.tiles
        return a, b, c


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop of the user's program.

    Attributes:
        kind: ``range``, ``while``, or ``unrolled`` if Warp repeats the body for each iteration.
        line: Line of the user's source file.
        hook: Number of the hooks before and after it.
        nodes: Its condition and body.
        variable: C++ name of the loop's variable, or empty.
        wait: Number of the hook before it; None if no load can be in flight there.
        end_wait: Number of the hook at the end of its body; None if no load can be in flight there.
        steps: Start, end and step of a range of constants, if Warp's code generator knows them, else None.
        reverses: True if the reversed loop has hooks before and after it.
    """

    kind: Literal["range", "while", "unrolled"]
    line: int
    hook: int
    nodes: tuple[Node, ...]
    variable: str = ""
    wait: int | None = None
    end_wait: int | None = None
    steps: tuple[int, int, int] | None = None
    reverses: bool = False


@dataclass(frozen=True, eq=False)
class Branch:
    """The body of an ``if`` or ``else``.

    Attributes:
        line: Line of the user's source file.
        nodes: Its statements, in order.
        wait: Number of the hook before it; None if no load can be in flight there.
        end_wait: Number of the hook at its end; None if no load can be in flight there.
    """

    line: int
    nodes: tuple[Node, ...]
    wait: int | None = None
    end_wait: int | None = None


Node = Operation | Loop | Branch


@dataclass(frozen=True)
class FunctionTrace:
    """The trace of a kernel or function.

    Attributes:
        label: Its name, which is unique within the module.
        file: The user's source file.
        nodes: Its statements, in order.
        parameters: C++ names of its parameters, in order.
        end_wait: Number of the hook at its end; None if no load can be in flight there.
        frame: Its tiles with shared memory of their own, in the order in which this memory lies, with their bytes.
    """

    label: str
    file: str
    nodes: tuple[Node, ...]
    parameters: tuple[str, ...] = ()
    end_wait: int | None = None
    frame: tuple[tuple[str, int], ...] = ()

    def operations(self) -> Iterator[Operation]:
        """Yields every operation, in the order of the program."""
        return operations(self.nodes)


@dataclass(frozen=True)
class ModuleTrace:
    """The traces of a module.

    Attributes:
        functions: The traced functions by label.
        reversed: Labels of the functions whose adjoint is generated.
        kernels_of: Keys of the kernels that reach a function, by its label.
        kernels: Keys of kernels, by their labels. Instances of a generic kernel have one key.
    """

    functions: Mapping[str, FunctionTrace] = field(default_factory=dict)
    reversed: frozenset[str] = frozenset()
    kernels_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)

    def largest_tile(self, names: Collection[str]) -> int:
        """Returns the number of elements of the largest tile of some operations.

        Args:
            names: Names of the operations.
        """
        found = (
            math.prod(tile.shape)
            for function in self.functions.values()
            for operation in function.operations()
            if operation.name in names
            for tile in operation.tiles
        )
        return max(found, default=0)

    def may_overlap(self, function: FunctionTrace, one: Tile, other: Tile) -> bool:
        """True if two tiles of a function may share memory. Parameters may if a call of the function passes such."""
        if UNKNOWN_MEMORY in one.memory | other.memory or one.memory & other.memory:
            return True
        parameters = set(function.parameters)
        pairs = [(a, b) for a in one.memory & parameters for b in other.memory & parameters]
        return bool(pairs) and any(
            self._passed_overlap(caller, call, function.parameters.index(a), function.parameters.index(b))
            for caller, call in self.calls_of(function.label)
            for a, b in pairs
        )

    def _passed_overlap(self, caller: FunctionTrace, call: Operation, a: int, b: int) -> bool:
        passed = [call.operands[index] if index < len(call.operands) else None for index in (a, b)]
        if not all(isinstance(value, Tile) for value in passed):
            return True
        first, second = (value for value in passed if isinstance(value, Tile))
        return self.may_overlap(caller, first, second)

    def bytes_around(self, label: str) -> int:
        """Returns the bytes of shared memory that the callers of a function hold while it runs, at most."""
        callers = {caller.label: caller for caller, _ in self.calls_of(label)}
        return max(
            (sum(size for _, size in caller.frame) + self.bytes_around(name) for name, caller in callers.items()),
            default=0,
        )

    def calls_of(self, label: str) -> list[tuple[FunctionTrace, Operation]]:
        """Returns every call of a function, each with the function that contains it."""
        return [
            (caller, call) for caller in self.functions.values() for call in caller.operations() if call.callee == label
        ]


def operations(nodes: tuple[Node, ...]) -> Iterator[Operation]:
    """Yields every operation in and below some nodes, in the order of the program."""
    for node in nodes:
        if isinstance(node, Operation):
            yield node
        else:
            yield from operations(node.nodes)


def loops(nodes: tuple[Node, ...], around: tuple[Loop, ...] = ()) -> Iterator[tuple[Loop, tuple[Loop, ...]]]:
    """Yields every loop in and below some nodes with the loops around it, outermost first."""
    for node in nodes:
        if isinstance(node, Loop):
            yield node, around
            yield from loops(node.nodes, (*around, node))
        elif isinstance(node, Branch):
            yield from loops(node.nodes, around)


def blocks(nodes: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
    """Yields some nodes, and the statements of each loop and branch below them."""
    yield nodes
    for node in nodes:
        if not isinstance(node, Operation):
            yield from blocks(node.nodes)


def own_operations(loop: Loop | Branch) -> Iterator[Operation]:
    """Yields the operations of a loop, without those of inner loops."""
    for node in loop.nodes:
        if isinstance(node, Operation):
            yield node
        elif isinstance(node, Branch):
            yield from own_operations(node)


def path_to(nodes: tuple[Node, ...], wanted: Node) -> list[tuple[tuple[Node, ...], int]]:
    """Returns the blocks around a node, outermost first, each with the index of the statement that contains it."""
    for index, node in enumerate(nodes):
        if node is wanted:
            return [(nodes, index)]
        if not isinstance(node, Operation) and (inner := path_to(node.nodes, wanted)):
            return [(nodes, index), *inner]
    return []
