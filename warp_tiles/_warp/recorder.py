"""Records the functions of a module while Warp generates their code, and puts hooks into the generated source."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

from warp_tiles._warp.trace_builder import (
    Call,
    Emit,
    RecordedBlock,
    RecordedOperation,
    Scalars,
    Statement,
    TraceBuilder,
    Unrecorded,
    flatten,
    frame_of,
    is_array,
    is_reference,
    is_tile,
)
from warp_tiles.codegen.effects import (
    ASTYPE,
    ELEMENTWISE,
    INPLACE,
    LOAD,
    MAP,
    MATMUL,
    OPERATORS,
    SHAPE,
    STORE,
    TRANSPOSE,
    ZEROS,
    Effect,
    effect_of_builtin,
    effect_of_function,
)
from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.trace import FunctionTrace, ModuleTrace

# these nodes compute numbers, or are recorded as loops and branches; all other nodes have unknown effects
_ARITHMETIC_NODES = (
    *(ast.FunctionDef, ast.For, ast.While, ast.If, ast.IfExp),
    *(ast.Attribute, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.BinOp, ast.Name, ast.Subscript),
)
# the adjoints of these have hooks, if the statements have
_REVERSED = ELEMENTWISE | {LOAD, MATMUL, STORE, TRANSPOSE}
_LOOP_JUMPS: dict[type[ast.AST], str] = {ast.Break: "break", ast.Continue: "continue"}


def _name_of(function: Any) -> str:
    """The key of a builtin. A user's function has parentheses, because it may have a builtin's name."""
    return str(function.key) if function.is_builtin() else f"{function.key}()"


class Recorder:
    """Records the operations, loops and branches of one function.

    Args:
        adjoint: Warp's Adjoint.
        numbers: Yields the number of each new hook of the module.

    Attributes:
        frames: The calls and statements that Warp is generating, the innermost last.
    """

    def __init__(self, adjoint: Any, numbers: Iterator[int]) -> None:
        self.adjoint = adjoint
        self.frames: list[Call | Unrecorded | Statement] = []
        self._numbers = numbers
        self._blocks = [RecordedBlock("function", 0)]
        self._loads_in_flight = False
        self._scalars = Scalars()

    # ---- called by the tracer

    @property
    def line(self) -> int:
        """The line of the user's source file that Warp is generating."""
        return int(self.adjoint.lineno or 0) + int(self.adjoint.fun_lineno)

    def resolve_call(self, function: Any, operands: Sequence[Any]) -> None:
        """Sets function and operands of the innermost call."""
        call = self._call()
        if call is None or call.function is not None:
            return
        call.function, call.operands = function, tuple(flatten(operands))
        # stored now, because Warp turns the constant operand of a 64-bit constructor into its result
        call.constants = {id(value): value.constant for value in call.operands if hasattr(value, "constant")}

    def resolve_product(self, site: int, scalars: tuple[Any, Any], tiles: tuple[Any, ...], result: Any) -> None:
        """Marks the innermost call as a product.

        Args:
            site: Number of its site.
            scalars: alpha and beta.
            tiles: A and B, and C if the product adds to it.
            result: The new tile, if the product returns one, else None.
        """
        call = self._call()
        if call is not None:
            call.site, call.operands, call.result = (site, *scalars), tiles, result

    def _call(self) -> Call | None:
        return self.frames[-1] if self.frames and isinstance(self.frames[-1], Call) else None

    def emit_statement(self, text: str, replay: str | None, emit: Emit, skip_replay: bool) -> None:
        """Emits a statement with its hooks.

        Args:
            text: The statement.
            replay: The statement that the reverse pass repeats in its place, or None for the same.
            emit: Warp's own ``add_forward``.
            skip_replay: True if the reverse pass does not repeat it.
        """
        frame = self.frames[-1] if self.frames else Unrecorded()
        if isinstance(frame, Statement):
            self._bare_statement(frame, emit)
        if not isinstance(frame, Call) or frame.function is None:
            emit(text, replay, skip_replay)
            return
        name = _name_of(frame.function)
        effect = self._effect(frame)
        if effect is not Effect.NONE:
            frame.wait = self.mark_wait(emit, frame.wait)
            if effect is not Effect.ALIAS and name != LOAD and frame.function.is_builtin():
                self._loads_in_flight = False
        if self._is_hooked(frame, name):
            frame.hook, frame.statement = next(self._numbers), replay or text
            if not frame.function.skip_replay:  # else Warp writes it into the reverse pass as a comment
                replay = Hook.REPLAY.around(frame.hook, replay or text)
            text = Hook.AT.around(frame.hook, text)
            if name != TRANSPOSE:  # a view, which may be made while its tile is loaded
                self._loads_in_flight = name == LOAD
        emit(text, replay, skip_replay)

    def adjoint_statement(self, statement: str) -> str:
        """A statement of the reverse pass inside its hook, if it is the adjoint of one that has a hook.

        Args:
            statement: The statement.
        """
        call = self._call()
        if call is None or call.function is None or call.hook is None or call.reverses:
            return statement
        is_deterministic = getattr(getattr(self.adjoint, "deterministic", None), "enabled", False)
        if _name_of(call.function) not in _REVERSED or is_deterministic:  # which has arguments of its own
            return statement
        call.reverses = True
        hooked = Hook.ADJOINT.around(call.hook, statement)
        if _name_of(call.function) in ELEMENTWISE:
            hooked = f"{Hook.RECOMPUTE.around(call.hook, call.statement)} {hooked}"
        return hooked

    def reversed_loop(self) -> AbstractContextManager[None]:
        """Puts hooks into the reverse pass of the innermost loop, while Warp ends the loop in the block."""
        return hooked_reverse_loop(self.adjoint, self._blocks[-1])

    def _is_hooked(self, call: Call, name: str) -> bool:
        """True if a call gets a hook around its statement."""
        if name in INPLACE:  # a vector and an element of a tile have these operators too
            return all(map(is_tile, call.operands))
        if name in OPERATORS:
            return any(map(is_tile, call.operands))
        return name in (LOAD, STORE, ASTYPE, MAP, ZEROS, TRANSPOSE) or (name == MATMUL and call.site is not None)

    def _bare_statement(self, frame: Statement, emit: Emit) -> None:
        jump = _LOOP_JUMPS.get(frame.node)
        if frame.recorded or (jump is None and issubclass(frame.node, _ARITHMETIC_NODES)):
            return
        frame.recorded = True
        wait = self.mark_wait(emit)
        effect = Effect.UNKNOWN if jump is None else Effect.NONE
        self._add(RecordedOperation(jump or frame.node.__name__.lower(), self.line, effect, wait=wait))

    def end_call(self, call: Call, output: Any) -> None:
        """Records a call that Warp has generated.

        Args:
            call: The call.
            output: Its result, as Warp's value.
        """
        if call.function is None:
            return
        results = tuple(flatten([output if call.result is None else call.result]))
        name = _name_of(call.function)
        self._scalars.follow(call, results)
        callee = None if call.function.is_builtin() else call.function
        effect = self._effect(call, results)
        self._add(
            RecordedOperation(
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
                call.reverses,
            )
        )

    def record_grad_call(self, operands: Sequence[Any], output: Any, wait: int | None) -> None:
        """Records a call of ``wp.grad()``."""
        self._add(
            RecordedOperation(
                "grad", self.line, Effect.UNKNOWN, tuple(flatten(operands)), tuple(flatten([output])), wait=wait
            )
        )

    def record_shape(self, array: Any, shape: Any) -> None:
        """Records ``array.shape``."""
        if is_array(array) and hasattr(shape, "emit"):
            self._add(RecordedOperation(SHAPE, self.line, Effect.NONE, (array,), (shape,)))

    def record_return(self, values: Any, emit: Emit) -> None:
        """Records a return statement before Warp emits it."""
        wait = self.mark_wait(emit)
        self._add(RecordedOperation("return", self.line, Effect.LEAVES, tuple(flatten([values])), wait=wait))

    def begin_loop(self, kind: Literal["range", "while", "unrolled"], emit: Emit) -> None:
        """Begins a loop, and emits the hook before it."""
        block = RecordedBlock(kind, self.line, next(self._numbers), wait=self.mark_wait(emit))
        if kind != "unrolled":  # the block always waits before other loops
            self._loads_in_flight = False
        emit(Hook.BEGIN.name_of(block.hook), None, True)
        self._open(block)

    def set_loop_variable(self, variable: Any, constant: Any) -> None:
        """Sets the variable of the innermost loop.

        Args:
            variable: Warp's value.
            constant: Warp's constant range; None for another one.
        """
        block = self._blocks[-1]
        block.variable = variable.emit()
        start, stop, step = (getattr(constant, name, None) for name in ("start", "stop", "step"))
        if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
            block.steps = start, stop, step

    def end_body(self, emit: Emit) -> None:
        """Ends the body of the innermost loop or branch."""
        self._blocks[-1].end_wait = self.mark_wait(emit)
        self._loads_in_flight = False

    def end_loop(self, emit: Emit) -> None:
        """Ends the innermost loop, and emits the hook after it."""
        block = self._blocks.pop()
        emit(Hook.END.name_of(block.hook), None, True)

    def begin_branch(self, emit: Emit) -> None:
        """Begins the body of an ``if`` or ``else``."""
        self._open(RecordedBlock("branch", self.line, wait=self.mark_wait(emit)))
        self._loads_in_flight = False

    def end_branch(self) -> None:
        """Ends the innermost branch."""
        self._blocks.pop()

    def mark_wait(self, emit: Emit, known: int | None = None) -> int | None:
        """Emits a hook at which the block may wait for loads in flight.

        Args:
            emit: Emits the hook.
            known: Number of the hook, if it was emitted before.

        Returns:
            The number of the hook; None if no load can be in flight.
        """
        if known is not None or not self._loads_in_flight:
            return known
        number = next(self._numbers)
        emit(Hook.WAIT.name_of(number), Hook.REPLAY_WAIT.name_of(number), False)
        return number

    def end_function(self) -> None:
        """Ends the function."""
        if self._loads_in_flight:
            number = self._blocks[0].end_wait = next(self._numbers)
            self._loads_in_flight = False
            block = self.adjoint.blocks[0]
            block.body_forward.append(Hook.WAIT.name_of(number))
            block.body_replay.append(Hook.REPLAY_WAIT.name_of(number))

    # ---- nodes

    def _open(self, block: RecordedBlock) -> None:
        self._blocks[-1].nodes.append(block)
        self._blocks.append(block)

    def _add(self, operation: RecordedOperation) -> None:
        self._blocks[-1].nodes.append(operation)

    def _effect(self, call: Call, results: tuple[Any, ...] = ()) -> Effect:
        values = (*call.operands, *results)
        if not call.function.is_builtin():
            return Effect.UNKNOWN  # the trace of the function replaces it later
        return effect_of_builtin(
            str(call.function.key),
            tiles=str(call.function.key).startswith("tile_") or any(map(is_tile, values)),
            arrays=any(map(is_array, call.operands)),
            references=any(map(is_reference, call.operands)),
        )

    # ---- the finished trace

    def trace(self, label_of: Callable[[Any], str | None], effect_of: Callable[[Any], Effect]) -> FunctionTrace:
        """Builds the trace. Warp must have generated the whole module, because storage is settled only then.

        Args:
            label_of: Returns the label of a traced function, by its Adjoint.
            effect_of: Returns the effect of a function, by Warp's function.
        """
        label = label_of(self.adjoint) or ""
        parameters = tuple(argument.emit() for argument in self.adjoint.args)
        root = self._blocks[0]
        nodes = TraceBuilder(self.adjoint, self._scalars, label_of, effect_of).nodes(root.nodes)
        frame = tuple(frame_of(self.adjoint))
        return FunctionTrace(label, str(self.adjoint.filename), nodes, parameters, root.end_wait, frame)

    def effect(self, effect_of: Callable[[Any], Effect]) -> Effect:
        """Returns the effect of a call of the function.

        Args:
            effect_of: Returns the effect of a called function, by Warp's function.
        """
        found: list[Effect] = []
        pending: list[RecordedOperation | RecordedBlock] = list(self._blocks[0].nodes)
        while pending:
            node = pending.pop()
            if isinstance(node, RecordedBlock):
                pending += node.nodes
            elif node.effect is not Effect.LEAVES:
                found.append(node.effect if node.callee is None else effect_of(node.callee))
        return effect_of_function(found)


