"""The calls and values of a function that Warp generates, and their conversion to its trace."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import warp

from warp_tiles._warp.internals import find
from warp_tiles.codegen.operations import (
    ASSIGN,
    READERS,
    UNKNOWN_MEMORY,
    Affine,
    Array,
    Effect,
    Operation,
    Product,
    Scalar,
    Tile,
    Value,
    affine_result,
)
from warp_tiles.codegen.trace import Branch, Loop, Node


@dataclass
class Statement:
    """Statements that a syntax node emits without a call."""

    node: type[ast.AST]
    traced: bool = False  # True once an operation was added for the node
    unrolled: bool = False  # True for a loop whose body Warp repeats for each iteration


@dataclass
class TracedOperation:
    """An :class:`warp_tiles.codegen.operations.Operation` with Warp's values. It begins as a call that Warp generates.

    Attributes:
        function: Warp's function of a call, once it is resolved.
        site: The number of a product's site, and the values of alpha and beta.
        constants: Values of constant operands, by identity of the operand.
        statement: The statement that the reverse pass repeats, or empty.
    """

    name: str = ""
    line: int = 0
    effect: Effect = Effect.UNKNOWN
    operands: tuple[Any, ...] = ()
    results: tuple[Any, ...] = ()
    hook: int | None = None
    wait: int | None = None
    function: Any = None
    site: tuple[int, Any, Any] | None = None
    solver: int | None = None
    constants: Mapping[int, Any] = field(default_factory=dict)
    reverses: bool = False
    zeroes: bool = False
    statement: str = ""
    changed: frozenset[str] = frozenset()

    @property
    def callee(self) -> Any:
        return None if self.function is None or self.function.is_builtin() else self.function


@dataclass
class TracedBlock:
    """The body of a loop, of a branch or of the function.

    Loads before a loop may be ``in_flight`` after it, because it may have no iterations.
    """

    kind: Literal["range", "while", "unrolled", "branch", "function"]
    line: int
    hook: int = -1
    variable: str = ""
    iterator: str = ""
    nodes: list[TracedOperation | TracedBlock] = field(default_factory=list)
    wait: int | None = None
    end_wait: int | None = None
    condition: Any = None
    in_flight: bool = False
    steps: tuple[int, int, int] | None = None
    reverses: bool = False


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "float": np.float32, "float16": np.float16, "float32": np.float32, "float64": np.float64,
    "int": int, "int32": int, "int64": int,
}  # fmt: skip

# the groups of builtins in Warp's documentation that write to no number, apart from assignments and random states
_READING_GROUPS = (
    *("Scalar Math", "Vector Math", "Transformations", "Spatial Math", "Tile Primitives", "Utility", "Textures"),
    *("Random", "Operators", "Code Generation", "Other"),
)


def flatten(values: Any) -> Iterator[Any]:
    """Yields the values of a call. It replaces tuples and lists by their elements, and leaves out None."""
    for value in values:
        elements = getattr(getattr(value, "type", None), "values", None)  # of a tuple in a kernel
        if isinstance(elements, (list, tuple)) and all(hasattr(element, "emit") for element in elements):
            yield from elements
        elif isinstance(value, (list, tuple)):
            yield from flatten(value)
        elif value is not None:
            yield value


def is_tile(value: Any) -> bool:
    return bool(warp.types.is_tile(getattr(value, "type", None)))


def is_array(value: Any) -> bool:
    return bool(warp.types.is_array(getattr(value, "type", None)))


def is_reference(value: Any) -> bool:
    return bool(find("types.is_reference")(getattr(value, "type", None)))


def name_of(function: Any) -> str:
    """The key of a builtin. A user's function has parentheses, because it may have a builtin's name."""
    return str(function.key) if function.is_builtin() else f"{function.key}()"


def changed_operands(function: Any, bound: Mapping[str, Any]) -> frozenset[str]:
    """The C++ names of the variables that a call may change in place, apart from tiles, arrays and its results.

    Warp tells which parameters of the user's functions are references. It does not tell which operands a builtin
    writes, so a builtin may change all of them, unless its group writes to no number.
    """
    if function.is_builtin():
        if str(function.key) in READERS or function.group in _READING_GROUPS:
            return frozenset()
        values = list(flatten(bound.values()))
    else:
        is_changed = find("types.is_reference")
        values = [value for name, value in bound.items() if is_changed(function.input_types.get(name))]
    return frozenset(
        value.emit() for value in values if hasattr(value, "emit") and getattr(value, "constant", None) is None
    )


def is_int32(value: Any) -> bool:
    return getattr(getattr(value, "type", None), "__name__", "") in ("int", "int32")


class Scalars:
    """The scalars of one function whose values are constants or affine expressions.

    ``assigned`` are C++ names of variables that the function assigns to or changes, so that they are not constant.
    """

    def __init__(self) -> None:
        self.assigned: set[str] = set()
        self._affine: dict[int, Affine | None] = {}
        self._sources: dict[str, frozenset[str]] = {}  # by name of a result: the variables that it is computed from
        # by result: constructor, operand, and its value if it is known
        self._made: dict[int, tuple[str, Any, Any]] = {}

    def follow(self, call: TracedOperation) -> None:
        """Stores the value of a call's result, if it is a constant or an affine expression."""
        results = call.results
        name = str(call.function.key)
        if name == ASSIGN and call.operands:
            self.assigned.add(call.operands[0].emit())
        self.assigned |= call.changed
        if len(results) != 1 or not call.function.is_builtin():
            return
        if name in _CONVERSIONS and len(call.operands) == 1:
            (operand,) = call.operands
            self._made[id(results[0])] = name, operand, call.constants.get(id(operand))
        if not is_int32(results[0]):
            return
        offsets = tuple(self.affine(value, call.constants.get(id(value))) for value in call.operands)
        self._affine[id(results[0])] = affine_result(name, offsets)
        if self._affine[id(results[0])] is not None:
            names = frozenset(value.emit() for value in call.operands)
            self._sources[results[0].emit()] = names.union(*(self._sources.get(name, ()) for name in names))

    def constant(self, value: Any) -> float | None:
        """The value of a scalar of the finished function, as its type rounds it; None if it is not constant."""
        if hasattr(value, "emit") and value.emit() in self.assigned:
            return None
        kind = getattr(getattr(value, "type", None), "__name__", "")
        constant = value if isinstance(value, (int, float)) else getattr(value, "constant", None)
        if constant is None and id(value) in self._made:
            kind, operand, known = self._made[id(value)]
            is_assigned = hasattr(operand, "emit") and operand.emit() in self.assigned
            constant = None if is_assigned else self.constant(operand) if known is None else known
        constant = getattr(constant, "value", constant)  # of one of Warp's scalar types
        return float(_CONVERSIONS.get(kind, float)(constant)) if isinstance(constant, (int, float)) else None

    def is_assigned(self, name: str) -> bool:
        """True if the finished function assigns to a variable, or to one that it is computed from."""
        return not self.assigned.isdisjoint({name} | self._sources.get(name, frozenset()))

    def affine(self, value: Any, constant: Any) -> Affine | None:
        """The value of a scalar as an affine expression; None if it is not an integer."""
        if isinstance(constant, int) and not isinstance(constant, bool):
            return Affine(constant)
        if not is_int32(value):
            return None
        known = self._affine.get(id(value))
        return known if known is not None else Affine.variable(value.emit())


