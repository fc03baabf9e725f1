"""The progress of a search and its best candidate so far, shown on a terminal only."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from warp_tiles.build.progress import is_enabled, new_bar

if TYPE_CHECKING:
    from rich.progress import Progress


class SearchProgress:
    """A progress bar for one search. Thread-safe, as rich's bars are.

    Args:
        what: Name of the tuned function.
        total: Number of configurations.
    """

    def __init__(self, what: str, total: int) -> None:
        self._best_us = math.inf
        self._bar: Progress | None = None
        # a terminal has one bar; searches beside each other, on a cluster, have none
        if is_enabled() and threading.current_thread() is threading.main_thread():
            self._bar = new_bar(f"tuning {what}")
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> SearchProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def built(self) -> None:
        """Count one more build, failed or not."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def measured(self, name: str, median_us: float) -> None:
        """Show the median of a candidate if it is the best so far."""
        if median_us < self._best_us:
            self._best_us = median_us
            self.say(f"best {median_us:.1f} us {name}")

    def say(self, text: str) -> None:
        """Show a text."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)