@contextmanager
def hooked_reverse_loop(adjoint: Any, block: RecordedBlock) -> Iterator[None]:
    """Puts hooks before and after the reversed loop that Warp generates in the block.

    Each iteration of a reversed loop sets the gradients of its tiles to zeros. There are hooks for those of loaded
    tiles, if the adjoints of the loads have hooks.

    Args:
        adjoint: Warp's Adjoint.
        block: The loop.
    """
    *_, outer, _, body = adjoint.blocks  # around the loop, of its condition, of its body
    makers = {
        id(tile): operation
        for operation in block.nodes
        if isinstance(operation, RecordedOperation) and operation.reverses and operation.name == LOAD
        for tile in operation.results
        if is_tile(tile) and tile.type.owner
    }
    hooked = [variable for variable in body.vars if id(variable) in makers]
    body.vars[:] = [variable for variable in body.vars if id(variable) not in makers]  # Warp sets these to zeros
    zeros = []
    for variable in hooked:
        maker = makers[id(variable)]
        assert maker.hook is not None
        maker.zeroes = True
        zeros.append(Hook.ZERO.around(maker.hook, f"{variable.emit_adj()}.grad_zero();"))
    body.body_replay[:0] = zeros
    block.reverses = True
    outer.body_reverse.append(Hook.REVERSE_END.name_of(block.hook))  # Warp writes the list backwards
    yield
    outer.body_reverse.append(Hook.REVERSE_BEGIN.name_of(block.hook))
    outer.vars.extend(hooked)


