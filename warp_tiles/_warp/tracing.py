"""Follows Warp's code generator: records each kernel and function, and puts hooks into the generated source."""

from __future__ import annotations

import ast
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from warp_tiles._warp.internals import find, missing_part
from warp_tiles._warp.trace_builder import Call, Emit, Statement, Unrecorded
from warp_tiles.codegen.effects import SHAPE

if TYPE_CHECKING:
    from warp_tiles._warp.recorder import ModuleRecorder, Recorder

log = logging.getLogger("warp_tiles")

# required members of warp._src, each with its required parameters; those of codegen.Adjoint are wrapped
SEAMS = {
    "codegen.Adjoint.add_call": "func args kwargs",
    "codegen.Adjoint.resolve_call": "func args kwargs",
    "codegen.Adjoint.add_forward": "statement replay skip_replay",
    "codegen.Adjoint.add_reverse": "statement",
    "codegen.Adjoint.add_grad_call": "func args kwargs",
    "codegen.Adjoint.add_comp": "",
    "codegen.Adjoint.add_return": "var",
    "codegen.Adjoint.begin_for": "iter",
    "codegen.Adjoint.end_for": "iter",
    "codegen.Adjoint.begin_while": "cond",
    "codegen.Adjoint.end_while": "",
    "codegen.Adjoint.begin_if": "cond",
    "codegen.Adjoint.end_if": "cond",
    "codegen.Adjoint.begin_else": "cond",
    "codegen.Adjoint.end_else": "cond",
    "codegen.Adjoint.eval": "node",
    "codegen.Adjoint.get_unroll_range": "loop",
    "codegen.Adjoint.set_lineno": "lineno",
    "types.is_array": "",
    "types.is_reference": "",
}


def _unrecorded_hook(
    before: Callable[[Recorder, Emit], None] | None = None, after: Callable[[Recorder, Emit], None] | None = None
) -> Callable[..., Any]:
    """Returns a hook that calls Warp's method between two steps of the recorder. Its statements are not recorded."""

    def hook(self: Tracer, original: Any, adj: Any, *args: Any, **named: Any) -> Any:
        recorder = self.recorder(adj)
        if recorder is None:
            return original(adj, *args, **named)
        if before is not None:
            before(recorder, self._emit_unrecorded(adj))
        with self._unrecorded(recorder):
            result = original(adj, *args, **named)
        if after is not None:
            after(recorder, self._emit_unrecorded(adj))
        return result

    return hook


