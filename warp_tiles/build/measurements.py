"""The interface to measured answers, as the engine uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from warp_tiles.providers.base import Tuned
from warp_tiles.settings import Settings

if TYPE_CHECKING:
    from warp_tiles.toolchain.store import ToolchainStore


class Measurements(Protocol):
    """Measured answers, and a way to add some."""

    def snapshot(self, now: Settings, store: ToolchainStore) -> Tuned | None:
        """The answers that are valid under some settings; None if there are none."""

    def forget(self) -> None:
        """Read the records again at the next use."""

    def tune_launch(self, engine: Any, now: Settings) -> None:
        """Tune the kernel that this thread is launching, if it launches one on a GPU.

        Args:
            engine: The :class:`warp_tiles.build.engine.Engine`, whose module imports this one.
            now: The settings.
        """
