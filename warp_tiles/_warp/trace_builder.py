"""Converts the recorded operations of a function, which hold Warp's values, to its trace."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from warp_tiles._warp.values import Scalars, is_array, is_tile
from warp_tiles.codegen.trace import (
    UNKNOWN_MEMORY,
    Array,
    Branch,
    Effect,
    Loop,
    Node,
    Operation,
    Product,
    Scalar,
    Tile,
    Value,
)


@dataclass
class RecordedOperation:
    """An :class:`warp_tiles.codegen.trace.Operation` with Warp's values."""

    name: str
    line: int
    effect: Effect
    operands: tuple[Any, ...] = ()
    results: tuple[Any, ...] = ()
    hook: int | None = None
    wait: int | None = None
    callee: Any = None
    site: tuple[int, Any, Any] | None = None
    constants: Mapping[int, Any] = field(default_factory=dict)
    reverses: bool = False
    zeroes: bool = False


@dataclass
class RecordedBlock:
    """The body of a loop, of a branch or of the function."""

    kind: Literal["range", "while", "unrolled", "branch", "function"]
    line: int
    hook: int = -1
    variable: str = ""
    nodes: list[RecordedOperation | RecordedBlock] = field(default_factory=list)
    wait: int | None = None
    end_wait: int | None = None
    steps: tuple[int, int, int] | None = None
    reverses: bool = False


class TraceBuilder:
    """Builds the trace of one function, after Warp has generated the whole module and settled the storage of tiles.

    Args:
        adjoint: Warp's Adjoint of the function.
        scalars: Its scalars.
        label_of: Returns the label of a traced function, by its Adjoint.
        effect_of: Returns the effect of a function, by Warp's function.
    """

    def __init__(
        self,
        adjoint: Any,
        scalars: Scalars,
        label_of: Callable[[Any], str | None],
        effect_of: Callable[[Any], Effect],
    ) -> None:
        self._adjoint = adjoint
        self._scalars = scalars
        self._label_of, self._effect_of = label_of, effect_of
        self._memory: dict[str, frozenset[str]] = {}

    def nodes(self, recorded: Sequence[RecordedOperation | RecordedBlock]) -> tuple[Node, ...]:
        """Converts recorded nodes to nodes of the trace, in order."""
        return tuple(self._node(node) for node in recorded)

    def _node(self, node: RecordedOperation | RecordedBlock) -> Node:
        if isinstance(node, RecordedBlock):
            inside = self.nodes(node.nodes)
            if node.kind == "branch":
                return Branch(node.line, inside, node.wait, node.end_wait)
            kind = cast("Literal['range', 'while', 'unrolled']", node.kind)
            return Loop(
                kind, node.line, node.hook, inside, node.variable, node.wait, node.end_wait, node.steps, node.reverses
            )
        operands = tuple(self._value(value, node.constants) for value in node.operands)
        memory = frozenset().union(*(value.memory for value in operands if isinstance(value, Tile)))
        results = tuple(self._value(value, {}, memory) for value in node.results)
        effect, callee = node.effect, ""
        if node.callee is not None:
            effect = self._effect_of(node.callee)
            callee = self._label_of(node.callee.adj) or ""
        return Operation(
            node.name,
            node.line,
            effect,
            operands,
            results,
            node.hook,
            node.wait,
            callee,
            self._product(node),
            node.reverses,
            node.zeroes,
        )

    def _product(self, node: RecordedOperation) -> Product | None:
        if node.site is None:
            return None
        number, alpha, beta = node.site
        return Product(number, self._scalars.constant(alpha), self._scalars.constant(beta))

    def _value(self, var: Any, constants: Mapping[int, Any], memory: frozenset[str] = frozenset()) -> Value:
        name = var.emit() if hasattr(var, "emit") else str(getattr(var, "key", var))
        if is_tile(var):
            return self._tile(var, name, memory)
        parameter = bool(getattr(var, "is_parameter", False)) or self._is_argument(var)
        if is_array(var):
            return Array(name, parameter, var.emit_adj() if hasattr(var, "emit_adj") else "")
        constant = constants.get(id(var), getattr(var, "constant", None))
        if not isinstance(constant, (bool, int, float, str)):
            constant = getattr(constant, "value", None)  # one of Warp's scalar types
        offset = self._scalars.affine(var, constant) if hasattr(var, "type") else None
        if offset is not None and ({name} | offset.variables) & self._scalars.assigned:
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
