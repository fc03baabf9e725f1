"""What Warp's code generator is in the middle of: a call, a statement of another kind, or nothing of interest."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Emit = Callable[[str, "str | None", bool], None]  # statement, what the reverse pass repeats, whether it leaves it out


@dataclass
class Call:
    """A call that is being generated.

    Attributes:
        function: Warp's function, once it is resolved.
        operands: Warp's values.
        site: Number of the site and values of alpha and beta, set by the dispatcher of ``tile_matmul``.
        result: What the call gives, if it is known before the call ends.
    """

    function: Any = None
    operands: tuple[Any, ...] = ()
    site: tuple[int, Any, Any] | None = None
    result: Any = None
    wait: int | None = None
    hook: int | None = None
    constants: dict[int, Any] = field(default_factory=dict)


@dataclass
class Quiet:
    """Statements that need no record: comments, arithmetic, and the parts of a loop or branch."""


@dataclass
class Statement:
    """Statements that a syntax node emits without a call."""

    node: type[ast.AST]
    recorded: bool = False
    unrolled: bool = False  # a loop whose body Warp writes out once for each iteration