class Tracer:
    """Wraps the methods of Warp's code generator. Each thread records the function that it generates.

    Attributes:
        rejection: Names the part of Warp that the tracer lacks; empty if it has all.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self.rejection = ""

    def install(self, wrap: Callable[[Any, str, Callable[..., Any]], None]) -> None:
        """Install the hooks, unless this Warp lacks a part that they need.

        Args:
            wrap: Replaces a method of a class, given by name, by ``hook(original, *args, **kwargs)``.
        """
        if (missing := missing_part(SEAMS)) is not None:
            self.rejection = missing.message
            log.warning("loops of products are left as Warp generates them: %s", self.rejection)
            return
        adjoint = find("codegen.Adjoint")
        for name in (path.rpartition(".")[2] for path in SEAMS if path.startswith("codegen.Adjoint.")):
            wrap(adjoint, name, getattr(self, f"_{name}"))

    @contextmanager
    def function(self, adjoint: Any, module: ModuleRecorder | None) -> Iterator[None]:
        """Records the function that Warp generates in the block.

        Args:
            adjoint: Warp's Adjoint of the function.
            module: The recorder of its module; None if the module is not recorded.
        """
        stack = self._local.__dict__.setdefault("stack", [])
        recorder = module.begin(adjoint) if module is not None else None
        stack.append((adjoint, recorder))
        try:
            yield
            if recorder is not None:
                recorder.end_function()
        finally:
            stack.pop()

    @property
    def adjoint(self) -> Any:
        """Warp's Adjoint of the function that this thread generates, or None."""
        stack = self._local.__dict__.get("stack")
        return stack[-1][0] if stack else None

    def recorder(self, adjoint: Any = None) -> Recorder | None:
        """The recorder of the function that this thread generates.

        Args:
            adjoint: The expected function, or None for any.

        Returns:
            None if this thread generates another function, or one that is not recorded.
        """
        stack = self._local.__dict__.get("stack")
        if not stack or (adjoint is not None and stack[-1][0] is not adjoint):
            return None
        found: Recorder | None = stack[-1][1]
        return found

    # ---- wrapped methods: each gets Warp's own method, the Adjoint and the arguments

    def _add_call(self, original: Any, adj: Any, func: Any, args: Any, kwargs: Any, *rest: Any, **named: Any) -> Any:
        recorder = self.recorder(adj)
        if recorder is None:
            return original(adj, func, args, kwargs, *rest, **named)
        call = Call()
        recorder.frames.append(call)
        try:
            output = original(adj, func, args, kwargs, *rest, **named)
        finally:
            recorder.frames.pop()
        recorder.end_call(call, output[0] if named.get("return_resolved") else output)
        return output

    def _resolve_call(self, original: Any, adj: Any, *args: Any, **named: Any) -> Any:
        found = original(adj, *args, **named)
        recorder = self.recorder(adj)
        if recorder is not None:
            function, bound = found[:2]
            recorder.resolve_call(function, tuple(bound.values()))
        return found

    def _add_forward(
        self, original: Any, adj: Any, statement: str, replay: str | None = None, skip_replay: bool = False
    ) -> None:
        recorder = self.recorder(adj)
        if recorder is None:
            original(adj, statement, replay, skip_replay)
        else:
            recorder.emit_statement(statement, replay, partial(original, adj), skip_replay)

    def _add_reverse(self, original: Any, adj: Any, statement: str) -> None:
        recorder = self.recorder(adj)
        original(adj, statement if recorder is None else recorder.adjoint_statement(statement))

    def _add_grad_call(
        self, original: Any, adj: Any, func: Any, args: Any, kwargs: Any, *rest: Any, **named: Any
    ) -> Any:
        recorder = self.recorder(adj)
        if recorder is None:
            return original(adj, func, args, kwargs, *rest, **named)
        wait = recorder.mark_wait(self._emit_unrecorded(adj))
        with self._unrecorded(recorder):
            output = original(adj, func, args, kwargs, *rest, **named)
        recorder.record_grad_call((*args, *kwargs.values()), output, wait)
        return output

    def _add_return(self, original: Any, adj: Any, var: Any) -> Any:
        recorder = self.recorder(adj)
        if recorder is None:
            return original(adj, var)
        recorder.record_return(var, self._emit_unrecorded(adj))
        with self._unrecorded(recorder):
            return original(adj, var)

    def _begin_for(self, original: Any, adj: Any, *args: Any, **named: Any) -> Any:
        recorder = self.recorder(adj)
        if recorder is None:
            return original(adj, *args, **named)
        recorder.begin_loop("range", self._emit_unrecorded(adj))
        with self._unrecorded(recorder):
            variable = original(adj, *args, **named)
        constant = args[1] if len(args) > 1 else named.get("constant_range")
        recorder.set_loop_variable(variable, constant)
        return variable

    def _end_for(self, original: Any, adj: Any, *args: Any, **named: Any) -> Any:
        recorder = self.recorder(adj)
        if recorder is None:
            return original(adj, *args, **named)
        emit = self._emit_unrecorded(adj)
        recorder.end_body(emit)
        with recorder.reversed_loop(), self._unrecorded(recorder):
            result = original(adj, *args, **named)
        recorder.end_loop(emit)
        return result

    def _eval(self, original: Any, adj: Any, node: Any) -> Any:
        recorder = self.recorder(adj)
        if recorder is None:
            return original(adj, node)
        statement = Statement(type(node))
        recorder.frames.append(statement)
        try:
            found = original(adj, node)
        finally:
            recorder.frames.pop()
        if isinstance(node, ast.Attribute) and node.attr == SHAPE and isinstance(node.value, ast.Name):
            recorder.record_shape(adj.symbols.get(node.value.id), found)
        if statement.unrolled:
            recorder.end_loop(self._emit_unrecorded(adj))
        return found

    def _get_unroll_range(self, original: Any, adj: Any, *args: Any, **named: Any) -> Any:
        found = original(adj, *args, **named)
        recorder = self.recorder(adj)
        if recorder is not None and isinstance(found, range) and isinstance(recorder.frames[-1], Statement):
            recorder.frames[-1].unrolled = True
            recorder.begin_loop("unrolled", self._emit_unrecorded(adj))
        return found

    _add_comp = _unrecorded_hook()
    _set_lineno = _unrecorded_hook()
    _begin_while = _unrecorded_hook(lambda recorder, emit: recorder.begin_loop("while", emit))
    _begin_if = _begin_else = _unrecorded_hook(lambda recorder, emit: recorder.begin_branch(emit))
    _end_while = _unrecorded_hook(
        lambda recorder, emit: recorder.end_body(emit), lambda recorder, emit: recorder.end_loop(emit)
    )
    _end_if = _end_else = _unrecorded_hook(
        lambda recorder, emit: recorder.end_body(emit), lambda recorder, _: recorder.end_branch()
    )

    # ---- emitting

    def _emit_unrecorded(self, adj: Any) -> Emit:
        """Returns a function that emits a statement without recording it."""

        def emit(statement: str, replay: str | None, skip_replay: bool) -> None:
            recorder = self.recorder(adj)
            assert recorder is not None
            with self._unrecorded(recorder):
                adj.add_forward(statement, replay, skip_replay)

        return emit

    @contextmanager
    def _unrecorded(self, recorder: Recorder) -> Iterator[None]:
        recorder.frames.append(Unrecorded())
        try:
            yield
        finally:
            recorder.frames.pop()
