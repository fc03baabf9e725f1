"""A progress bar for long builds, by default only on a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from warp_tiles.settings import current
from warp_tiles.util.threads import unless_signalled

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SHOW_AFTER_SECONDS = 0.3  # a cache hit ends long before, so that no bar flashes


def is_enabled(choice: str | None = None) -> bool:
    """True if a value of the setting ``progress`` enables the bar: by default the current one, on a terminal."""
    choice = choice or current().progress
    return choice == "on" or (choice == "auto" and sys.stderr is not None and sys.stderr.isatty())


def new_bar(title: str, *, transient: bool = False) -> Progress:
    """Returns a bar on standard error: title, done, total, elapsed, and the description of its task."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(title, markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(
        *columns, TextColumn("{task.description}", markup=False), console=Console(stderr=True), transient=transient
    )


class BuildProgress:
    """Counts the functions and modules that are built, and draws them: done, total, elapsed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._done = 0
        self._total = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._timer: threading.Timer | None = None
        self._modules: dict[str, bool] = {}  # of this batch, True for those that are done
        self._awaited: list[str] = []

    @contextlib.contextmanager
    def counted(self, what: str, choice: str = "auto") -> Iterator[None]:
        """Count one build as long as the block runs. The setting ``progress`` of the first running one decides."""
        with self._lock:
            if not self._running:
                self._done = self._total = 0
                if is_enabled(choice):
                    self._timer = threading.Timer(_SHOW_AFTER_SECONDS, self._show)
                    self._timer.daemon = True
                    try:
                        self._timer.start()
                    except unless_signalled(RuntimeError):  # the interpreter ends, or the process has too many threads
                        pass
            self._running += 1
            self._total += 1
            self._draw(what)
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._done += 1
                self._draw(what)
                if not self._running:
                    self._modules.clear()
                    if self._timer is not None:
                        self._timer.cancel()
                        self._timer = None
                    if self._bar is not None:
                        self._bar.stop()
                        self._bar = self._task = None

    @contextlib.contextmanager
    def module(
        self, name: str, arch: int | None, block_dim: int, choice: str, *, awaited: bool = True
    ) -> Iterator[None]:
        """Count a module once in a batch, from its code generation or build to its file; name it if it is awaited."""
        title = f"module {name}, sm_{arch}, {block_dim} threads"
        with self._lock:
            counts = title not in self._modules
            self._modules.setdefault(title, False)
            if awaited:
                self._awaited.append(title)
            self._draw(title)
        with self.counted(title, choice) if counts else contextlib.nullcontext():
            try:
                yield
            finally:
                with self._lock:
                    if awaited:
                        self._awaited.remove(title)
                    if counts:
                        self._modules[title] = True

    def _show(self) -> None:
        with self._lock:
            if not self._running or self._bar is not None:
                return
            self._bar = new_bar("functions and modules", transient=True)
            self._task = self._bar.add_task("", total=self._total, completed=self._done)
            self._draw(self._awaited[-1] if self._awaited else "")
            self._bar.start()

    def _draw(self, what: str) -> None:
        if self._bar is not None and self._task is not None:
            awaited = self._awaited[-1] if self._awaited else ""
            if len(self._modules) > 1:
                what = f"{sum(self._modules.values())} of {len(self._modules)} modules"
                what += f", waiting for {awaited}" if awaited else ""
            self._bar.update(self._task, total=self._total, completed=self._done, description=what)
