"""Hooks: numbered macros in the generated source, and the definitions that the prelude gives them.

Warp generates the source before it is known which functions will be built. So each place that may need other code gets
a macro with a number. Nothing in the source has to be searched or changed afterwards.

    WT_WAIT_n             before a statement; may wait for loads in flight
    WT_AT_n(statement)    around a statement; may replace it
    WT_BEGIN_n, WT_END_n  before and after a loop

The reverse pass repeats statements, with ``WT_REPLAY_WAIT_n`` and ``WT_REPLAY_n`` in place of the first two. It has
hooks of its own, with the numbers of the statement and of the loop:

    WT_ADJOINT_n(statement)               around the adjoint of a statement; may replace it
    WT_RECOMPUTE_n(statement)             before the adjoint of an elementwise operation; may repeat the operation
    WT_ZERO_n(statement)                  where an iteration sets the gradient of the statement's tile to zeros
    WT_REVERSE_BEGIN_n, WT_REVERSE_END_n  before and after the reversed loop
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

STATEMENT = "__VA_ARGS__"  # in the macro of a hook: the statement inside the hook
SYNC, WAIT = "WP_TILE_SYNC();", "wt_module::wait_for_loads();"


class Hook(Enum):
    """Kinds of hooks. The value is the prefix of the macro's name."""

    WAIT = "WT_WAIT"
    REPLAY_WAIT = "WT_REPLAY_WAIT"
    AT = "WT_AT"
    REPLAY = "WT_REPLAY"
    BEGIN = "WT_BEGIN"
    END = "WT_END"
    ADJOINT = "WT_ADJOINT"
    RECOMPUTE = "WT_RECOMPUTE"
    ZERO = "WT_ZERO"
    REVERSE_BEGIN = "WT_REVERSE_BEGIN"
    REVERSE_END = "WT_REVERSE_END"

    def name_of(self, number: int) -> str:
        return f"{self.value}_{number}"

    def around(self, number: int, statement: str) -> str:
        return f"{self.name_of(number)}({statement})"

    @property
    def takes_statement(self) -> bool:
        return self in (Hook.AT, Hook.REPLAY, Hook.ADJOINT, Hook.RECOMPUTE, Hook.ZERO)


class Macros:
    """The macros of one module. By default a macro leaves the source as Warp wrote it."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._replaced: dict[str, str] = {}

    def add(self, hook: Hook, number: int, text: str) -> None:
        """Adds a statement at a hook before or after a statement or loop."""
        self._texts.setdefault(hook.name_of(number), []).append(text)

    def replace(self, hook: Hook, number: int, text: str) -> None:
        self._replaced[hook.name_of(number)] = text

    def definitions(self, hooks: Iterable[tuple[Hook, int]]) -> list[str]:
        """Returns the ``#define`` of every hook."""
        lines = []
        for hook, number in hooks:
            name = hook.name_of(number)
            if hook.takes_statement:
                default = "" if hook is Hook.RECOMPUTE else STATEMENT
                lines.append(f"#define {name}(...) {self._replaced.get(name, default)}")
            else:
                lines.append(f"#define {name} {' '.join(self._texts.get(name, ()))}".rstrip())
        return lines


def local_function(name: str, parameters: Iterable[str], body: str) -> str:
    """C++ of a function inside a block. Its parameters hide the tiles that they are named after."""
    return f"const auto {name} = [&]({', '.join(f'auto& {parameter}' for parameter in parameters)}) {{ {body} }};"
