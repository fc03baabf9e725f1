"""What a kernel or function does, as values: recorded while Warp generates its code.

A :class:`FunctionTrace` is a tree of operations, loops and branches in the order of the user's program. Decisions about
code are pure functions of it (:mod:`warp_tiles.codegen.loops`, :mod:`warp_tiles.codegen.loads`,
:mod:`warp_tiles.codegen.adjoints`); what they decide is written at hooks, which have numbers here and names in
:mod:`warp_tiles.codegen.prelude`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from warp_tiles.codegen.affine import Affine

UNKNOWN_MEMORY = "?"  # in Tile.memory: any shared tile's


class Effect(Enum):
    """What an operation may do beside computing its results.

    Attributes:
        NONE: Nothing: numbers in, numbers out; arrays may be read.
        ALIAS: A tile becomes another name of an operand's memory; no element is read.
        TILES: Elements of its tiles are read or written; arrays may be read.
        WRITES: Arrays are written; so may its tiles be.
        LEAVES: The function returns.
        UNKNOWN: Anything.
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
        storage: Where it lies. The annotation of a parameter cannot tell: its caller decides.
        memory: Names of the variables whose shared memory it may name; its own name where it has memory of its own or
            is a parameter, ``?`` where nothing is known.
        size_bytes: Bytes of a dense tile of this shape.
        parameter: Whether it is a parameter of the function.
        dense: Whether its elements lie row by row without gaps.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    storage: Literal["shared", "register"]
    memory: frozenset[str]
    size_bytes: int
    parameter: bool = False
    dense: bool = True

    @property
    def owner(self) -> bool:
        """Whether it has shared memory of its own."""
        return not self.parameter and self.storage == "shared" and self.memory == {self.name}


@dataclass(frozen=True)
class Array:
    """An array variable.

    Attributes:
        name: The C++ variable.
        parameter: Whether it is a parameter of the function; a struct's member or a view is none.
    """

    name: str
    parameter: bool = False


@dataclass(frozen=True)
class Scalar:
    """Any other value.

    Attributes:
        name: The C++ variable.
        constant: Its value where the compiler knows it.
        offset: The value as an affine expression of loop variables and of values that no loop changes; None: unknown.
    """

    name: str
    constant: float | int | bool | str | None = None
    offset: Affine | None = None


Value = Tile | Array | Scalar


@dataclass(frozen=True)
class Product:
    """What is special of a ``wp.tile_matmul``.

    Attributes:
        site: Number of the site within its module.
        alpha, beta: Scalars where they are constants; None where they are not.
    """

    site: int
    alpha: float | None
    beta: float | None


@dataclass(frozen=True)
class Operation:
    """One call of a builtin or function, or a statement of another kind.

    Attributes:
        name: Key of the builtin or function, e.g. ``tile_load``; or the kind of statement.
        line: Line of the user's source file.
        effect: What it may do.
        operands, results: Values.
        hook: Number of the hook that encloses it in the generated source; None where there is none.
        wait: Number of the hook before it; None where no load can be under way.
        callee: Label of the user's function that it calls, or empty.
        product: Of a ``tile_matmul`` that adds to its third operand.
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

    @property
    def values(self) -> tuple[Value, ...]:
        """Operands and results."""
        return (*self.operands, *self.results)

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """Those of its values that are tiles."""
        return tuple(value for value in self.values if isinstance(value, Tile))


@dataclass(frozen=True)
class Loop:
    """A loop of the user's program.

    Attributes:
        kind: ``range``, ``while``, or ``unrolled`` where Warp writes the body out once for each iteration.
        line: Line of the user's source file.
        hook: Number of the hooks before and behind it.
        nodes: Condition and body.
        variable: C++ name of the loop's variable, or empty.
    """

    kind: Literal["range", "while", "unrolled"]
    line: int
    hook: int
    nodes: tuple[Node, ...]
    variable: str = ""
    wait: int | None = None  # before it
    end_wait: int | None = None  # at the end of its body


@dataclass(frozen=True)
class Branch:
    """The body of an ``if`` or ``else``.

    Attributes:
        line: Line of the user's source file.
        nodes: Its statements, in order.
    """

    line: int
    nodes: tuple[Node, ...]
    wait: int | None = None
    end_wait: int | None = None


Node = Operation | Loop | Branch


@dataclass(frozen=True)
class FunctionTrace:
    """A kernel or function.

    Attributes:
        label: Its name, which no other function of the module has.
        file: The user's source file.
        nodes: Its statements, in order.
        parameters: C++ names of its parameters, in order.
        end_wait: Number of the hook at its end.
    """

    label: str
    file: str
    nodes: tuple[Node, ...]
    parameters: tuple[str, ...] = ()
    end_wait: int | None = None

    def operations(self) -> Iterator[Operation]:
        """Every operation, in the order of the program."""
        return operations(self.nodes)


@dataclass(frozen=True)
class ModuleTrace:
    """Every traced function of a module.

    Attributes:
        functions: By label.
        reversed: Labels of the functions whose adjoint is generated.
        kernels_of: Keys of the kernels that reach a function, by its label.
    """

    functions: Mapping[str, FunctionTrace] = field(default_factory=dict)
    reversed: frozenset[str] = frozenset()
    kernels_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def may_overlap(self, function: FunctionTrace, one: Tile, other: Tile) -> bool:
        """Whether two tiles of a function may lie in the same memory; of parameters its callers decide."""
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

    def calls_of(self, label: str) -> list[tuple[FunctionTrace, Operation]]:
        """Every call of a function, each with the function that contains it."""
        return [
            (caller, call) for caller in self.functions.values() for call in caller.operations() if call.callee == label
        ]


def operations(nodes: tuple[Node, ...]) -> Iterator[Operation]:
    """Every operation below some nodes, in the order of the program."""
    for node in nodes:
        if isinstance(node, Operation):
            yield node
        else:
            yield from operations(node.nodes)


def loops(nodes: tuple[Node, ...], around: tuple[Loop, ...] = ()) -> Iterator[tuple[Loop, tuple[Loop, ...]]]:
    """Every loop below some nodes with the loops around it, outermost first."""
    for node in nodes:
        if isinstance(node, Loop):
            yield node, around
            yield from loops(node.nodes, (*around, node))
        elif isinstance(node, Branch):
            yield from loops(node.nodes, around)


def of_this_loop(loop: Loop | Branch) -> Iterator[Operation]:
    """Operations of a loop, without those of loops inside it."""
    for node in loop.nodes:
        if isinstance(node, Operation):
            yield node
        elif isinstance(node, Branch):
            yield from of_this_loop(node)


def path_to(nodes: tuple[Node, ...], wanted: Node) -> list[tuple[tuple[Node, ...], int]]:
    """The blocks around a node, outermost first, each with the index of the statement that leads to it."""
    for index, node in enumerate(nodes):
        if node is wanted:
            return [(nodes, index)]
        if not isinstance(node, Operation) and (inner := path_to(node.nodes, wanted)):
            return [(nodes, index), *inner]
    return []
