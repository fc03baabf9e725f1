"""Records what Warp's code generator does with one function, and marks the places where code may stand."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from warp_tiles._warp.frames import Call, Emit, Quiet, Statement
from warp_tiles._warp.seams import find
from warp_tiles.codegen.affine import Affine, combined
from warp_tiles.codegen.effects import LOAD, MATMUL, effect_of_builtin, joined
from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.trace import (
    UNKNOWN_MEMORY,
    Array,
    Branch,
    Effect,
    FunctionTrace,
    Loop,
    Node,
    Operation,
    Product,
    Scalar,
    Tile,
    Value,
)

# statements of these nodes compute numbers or are recorded as loops and branches; all others may do anything
_ARITHMETIC_NODES = (
    *(ast.FunctionDef, ast.For, ast.While, ast.If, ast.IfExp),
    *(ast.Attribute, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.BinOp, ast.Name, ast.Subscript),
)
_CONSTRUCTORS = frozenset({"float", "int", "float16", "float32", "float64", "int32", "int64"})
_LOOP_JUMPS: dict[type[ast.AST], str] = {ast.Break: "break", ast.Continue: "continue"}


@dataclass
class _Operation:
    """An operation, with Warp's values."""

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


@dataclass
class _Block:
    """A loop's body, a branch's, or the function's."""

    kind: Literal["range", "while", "unrolled", "branch", "function"]
    line: int
    hook: int = -1
    variable: str = ""
    nodes: list[_Operation | _Block] = field(default_factory=list)
    wait: int | None = None
    end_wait: int | None = None


