"""The times of the steps of a module's build."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warp_tiles.compile.compiler import Compiled

LOOK_UP = "look_up_module"  # the linked module, in the own cache
FETCH = "fetch_module"  # the linked module, from the remote store or the bundle
WRITE = "write_module"  # the file of a linked module that was found
COMPILE = "compile"  # the module's own source, in a compiler process
WAIT = "wait_for_functions"  # until the last function is built
LINK = "link"  # in a compiler process
WARP_LINK = "link_by_warp"

_ZERO = time.perf_counter()  # of the clock of all records


def now_s() -> float:
    """Seconds since this module was imported, which :func:`warp_tiles.enable` does."""
    return time.perf_counter() - _ZERO


@dataclass(frozen=True)
class Phase:
    """One step of a module's build.

    Attributes:
        name: ``look_up_module``, ``fetch_module``, ``write_module``, ``compile``, ``wait_for_functions``, ``link`` or
            ``link_by_warp``.
        started_at_s: Its start, in seconds of :func:`warp_tiles.build.phases.now_s`.
        seconds: Its time. Steps of compiler processes count without the wait for a free process.
    """

    name: str
    started_at_s: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, rounded to 0.1 ms."""
        return {
            "name": self.name,
            "started_at_s": round(self.started_at_s, 4),
            "seconds": round(self.seconds, 4),
        }


class Phases:
    """Collects the steps of one module's build. Threads may add steps at the same time."""

    def __init__(self) -> None:
        self._found: list[Phase] = []

    @property
    def found(self) -> tuple[Phase, ...]:
        """The steps so far, sorted by start."""
        return tuple(sorted(self._found, key=lambda phase: (phase.started_at_s, phase.name)))

    @contextlib.contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Add the block as a step, also if it raises."""
        started = now_s()
        try:
            yield
        finally:
            self.add(name, started)

    def add(self, name: str, started_at_s: float) -> None:
        """Add a step that ends now."""
        self._found.append(Phase(name, started_at_s, now_s() - started_at_s))

    def of_process(self, name: str, work: Future[Compiled]) -> Future[Compiled]:
        """Add the work of a compiler process as a step, unless it fails.

        Args:
            name: Name of the step.
            work: The request. Its result says how long the compiler or linker took.

        Returns:
            A future of the same result. The step is added before it is done, so a reader of the result sees the step.
        """
        followed: Future[Compiled] = Future()

        def ended(done: Future[Compiled]) -> None:
            end = now_s()
            error = CancelledError() if done.cancelled() else done.exception()
            if error is not None:
                followed.set_exception(error)
                return
            compiled = done.result()
            self._found.append(Phase(name, end - compiled.seconds, compiled.seconds))
            followed.set_result(compiled)

        work.add_done_callback(ended)
        return followed