def frame_of(adjoint: Any) -> Iterator[tuple[str, int]]:
    """Yields each variable of a function that has shared memory of its own, in the order of memory, with its bytes."""
    for var in adjoint.variables:
        kind = var.type
        if is_tile(var):
            is_owner = getattr(kind, "storage", "") == "shared" and kind.owner
        else:
            is_owner = hasattr(kind, "capacity") and not is_array(var)  # a stack of tiles; arrays have a capacity too
        if is_owner:
            yield var.emit(), int(kind.size_in_bytes())


class TraceBuilder:
    """Builds the trace of one function, after Warp has generated the whole module and settled the storage of tiles.

    Args:
        label_of: Returns the label of a traced function, by its Adjoint.
        effect_of: Returns the effect of a function, by Warp's function.
    """

    def __init__(
        self, adjoint: Any, scalars: Scalars, label_of: Callable[[Any], str], effect_of: Callable[[Any], Effect]
    ) -> None:
        self._adjoint = adjoint
        self._scalars = scalars
        self._label_of, self._effect_of = label_of, effect_of
        self._memory: dict[str, frozenset[str]] = {}

    def nodes(self, traced: Sequence[TracedOperation | TracedBlock]) -> tuple[Node, ...]:
        return tuple(self._node(node) for node in traced)

    def _node(self, node: TracedOperation | TracedBlock) -> Node:
        if isinstance(node, TracedBlock):
            inside = self.nodes(node.nodes)
            condition = "" if node.condition is None else self._value(node.condition, {}).name
            if node.kind == "branch":
                return Branch(inside, node.wait, node.end_wait, condition)
            kind = cast("Literal['range', 'while', 'unrolled']", node.kind)
            waits = node.wait, node.end_wait
            return Loop(
                kind,
                node.line,
                node.hook,
                inside,
                node.variable,
                *waits,
                node.steps,
                node.reverses,
                condition,
                node.iterator,
            )
        operands = tuple(self._value(value, node.constants) for value in node.operands)
        memory = frozenset().union(*(value.memory for value in operands if isinstance(value, Tile)))
        results = tuple(self._value(value, {}, memory) for value in node.results)
        effect, callee = node.effect, ""
        if node.callee is not None:
            effect = self._effect_of(node.callee)
            callee = self._label_of(node.callee.adj)
        product = None if node.site is None else self._product(*node.site)
        same = {name: getattr(node, name) for name in ("hook", "wait", "reverses", "zeroes", "changed", "solver")}
        return Operation(node.name, node.line, effect, operands, results, callee=callee, product=product, **same)

    def _product(self, site: int, alpha: Any, beta: Any) -> Product:
        factor: float | str | None = self._scalars.constant(alpha)
        kind = getattr(getattr(alpha, "type", None), "__name__", "")
        if factor is None and kind.startswith("float") and not self._scalars.is_assigned(alpha.emit()):
            factor = str(alpha.emit())
        return Product(site, factor, self._scalars.constant(beta))

    def _value(self, var: Any, constants: Mapping[int, Any], memory: frozenset[str] = frozenset()) -> Value:
        name = var.emit() if hasattr(var, "emit") else name_of(var) if hasattr(var, "is_builtin") else str(var)
        if is_tile(var):
            return self._tile(var, name, memory)
        parameter = bool(getattr(var, "is_parameter", False)) or self._is_argument(var)
        if is_array(var):
            return Array(name, parameter, var.emit_adj() if hasattr(var, "emit_adj") else "")
        constant = constants.get(id(var), getattr(var, "constant", None))
        if not isinstance(constant, (bool, int, float, str)):
            constant = getattr(constant, "value", None)  # one of Warp's scalar types
        offset = self._scalars.affine(var, constant) if hasattr(var, "type") else None
        if self._scalars.is_assigned(name):
            offset = None
        return Scalar(name, constant, offset)

    def _tile(self, var: Any, name: str, operand_memory: frozenset[str]) -> Tile:
        kind = var.type
        parameter = self._is_argument(var)
        shape = tuple(int(extent) for extent in kind.shape)
        if name not in self._memory:
            own = parameter or (kind.storage == "shared" and bool(kind.owner))
            self._memory[name] = (
                frozenset({name}) if own or kind.storage != "shared" else operand_memory or frozenset({UNKNOWN_MEMORY})
            )
        strides = tuple(int(stride) for stride in kind.strides)
        dense = strides == tuple(itertools.accumulate((1, *shape[:0:-1]), lambda a, b: a * b))[::-1]
        return Tile(
            name,
            str(kind.dtype.__name__),
            shape,
            cast("Literal['shared', 'register']", kind.storage),
            self._memory[name],
            int(kind.size_in_bytes()),
            parameter,
            dense,
            var.emit_adj(),
        )

    def _is_argument(self, var: Any) -> bool:
        return any(var is argument for argument in self._adjoint.args)