class Recorder:
    """The trace of one function, while Warp generates its code.

    Args:
        adjoint: Warp's Adjoint.
        numbers: Gives each hook of the module its number.
    """

    def __init__(self, adjoint: Any, numbers: Iterator[int]) -> None:
        self.adjoint = adjoint
        self.frames: list[Call | Quiet | Statement] = []
        self._numbers = numbers
        self._blocks = [_Block("function", 0)]
        self._loads_under_way = False
        self._affine: dict[int, Affine | None] = {}
        self._constants: dict[int, Any] = {}  # results of constructors
        self._assigned: set[str] = set()

    # ---- what the hooks in Warp's code generator call

    @property
    def line(self) -> int:
        """Line of the user's source file that is being generated."""
        return int(self.adjoint.lineno or 0) + int(self.adjoint.fun_lineno)

    def resolved(self, function: Any, operands: Sequence[Any]) -> None:
        """The innermost call is of this function, with these operands."""
        call = self._call()
        if call is None or call.function is not None:
            return
        call.function, call.operands = function, tuple(_flat(operands))
        # Warp turns the constant operand of a 64-bit type into its result
        call.constants = {id(value): value.constant for value in call.operands if hasattr(value, "constant")}

    def multiplies(self, site: int, scalars: tuple[Any, Any], tiles: tuple[Any, ...], result: Any) -> None:
        """The innermost call is a product of these tiles, with these values of alpha and beta."""
        call = self._call()
        if call is not None:
            call.site, call.operands, call.result = (site, *scalars), tiles, result

    def _call(self) -> Call | None:
        return self.frames[-1] if self.frames and isinstance(self.frames[-1], Call) else None

    def statement(self, text: str, replay: str | None, emit: Emit, skip_replay: bool) -> None:
        """A statement is about to be emitted: marks the place, and emits it.

        Args:
            text: The statement.
            replay: What the reverse pass repeats in its place, or None.
            emit: Warp's own ``add_forward``.
            skip_replay: Whether the reverse pass leaves it out.
        """
        frame = self.frames[-1] if self.frames else Quiet()
        if isinstance(frame, Statement):
            self._bare_statement(frame, emit)
        if not isinstance(frame, Call) or frame.function is None:
            emit(text, replay, skip_replay)
            return
        name = str(frame.function.key)
        effect = self._effect(frame)
        if effect is not Effect.NONE:
            frame.wait = self.mark_wait(emit, frame.wait)
            if effect is not Effect.ALIAS and name != LOAD and frame.function.is_builtin():
                self._loads_under_way = False
        if name == LOAD or (name == MATMUL and frame.site is not None):
            frame.hook = next(self._numbers)
            if not frame.function.skip_replay:  # else the reverse pass has it as a comment
                replay = Hook.REPLAY.around(frame.hook, replay or text)
            text = Hook.AT.around(frame.hook, text)
            self._loads_under_way = name == LOAD
        emit(text, replay, skip_replay)

    def _bare_statement(self, frame: Statement, emit: Emit) -> None:
        jump = _LOOP_JUMPS.get(frame.node)
        if frame.recorded or (jump is None and issubclass(frame.node, _ARITHMETIC_NODES)):
            return
        frame.recorded = True
        wait = self.mark_wait(emit)
        effect = Effect.UNKNOWN if jump is None else Effect.NONE
        self._add(_Operation(jump or frame.node.__name__.lower(), self.line, effect, wait=wait))

    def call_ended(self, call: Call, output: Any) -> None:
        """A call has been generated; ``output`` is what it gives."""
        if call.function is None:
            return
        results = tuple(_flat([output if call.result is None else call.result]))
        name = str(call.function.key)
        if name == "assign" and call.operands:
            self._assigned.add(call.operands[0].emit())
        self._follow(name, call, results)
        callee = None if call.function.is_builtin() else call.function
        effect = self._effect(call, results)
        self._add(
            _Operation(
                name,
                self.line,
                effect,
                call.operands,
                results,
                call.hook,
                call.wait,
                callee,
                call.site,
                call.constants,
            )
        )

    def gradient_called(self, operands: Sequence[Any], output: Any, wait: int | None) -> None:
        """A call of ``wp.grad()`` has been generated."""
        self._add(
            _Operation("grad", self.line, Effect.UNKNOWN, tuple(_flat(operands)), tuple(_flat([output])), wait=wait)
        )

    def returns(self, values: Any, emit: Emit) -> None:
        """The function is about to return."""
        wait = self.mark_wait(emit)
        self._add(_Operation("return", self.line, Effect.LEAVES, tuple(_flat([values])), wait=wait))

    def begin_loop(self, kind: Literal["range", "while", "unrolled"], emit: Emit) -> None:
        """A loop begins; its hook is emitted before it."""
        block = _Block(kind, self.line, next(self._numbers), wait=self.mark_wait(emit))
        if kind != "unrolled":  # before any other loop the block always waits
            self._loads_under_way = False
        emit(Hook.BEGIN.name_of(block.hook), None, True)
        self._open(block)

    def loop_variable(self, variable: Any) -> None:
        """The loop that has begun has this variable."""
        self._blocks[-1].variable = variable.emit()

    def end_body(self, emit: Emit) -> None:
        """The body of the innermost loop or branch ends."""
        self._blocks[-1].end_wait = self.mark_wait(emit)
        self._loads_under_way = False

    def end_loop(self, emit: Emit) -> None:
        """The innermost loop has been generated."""
        block = self._blocks.pop()
        emit(Hook.END.name_of(block.hook), None, True)

    def begin_branch(self, emit: Emit) -> None:
        """The body of an ``if`` or ``else`` is about to begin."""
        self._open(_Block("branch", self.line, wait=self.mark_wait(emit)))
        self._loads_under_way = False

    def end_branch(self) -> None:
        """It has been generated."""
        self._blocks.pop()

    def mark_wait(self, emit: Emit, known: int | None = None) -> int | None:
        """Mark the place where loads that are under way may have to be waited for.

        Args:
            emit: Emits the mark.
            known: Number of the hook, if the place is marked already.

        Returns:
            Number of the hook; None if no load can be under way.
        """
        if known is not None or not self._loads_under_way:
            return known
        number = next(self._numbers)
        emit(Hook.WAIT.name_of(number), Hook.REPLAY_WAIT.name_of(number), False)
        return number

    def end_function(self) -> None:
        """The whole function has been generated."""
        if self._loads_under_way:
            number = self._blocks[0].end_wait = next(self._numbers)
            self._loads_under_way = False
            block = self.adjoint.blocks[0]
            block.body_forward.append(Hook.WAIT.name_of(number))
            block.body_replay.append(Hook.REPLAY_WAIT.name_of(number))

    # ---- record

    def _open(self, block: _Block) -> None:
        self._blocks[-1].nodes.append(block)
        self._blocks.append(block)

    def _add(self, operation: _Operation) -> None:
        self._blocks[-1].nodes.append(operation)

    def _effect(self, call: Call, results: tuple[Any, ...] = ()) -> Effect:
        values = (*call.operands, *results)
        if not call.function.is_builtin():
            return Effect.UNKNOWN  # until its own trace is complete
        return effect_of_builtin(
            str(call.function.key),
            tiles=str(call.function.key).startswith("tile_") or any(map(_is_tile, values)),
            arrays=any(map(_is_array, call.operands)),
            references=any(map(_is_reference, call.operands)),
        )

    def _follow(self, name: str, call: Call, results: tuple[Any, ...]) -> None:
        """Keep the value of a result as a constant or as an affine expression, where it is one."""
        if len(results) != 1 or not call.function.is_builtin():
            return
        if name in _CONSTRUCTORS and len(call.operands) == 1:
            (operand,) = call.operands
            constant = call.constants.get(id(operand))
            self._constants[id(results[0])] = constant if constant is not None else self._constants.get(id(operand))
        if not _is_whole_number(results[0]):
            return
        offsets = tuple(self._offset(value, call.constants.get(id(value))) for value in call.operands)
        self._affine[id(results[0])] = combined(name, offsets)

    def constant_of(self, value: Any) -> float | None:
        """A scalar of the finished function as a number; None where it is not constant."""
        if hasattr(value, "emit") and value.emit() in self._assigned:
            return None
        constant = value if isinstance(value, (int, float)) else getattr(value, "constant", None)
        if constant is None:
            constant = self._constants.get(id(value))
        constant = getattr(constant, "value", constant)  # of one of Warp's scalar types
        return float(constant) if isinstance(constant, (int, float)) else None

    def _offset(self, value: Any, constant: Any) -> Affine | None:
        if isinstance(constant, int) and not isinstance(constant, bool):
            return Affine(constant)
        if not _is_whole_number(value):
            return None
        known = self._affine.get(id(value))
        return known if known is not None else Affine.variable(value.emit())

    # ---- the finished trace

    def trace(self, label_of: Callable[[Any], str | None], effect_of: Callable[[Any], Effect]) -> FunctionTrace:
        """The trace, once all functions of the module have been generated and storage is settled.

        Args:
            label_of: Label of a traced function, by its Adjoint.
            effect_of: What a function may do, by Warp's function.
        """
        label = label_of(self.adjoint) or ""
        parameters = tuple(argument.emit() for argument in self.adjoint.args)
        freezer = _Freezer(self, label_of, effect_of)
        root = self._blocks[0]
        return FunctionTrace(label, str(self.adjoint.filename), freezer.nodes(root.nodes), parameters, root.end_wait)

    def effect(self, effect_of: Callable[[Any], Effect]) -> Effect:
        """What the function may do, for its callers."""
        found: list[Effect] = []
        pending: list[_Operation | _Block] = list(self._blocks[0].nodes)
        while pending:
            node = pending.pop()
            if isinstance(node, _Block):
                pending += node.nodes
            elif node.effect is not Effect.LEAVES:
                found.append(node.effect if node.callee is None else effect_of(node.callee))
        return joined(found)


