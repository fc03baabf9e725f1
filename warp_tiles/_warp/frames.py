"""Frames of Warp's code generator: a call, a statement of another kind, or code that is not recorded."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# emits a statement; the arguments are those of Warp's add_forward(): statement, replay, skip_replay
Emit = Callable[[str, "str | None", bool], None]


@dataclass
class Call:
    """A call that Warp is generating.

    Attributes:
        function: Warp's function, once it is resolved.
        operands: Warp's values.
        site: The number of the site and the values of alpha and beta. The dispatcher of ``tile_matmul`` sets it.
        result: The result, if it is known before the call ends.
        wait: Number of the hook before the call, or None.
        hook: Number of the hook around the call, or None.
        constants: Values of constant operands, by identity of the operand.
        reverses: True if its adjoint has a hook.
        statement: The statement that the reverse pass repeats, or empty.
    """

    function: Any = None
    operands: tuple[Any, ...] = ()
    site: tuple[int, Any, Any] | None = None
    result: Any = None
    wait: int | None = None
    hook: int | None = None
    constants: dict[int, Any] = field(default_factory=dict)
    reverses: bool = False
    statement: str = ""


@dataclass
class Unrecorded:
    """Statements that are not recorded: comments, arithmetic, and the parts of a loop or branch."""


@dataclass
class Statement:
    """Statements that a syntax node emits without a call.

    Attributes:
        node: Type of the syntax node.
        recorded: True once an operation was recorded for the node.
        unrolled: True for a loop whose body Warp repeats for each iteration.
    """

    node: type[ast.AST]
    recorded: bool = False
    unrolled: bool = False
