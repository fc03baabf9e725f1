"""Traces the functions of a module while Warp generates their code, and puts hooks into the generated source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

from warp_tiles._warp.trace_builder import (
    Scalars,
    Statement,
    TraceBuilder,
    TracedBlock,
    TracedOperation,
    changed_operands,
    flatten,
    frame_of,
    is_array,
    is_reference,
    is_tile,
    name_of,
)
from warp_tiles.codegen.macros import Hook
from warp_tiles.codegen.operations import (
    ASSIGN,
    CONDITION,
    COPY,
    ELEMENTWISE,
    LOAD,
    MATMUL,
    REDUCE,
    SHAPE,
    STORE,
    SUM,
    TILE_ASSIGN,
    TRANSPOSE,
    ZEROS,
    Effect,
    effect_of_builtin,
    effect_of_function,
)
from warp_tiles.codegen.trace import FunctionTrace

# these nodes compute numbers, or are traced as loops and branches; all other nodes have unknown effects
_ARITHMETIC_NODES = (
    *(ast.FunctionDef, ast.For, ast.While, ast.If, ast.IfExp),
    *(ast.Attribute, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.BinOp, ast.Name, ast.Subscript),
)
# the adjoints of these have hooks, if the statements have
_REVERSED = (ASSIGN, LOAD, MATMUL, STORE, TRANSPOSE)
# loads may be in flight during these: a view of a tile, and a copy that may turn out to be unread
_WAITLESS = (ASSIGN, TRANSPOSE)
_LOOP_JUMPS: dict[type[ast.AST], str] = {ast.Break: "break", ast.Continue: "continue"}


class Tracer:
    """Traces the operations, loops and branches of one function.

    The hooks call the method of the same name in place of one of Warp's Adjoint. They pass Warp's own method, bound
    to the Adjoint, and its arguments.

    Args:
        numbers: Yields the number of each new hook of the module.
    """

    def __init__(self, adjoint: Any, numbers: Iterator[int]) -> None:
        self.adjoint = adjoint
        # what Warp is generating, the innermost last; None: comments, arithmetic, and the parts of a loop or branch
        self._frames: list[TracedOperation | Statement | None] = [None]
        self._numbers = numbers
        self._blocks = [TracedBlock("function", 0)]
        self._loads_in_flight = False
        self._scalars = Scalars()
        code = getattr(inspect.unwrap(adjoint.func), "__code__", None)
        # Warp leaves 0 for the instances of generic kernels and functions
        self._first_line = int(adjoint.fun_lineno or getattr(code, "co_firstlineno", 0))

    @property
    def line(self) -> int:
        """The line of the user's source file that Warp is generating."""
        return int(self.adjoint.lineno or 0) + self._first_line

    # ---- methods of Warp's Adjoint

    def add_call(self, original: Any, func: Any, args: Any, kwargs: Any, *rest: Any, **named: Any) -> Any:
        call = TracedOperation()
        output = self._within(call, original, func, args, kwargs, *rest, **named)
        if call.function is not None:
            if not call.results:
                call.results = tuple(flatten([output[0] if named.get("return_resolved") else output]))
            self._scalars.follow(call)
            call.name, call.line, call.effect = name_of(call.function), self.line, self._effect(call)
            self._add(call)
        return output

    def resolve_call(self, original: Any, *args: Any, **named: Any) -> Any:
        resolved = original(*args, **named)
        call = self._call()
        if call is not None and call.function is None:
            function, bound = resolved[:2]
            call.function, call.operands = function, tuple(flatten(bound.values()))
            call.changed = changed_operands(function, bound)
            # stored now, because Warp turns the constant operand of a 64-bit constructor into its result
            call.constants = {id(value): value.constant for value in call.operands if hasattr(value, "constant")}
        return resolved

    def add_forward(self, original: Any, statement: str, replay: str | None = None, skip_replay: bool = False) -> None:
        frame = self._frames[-1]
        if isinstance(frame, Statement):
            self._bare_statement(frame)
        if not isinstance(frame, TracedOperation) or frame.function is None:
            original(statement, replay, skip_replay)
            return
        name = name_of(frame.function)
        effect, is_hooked = self._effect(frame), self._is_hooked(frame, name)
        if effect is not Effect.NONE:
            frame.wait = self._mark_wait() if frame.wait is None else frame.wait
            is_waitless = name == LOAD or (name == ASSIGN and is_hooked)
            if effect is not Effect.ALIAS and not is_waitless and frame.function.is_builtin():
                self._loads_in_flight = False
        if is_hooked:
            frame.hook, frame.statement = next(self._numbers), replay or statement
            if not frame.function.skip_replay:  # else Warp writes it into the reverse pass as a comment
                replay = Hook.REPLAY.around(frame.hook, replay or statement)
            statement = Hook.AT.around(frame.hook, statement)
            if name not in _WAITLESS:
                self._loads_in_flight = name == LOAD
        original(statement, replay, skip_replay)

    def add_reverse(self, original: Any, statement: str) -> None:
        original(self._hooked_adjoint(statement))

    def add_grad_call(self, original: Any, func: Any, args: Any, kwargs: Any, *rest: Any, **named: Any) -> Any:
        wait = self._mark_wait()
        output = self._unrecorded(original, func, args, kwargs, *rest, **named)
        operands = tuple(flatten((*args, *kwargs.values())))
        self._add(TracedOperation("grad", self.line, Effect.UNKNOWN, operands, tuple(flatten([output])), wait=wait))
        return output

    def add_return(self, original: Any, var: Any) -> Any:
        wait = self._mark_wait()
        self._add(TracedOperation("return", self.line, Effect.LEAVES, tuple(flatten([var])), wait=wait))
        return self._unrecorded(original, var)

    def begin_for(self, original: Any, *args: Any, **named: Any) -> Any:
        self._begin_loop("range")
        variable = self._unrecorded(original, *args, **named)
        block = self._blocks[-1]
        block.variable, block.iterator = variable.emit(), args[0].emit() if args else ""
        constant = args[1] if len(args) > 1 else named.get("constant_range")
        start, stop, step = (getattr(constant, name, None) for name in ("start", "stop", "step"))
        if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
            block.steps = start, stop, step
        return variable

    def begin_while(self, original: Any, cond: Any) -> Any:
        self._begin_loop("while")
        result = self._unrecorded(original, cond)
        block = self._blocks[-1]
        made = block.nodes[-1] if block.nodes else None
        if isinstance(made, TracedOperation) and made.results:
            block.condition = made.results[-1]
        elif isinstance(cond, ast.Name):
            block.condition = self.adjoint.symbols.get(cond.id)
        return result

    def _end(self, original: Any, *args: Any, **named: Any) -> Any:
        block = self._blocks[-1]
        block.end_wait = self._mark_wait()
        self._loads_in_flight = block.in_flight
        with self._hooked_reverse_loop() if block.kind == "range" else nullcontext():
            result = self._unrecorded(original, *args, **named)
        if block.kind == "branch":
            self._blocks.pop()
        else:
            self._end_loop()
        return result

    end_for = end_while = end_if = end_else = _end

    def begin_if(self, original: Any, cond: Any) -> Any:
        self._open(TracedBlock("branch", self.line, wait=self._mark_wait(), condition=cond))
        self._loads_in_flight = False
        return self._unrecorded(original, cond)

    begin_else = begin_if

    def eval(self, original: Any, node: Any) -> Any:
        statement, block = Statement(type(node)), self._blocks[-1]
        earlier = len(block.nodes)
        variable = self._within(statement, original, node)
        if isinstance(node, ast.BoolOp) and hasattr(variable, "emit"):
            parts = (part for part in block.nodes[earlier:] if isinstance(part, TracedOperation))
            operands = tuple(value for part in parts for value in part.results)
            self._add(TracedOperation(CONDITION, self.line, Effect.NONE, operands, (variable,)))
        if isinstance(node, ast.Attribute) and node.attr == SHAPE and isinstance(node.value, ast.Name):
            array = self.adjoint.symbols.get(node.value.id)
            if is_array(array) and hasattr(variable, "emit"):
                self._add(TracedOperation(SHAPE, self.line, Effect.NONE, (array,), (variable,)))
        if statement.unrolled:
            self._end_loop()
        return variable

    def get_unroll_range(self, original: Any, *args: Any, **named: Any) -> Any:
        unrolled = original(*args, **named)
        if isinstance(unrolled, range) and isinstance(statement := self._frames[-1], Statement):
            statement.unrolled = True
            self._begin_loop("unrolled")
        return unrolled

    def _unrecorded(self, original: Any, *args: Any, **named: Any) -> Any:
        return self._within(None, original, *args, **named)

    set_lineno = _unrecorded

    def add_comp(self, original: Any, op_strings: Any, left: Any, comps: Any) -> Any:
        output = self._unrecorded(original, op_strings, left, comps)
        operands = (left, *comps)
        self._add(TracedOperation(CONDITION, self.line, Effect.NONE, operands, (output,)))
        return output

    # ---- calls and statements

    def resolve_product(self, site: int, scalars: tuple[Any, Any], tiles: tuple[Any, ...], result: Any) -> None:
        """Marks the innermost call as a product with alpha and beta of A and B, and of C if it adds to it.

        ``result`` is the new tile, if the product returns one.
        """
        if (call := self._call()) is not None:
            call.site, call.operands, call.results = (site, *scalars), tiles, tuple(flatten([result]))

    def resolve_solver(self, site: int) -> None:
        """Marks the innermost call as that of a solver, by the number of its site."""
        if (call := self._call()) is not None:
            call.solver = site

    def end_function(self) -> None:
        if self._loads_in_flight:
            number = self._blocks[0].end_wait = next(self._numbers)
            self._loads_in_flight = False
            block = self.adjoint.blocks[0]
            block.body_forward.append(Hook.WAIT.name_of(number))
            block.body_replay.append(Hook.REPLAY_WAIT.name_of(number))

    def _within(self, frame: TracedOperation | Statement | None, original: Any, /, *args: Any, **named: Any) -> Any:
        """Calls a method of Warp, as what Warp is generating now."""
        self._frames.append(frame)
        try:
            return original(*args, **named)
        finally:
            self._frames.pop()

    def _call(self) -> TracedOperation | None:
        frame = self._frames[-1]
        return frame if isinstance(frame, TracedOperation) else None

    def _emit(self, statement: str, replay: str | None = None, skip_replay: bool = False) -> None:
        self._unrecorded(self.adjoint.add_forward, statement, replay, skip_replay)

    def _hooked_adjoint(self, statement: str) -> str:
        """A statement of the reverse pass inside its hook, if it is the adjoint of one that has a hook."""
        call = self._call()
        if call is None or call.function is None or call.hook is None or call.reverses:
            return statement
        name = name_of(call.function)
        builtin = ELEMENTWISE.get(name)
        is_deterministic = getattr(getattr(self.adjoint, "deterministic", None), "enabled", False)
        is_reversed = name in _REVERSED if builtin is None else builtin.adjoint
        if not is_reversed or is_deterministic:  # which has arguments of its own
            return statement
        call.reverses = True
        hooked = Hook.ADJOINT.around(call.hook, statement)
        if builtin is not None:
            hooked = f"{Hook.RECOMPUTE.around(call.hook, call.statement)} {hooked}"
        return hooked

    def _is_hooked(self, call: TracedOperation, name: str) -> bool:
        builtin = ELEMENTWISE.get(name)
        if builtin is not None and not builtin.on_elements:
            return False
        if name == ASSIGN or (builtin is not None and builtin.updates is not None):
            return all(map(is_tile, call.operands))  # vectors, and elements of tiles, have these too
        if name == COPY or builtin is not None:
            return any(map(is_tile, call.operands))
        if name in (REDUCE, SUM):
            return not is_tile(call.operands[-1])  # along an axis
        return name in (LOAD, STORE, ZEROS, TRANSPOSE, TILE_ASSIGN) or (name == MATMUL and call.site is not None)

    def _bare_statement(self, frame: Statement) -> None:
        jump = _LOOP_JUMPS.get(frame.node)
        if frame.traced or (jump is None and issubclass(frame.node, _ARITHMETIC_NODES)):
            return
        frame.traced = True
        wait = self._mark_wait()
        effect = Effect.UNKNOWN if jump is None else Effect.NONE
        self._add(TracedOperation(jump or frame.node.__name__.lower(), self.line, effect, wait=wait))

    def _mark_wait(self) -> int | None:
        """Emits a hook at which the block may wait for loads in flight. Returns its number; None if there are none."""
        if not self._loads_in_flight:
            return None
        number = next(self._numbers)
        self._emit(Hook.WAIT.name_of(number), Hook.REPLAY_WAIT.name_of(number))
        return number

    def _add(self, operation: TracedOperation) -> None:
        self._blocks[-1].nodes.append(operation)

    def _effect(self, call: TracedOperation) -> Effect:
        if not call.function.is_builtin():
            return Effect.UNKNOWN  # the trace of the function replaces it later
        return effect_of_builtin(
            str(call.function.key),
            tiles=str(call.function.key).startswith("tile_") or any(map(is_tile, (*call.operands, *call.results))),
            arrays=any(map(is_array, call.operands)),
            references=any(map(is_reference, call.operands)),
        )

    # ---- loops and branches

    def _open(self, block: TracedBlock) -> None:
        self._blocks[-1].nodes.append(block)
        self._blocks.append(block)

    def _begin_loop(self, kind: Literal["range", "while", "unrolled"]) -> None:
        block = TracedBlock(kind, self.line, next(self._numbers), wait=self._mark_wait())
        if kind != "unrolled":  # a loop that does not begin with a load waits before it, and not inside
            block.in_flight, self._loads_in_flight = self._loads_in_flight, False
        self._emit(Hook.BEGIN.name_of(block.hook), skip_replay=True)
        self._open(block)

    def _end_loop(self) -> None:
        self._emit(Hook.END.name_of(self._blocks.pop().hook), skip_replay=True)

    @contextmanager
    def _hooked_reverse_loop(self) -> Iterator[None]:
        """Puts hooks before and after the reversed loop that Warp generates in the block.

        Each iteration sets the gradients of its tiles to zeros. There are hooks for those of loaded tiles, if the
        adjoints of the loads have hooks.
        """
        block = self._blocks[-1]
        *_, outer, _, body = self.adjoint.blocks  # around the loop, of its condition, of its body
        makers = {
            id(tile): operation
            for operation in block.nodes
            if isinstance(operation, TracedOperation) and operation.reverses and operation.name == LOAD
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

    # ---- the finished trace

    def trace(self, label_of: Callable[[Any], str], effect_of: Callable[[Any], Effect]) -> FunctionTrace:
        """Builds the trace. Warp must have generated the whole module, because storage is settled only then."""
        label = label_of(self.adjoint)
        parameters = tuple(argument.emit() for argument in self.adjoint.args)
        root = self._blocks[0]
        nodes = TraceBuilder(self.adjoint, self._scalars, label_of, effect_of).nodes(root.nodes)
        frame = tuple(frame_of(self.adjoint))
        return FunctionTrace(label, str(self.adjoint.filename), nodes, parameters, root.end_wait, frame)

    def effect(self, effect_of: Callable[[Any], Effect]) -> Effect:
        """Returns the effect of a call of the function; ``effect_of`` returns that of a function that it calls."""
        effects: list[Effect] = []
        pending: list[TracedOperation | TracedBlock] = list(self._blocks[0].nodes)
        while pending:
            node = pending.pop()
            if isinstance(node, TracedBlock):
                pending += node.nodes
            elif node.effect is not Effect.LEAVES:
                effects.append(node.effect if node.callee is None else effect_of(node.callee))
        return effect_of_function(effects)
