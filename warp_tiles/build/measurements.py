"""The interface to measurements of GEMM variants, as the engine uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.providers.base import Tuned
from warp_tiles.settings import Settings

if TYPE_CHECKING:
    from warp_tiles.toolchain.store import ToolchainStore


class Measurements(Protocol):
    """Measurements of GEMM variants, and a way to add some."""

    def snapshot(self, now: Settings, store: ToolchainStore) -> Tuned | None:
        """The measurements that are valid under some settings; None if there are none."""

    def forget(self) -> None:
        """Read the records again at the next use."""

    def tune_missing(self, engine: Any, variants: Sequence[GemmProblem], now: Settings) -> None:
        """Measure the variants without a record, if this machine has a GPU of their architecture.

        Args:
            engine: The :class:`warp_tiles.build.engine.Engine`, whose module imports this one.
            variants: The variants.
            now: The settings.
        """
