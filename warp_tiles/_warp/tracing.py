"""Follows Warp's code generator: what a kernel or function does is recorded, and hooks are left in its source."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from warp_tiles._warp.frames import Call, Emit, Quiet, Statement
from warp_tiles._warp.seams import find, missing_part

if TYPE_CHECKING:
    from warp_tiles._warp.module_recorder import ModuleRecorder
    from warp_tiles._warp.recorder import Recorder

log = logging.getLogger("warp_tiles")

# what is wrapped below codegen.Adjoint; where one is missing, loops are left as Warp generates them
SEAMS = {
    "codegen.Adjoint.add_call": "func args kwargs",
    "codegen.Adjoint.resolve_call": "func args kwargs",
    "codegen.Adjoint.add_forward": "statement replay skip_replay",
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


def _surrounded(
    before: Callable[[Recorder, Emit], None] | None = None, after: Callable[[Recorder, Emit], None] | None = None
) -> Callable[..., Any]:
    """Return a hook that calls Warp's method without recording it, between two steps of the recorder."""

    def hook(self: Tracer, original: Any, adj: Any, *args: Any, **named: Any) -> Any:
        recorder = self.recorder(adj)
        if recorder is None:
            return original(adj, *args, **named)
        if before is not None:
            before(recorder, self._plain(adj))
        with self._quiet(recorder):
            found = original(adj, *args, **named)
        if after is not None:
            after(recorder, self._plain(adj))
        return found

    return hook


class Tracer:
    """Wraps the methods of Warp's code generator. Each thread records the function that it generates.

    Attributes:
        obstacle: The part of Warp that is missing, without which no loop can be recorded; empty if there is none.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self.obstacle = ""

    def install(self, wrap: Callable[[Any, str, Callable[..., Any]], None]) -> None:
        """Install the hooks, unless this Warp lacks a part that they need.

        Args:
            wrap: Replaces a method of a class, given by name, by ``hook(original, self, ...)``.
        """
        if (missing := missing_part(SEAMS)) is not None:
            self.obstacle = missing.message
            log.warning("loops of products are left as Warp generates them: %s", self.obstacle)
            return
        adjoint = find("codegen.Adjoint")
        for name in (path.rpartition(".")[2] for path in SEAMS if path.startswith("codegen.Adjoint.")):
            wrap(adjoint, name, getattr(self, f"_{name}"))

    @contextmanager
    def function(self, adjoint: Any, module: ModuleRecorder | None) -> Iterator[None]:
        """Record what is generated of a function in the block; nothing if there is no module to record."""
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
        """The function that is being generated, as Warp's Adjoint, or None."""
        stack = self._local.__dict__.get("stack")
        return stack[-1][0] if stack else None

    def recorder(self, adjoint: Any = None) -> Recorder | None:
        """The recorder of the function that is being generated; None if it is another, or not recorded."""
        stack = self._local.__dict__.get("stack")
        if not stack or (adjoint is not None and stack[-1][0] is not adjoint):
            return None
        found: Recorder | None = stack[-1][1]
        return found

    # ---- wrapped methods: each is called with Warp's own, the Adjoint and the arguments

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
        recorder.call_ended(call, output[0] if named.get("return_resolved") else output)
        return output

    def _resolve_call(self, original: Any, adj: Any, *args: Any, **named: Any) -> Any:
        found = original(adj, *args, **named)
        recorder = self.recorder(adj)
        if recorder is not None:
            function, bound = found[:2]
            recorder.resolved(function, tuple(bound.values()))
        return found

    def _add_forward(
        self, original: Any, adj: Any, statement: str, replay: str | None = None, skip_replay: bool = False
    ) -> None:
        recorder = self.recorder(adj)
        if recorder is None:
            original(adj, statement, replay, skip_replay)
        else:
            recorder.statement(statement, replay, partial(original, adj), skip_replay)

    def _add_grad_call(
        self, original: Any, adj: Any, func: Any, args: Any, kwargs: Any, *rest: Any, **named: Any
    ) -> Any:
        recorder = self.recorder(adj)
        if recorder is None:
            return original(adj, func, args, kwargs, *rest, **named)
        wait = recorder.mark_wait(self._plain(adj))
        with self._quiet(recorder):
            output = original(adj, func, args, kwargs, *rest, **named)
        recorder.gradient_called((*args, *kwargs.values()), output, wait)
        return output

    def _add_return(self, original: Any, adj: Any, var: Any) -> Any:
        recorder = self.recorder(adj)
        if recorder is None:
            return original(adj, var)
        recorder.returns(var, self._plain(adj))
        with self._quiet(recorder):
            return original(adj, var)

    def _begin_for(self, original: Any, adj: Any, *args: Any, **named: Any) -> Any:
        recorder = self.recorder(adj)
        if recorder is None:
            return original(adj, *args, **named)
        recorder.begin_loop("range", self._plain(adj))
        with self._quiet(recorder):
            variable = original(adj, *args, **named)
        recorder.loop_variable(variable)
        return variable

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
        if statement.unrolled:
            recorder.end_loop(self._plain(adj))
        return found

    def _get_unroll_range(self, original: Any, adj: Any, *args: Any, **named: Any) -> Any:
        found = original(adj, *args, **named)
        recorder = self.recorder(adj)
        if recorder is not None and isinstance(found, range) and isinstance(recorder.frames[-1], Statement):
            recorder.frames[-1].unrolled = True
            recorder.begin_loop("unrolled", self._plain(adj))
        return found

    _add_comp = _surrounded()
    _set_lineno = _surrounded()
    _begin_while = _surrounded(lambda recorder, emit: recorder.begin_loop("while", emit))
    _begin_if = _begin_else = _surrounded(lambda recorder, emit: recorder.begin_branch(emit))
    _end_for = _end_while = _surrounded(
        lambda recorder, emit: recorder.end_body(emit), lambda recorder, emit: recorder.end_loop(emit)
    )
    _end_if = _end_else = _surrounded(
        lambda recorder, emit: recorder.end_body(emit), lambda recorder, _: recorder.end_branch()
    )

    # ---- emitting

    def _plain(self, adj: Any) -> Emit:
        """Emits statements of our own, with no look at them."""

        def emit(statement: str, replay: str | None, skip_replay: bool) -> None:
            recorder = self.recorder(adj)
            assert recorder is not None
            with self._quiet(recorder):
                adj.add_forward(statement, replay, skip_replay)

        return emit

    @contextmanager
    def _quiet(self, recorder: Recorder) -> Iterator[None]:
        recorder.frames.append(Quiet())
        try:
            yield
        finally:
            recorder.frames.pop()