class _Freezer:
    """Makes values of what was recorded."""

    def __init__(
        self, recorder: Recorder, label_of: Callable[[Any], str | None], effect_of: Callable[[Any], Effect]
    ) -> None:
        self._recorder = recorder
        self._label_of, self._effect_of = label_of, effect_of
        self._memory: dict[str, frozenset[str]] = {}

    def nodes(self, recorded: Sequence[_Operation | _Block]) -> tuple[Node, ...]:
        return tuple(self._node(node) for node in recorded)

    def _node(self, node: _Operation | _Block) -> Node:
        if isinstance(node, _Block):
            inside = self.nodes(node.nodes)
            if node.kind == "branch":
                return Branch(node.line, inside, node.wait, node.end_wait)
            kind = cast("Literal['range', 'while', 'unrolled']", node.kind)
            return Loop(kind, node.line, node.hook, inside, node.variable, node.wait, node.end_wait)
        operands = tuple(self._value(value, node.constants) for value in node.operands)
        memory = frozenset().union(*(value.memory for value in operands if isinstance(value, Tile)))
        results = tuple(self._value(value, {}, memory) for value in node.results)
        effect, callee = node.effect, ""
        if node.callee is not None:
            effect = self._effect_of(node.callee)
            callee = self._label_of(node.callee.adj) or ""
        return Operation(
            node.name, node.line, effect, operands, results, node.hook, node.wait, callee, self._product(node)
        )

    def _product(self, node: _Operation) -> Product | None:
        if node.site is None:
            return None
        number, alpha, beta = node.site
        return Product(number, self._recorder.constant_of(alpha), self._recorder.constant_of(beta))

    def _value(self, var: Any, constants: Mapping[int, Any], memory: frozenset[str] = frozenset()) -> Value:
        name = var.emit() if hasattr(var, "emit") else str(getattr(var, "key", var))
        if _is_tile(var):
            return self._tile(var, name, memory)
        parameter = bool(getattr(var, "is_parameter", False)) or any(var is a for a in self._recorder.adjoint.args)
        if _is_array(var):
            return Array(name, parameter)
        constant = constants.get(id(var), getattr(var, "constant", None))
        if not isinstance(constant, (bool, int, float, str)):
            constant = getattr(constant, "value", None)  # one of Warp's scalar types
        offset = self._recorder._offset(var, constant) if hasattr(var, "type") else None
        if offset is not None and ({name} | offset.variables) & self._recorder._assigned:
            offset = None
        return Scalar(name, constant, offset)

    def _tile(self, var: Any, name: str, passed_on: frozenset[str]) -> Tile:
        kind = var.type
        parameter = any(var is argument for argument in self._recorder.adjoint.args)
        shape = tuple(int(extent) for extent in kind.shape)
        if name not in self._memory:
            own = parameter or (kind.storage == "shared" and bool(kind.owner))
            self._memory[name] = (
                frozenset({name}) if own or kind.storage != "shared" else passed_on or frozenset({UNKNOWN_MEMORY})
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
        )


def _flat(values: Any) -> Iterator[Any]:
    """The values of a call, those of tuples and lists one by one, without what is missing."""
    for value in values:
        elements = getattr(getattr(value, "type", None), "values", None)  # of a tuple in a kernel
        if isinstance(elements, (list, tuple)) and all(hasattr(element, "emit") for element in elements):
            yield from elements
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)
        elif value is not None:
            yield value


def _is_tile(value: Any) -> bool:
    return bool(find("types.is_tile")(getattr(value, "type", None)))


def _is_array(value: Any) -> bool:
    return bool(find("types.is_array")(getattr(value, "type", None)))


def _is_reference(value: Any) -> bool:
    return bool(find("types.is_reference")(getattr(value, "type", None)))


def _is_whole_number(value: Any) -> bool:
    return getattr(getattr(value, "type", None), "__name__", "") in ("int", "int32")
