"""The configuration with which the templates in ``kernels/solver`` compute a solver variant."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from warp_tiles.gemm.tile_config import TileConfig


@dataclass(frozen=True)
class SolverConfig:
    """The division of work among the threads of a block.

    Attributes:
        lanes: Lanes that share one column of a triangular solve; 1 where the function solves nothing.
    """

    lanes: int = 1

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    def describe(self) -> str:
        """A short text for tables; empty for one lane per column."""
        return f"{self.lanes} lanes per column" if self.lanes > 1 else ""


Config = TileConfig | SolverConfig
"""The configuration of any device function."""
