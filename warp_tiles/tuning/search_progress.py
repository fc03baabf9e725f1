"""The progress of a search and its best candidate so far, shown on a terminal only."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from warp_tiles.build import progress

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class SearchProgress:
    """A progress bar for one search. Thread-safe.

    Args:
        what: Name of the tuned function.
        total: Number of configurations.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._lock = threading.Lock()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._best: tuple[float, str] | None = None

    def __enter__(self) -> SearchProgress:
        # a terminal has one bar; searches beside each other, on a cluster, have none
        if progress.is_enabled() and threading.current_thread() is threading.main_thread():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn(f"tuning {self._what}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True))
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
                self._bar = self._task = None

    def built(self) -> None:
        """Count one more build, failed or not."""
        with self._lock:
            if self._bar is not None and self._task is not None:
                self._bar.advance(self._task)

    def measured(self, name: str, median_us: float) -> None:
        """Show the median of a candidate if it is the best so far."""
        if self._best is None or median_us < self._best[0]:
            self._best = (median_us, name)
            self.say(f"best {median_us:.1f} us {name}")

    def say(self, text: str) -> None:
        """Show a text."""
        with self._lock:
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, description=text)
