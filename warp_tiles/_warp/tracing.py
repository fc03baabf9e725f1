"""Follows Warp's code generator: records each kernel and function, and puts hooks into the generated source."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from warp_tiles._warp.internals import find, require
from warp_tiles.errors import UnsupportedWarpError

if TYPE_CHECKING:
    from warp_tiles._warp.generation import BuilderState
    from warp_tiles._warp.recorder import Recorder

log = logging.getLogger("warp_tiles")

# required members of warp._src, each with its required parameters; those of codegen.Adjoint are wrapped
REQUIRED = {
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


class _Generating(threading.local):
    """The functions that a thread generates, the innermost last: Warp's Adjoint, and the recorder if it is recorded."""

    def __init__(self) -> None:
        self.stack: list[tuple[Any, Recorder | None]] = [(None, None)]


class Tracer:
    """Wraps the methods of Warp's code generator. Each thread records the function that it generates.

    Attributes:
        rejection: Names the part of Warp that the tracer lacks; empty if it has all.
    """

    def __init__(self) -> None:
        self._generating = _Generating()
        self.rejection = ""

    def install(self, wrap: Callable[[Any, str, Callable[..., Any]], None]) -> None:
        """Install the hooks, unless this Warp lacks a part that they need."""
        try:
            require(REQUIRED)
        except UnsupportedWarpError as error:
            self.rejection = error.message
            log.warning("loops of products are left as Warp generates them: %s", self.rejection)
            return
        adjoint = find("codegen.Adjoint")
        for name in (path.rpartition(".")[2] for path in REQUIRED if path.startswith("codegen.Adjoint.")):
            wrap(adjoint, name, partial(self._hook, name))

    def _hook(self, name: str, original: Any, adjoint: Any, *args: Any, **named: Any) -> Any:
        recorder = self.recorder(adjoint)
        if recorder is None:
            return original(adjoint, *args, **named)
        return getattr(recorder, name)(partial(original, adjoint), *args, **named)

    @contextmanager
    def function(self, adjoint: Any, module: BuilderState | None) -> Iterator[None]:
        """Records the function that Warp generates in the block."""
        recorder = module.begin(adjoint) if module is not None else None
        self._generating.stack.append((adjoint, recorder))
        try:
            yield
            if recorder is not None:
                recorder.end_function()
        finally:
            self._generating.stack.pop()

    @property
    def adjoint(self) -> Any:
        """Warp's Adjoint of the function that this thread generates, or None."""
        return self._generating.stack[-1][0]

    def recorder(self, adjoint: Any = None) -> Recorder | None:
        """The recorder of the function that this thread generates; None if it has none, or is not the given one."""
        current, recorder = self._generating.stack[-1]
        return recorder if adjoint is None or adjoint is current else None