class ModuleRecorder:
    """Records one module.

    Attributes:
        recorders: The recorder of each function, by identity of its Adjoint.
        reversed: Identities of the Adjoints whose reverse pass was generated.
    """

    def __init__(self) -> None:
        self.recorders: dict[int, Recorder] = {}
        self.reversed: set[int] = set()
        self._numbers: Iterator[int] = itertools.count()
        self._effects: dict[int, Effect] = {}

    def begin(self, adjoint: Any) -> Recorder:
        """Returns a new recorder of a function. It replaces an earlier one."""
        recorder = self.recorders[id(adjoint)] = Recorder(adjoint, self._numbers)
        return recorder

    def trace(
        self,
        label_of: Callable[[Any], str],
        kernels_of: Callable[[Any], tuple[str, ...]],
        kernel_keys: Mapping[int, str],
    ) -> ModuleTrace:
        """Returns the trace of the module.

        Args:
            label_of: Returns the label of a function, by its Adjoint.
            kernels_of: Returns the keys of the kernels that reach a function, by its Adjoint.
            kernel_keys: Keys of the module's kernels, by identity of their Adjoints.
        """
        functions: dict[str, FunctionTrace] = {}
        kernels: dict[str, tuple[str, ...]] = {}
        for recorder in self.recorders.values():
            found = recorder.trace(label_of, self._effect_of)
            functions[found.label] = found
            kernels[found.label] = kernels_of(recorder.adjoint)
        reverse = frozenset(label_of(r.adjoint) for i, r in self.recorders.items() if i in self.reversed)
        own = {label_of(r.adjoint): kernel_keys[i] for i, r in self.recorders.items() if i in kernel_keys}
        return ModuleTrace(functions, reverse, kernels, own)

    def _effect_of(self, function: Any) -> Effect:
        identity = id(function.adj)
        recorder = self.recorders.get(identity)
        if recorder is None or function.native_snippet is not None:
            return Effect.UNKNOWN
        if identity not in self._effects:
            self._effects[identity] = recorder.effect(self._effect_of)
        return self._effects[identity]
