"""Names of the places in the generated source where code may stand: macros, which the prelude defines.

While Warp generates code it is not known yet which functions will be built, and so what a loop can do. Each place that
may need other code gets a macro with a number; nothing in the source has to be found or changed afterwards.

    WT_WAIT_n;            before a statement: may wait for loads that are under way
    WT_AT_n(statement)    instead of a statement
    WT_BEGIN_n, WT_END_n  before and behind a loop

The reverse pass repeats statements. There ``WT_REPLAY_WAIT_n`` and ``WT_REPLAY_n`` stand in their place.
"""

from __future__ import annotations

from enum import Enum


class Hook(Enum):
    """Kinds of places; the value begins the macro's name."""

    WAIT = "WT_WAIT"
    REPLAY_WAIT = "WT_REPLAY_WAIT"
    AT = "WT_AT"
    REPLAY = "WT_REPLAY"
    BEGIN = "WT_BEGIN"
    END = "WT_END"

    def name_of(self, number: int) -> str:
        """Name of the macro."""
        return f"{self.value}_{number}"

    def around(self, number: int, statement: str) -> str:
        """A statement that the macro may replace."""
        return f"{self.name_of(number)}({statement})"

    @property
    def takes_statement(self) -> bool:
        """Whether the macro has the statement as its argument."""
        return self in (Hook.AT, Hook.REPLAY)
