"""The configuration with which the templates in ``kernels/solver`` compute a solver variant."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from warp_tiles.gemm.hardware import LANES
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

    @classmethod
    def from_json(cls, data: Any) -> SolverConfig:
        """The configuration in JSON of :meth:`to_json`.

        Raises:
            ValueError: A field is missing, unknown or has an invalid value.
        """
        if not isinstance(data, dict) or set(data) != {"lanes"}:
            raise ValueError(f"not a solver configuration, which has the field lanes: {data!r}")
        lanes = data["lanes"]
        if type(lanes) is not int or lanes not in (1, 2, 4, 8, 16, 32):
            raise ValueError(f"not a solver configuration, lanes is not a power of two of at most {LANES}: {data!r}")
        return cls(lanes)

    def describe(self) -> str:
        """A short text for tables; empty for one lane per column."""
        return f"{self.lanes} lanes per column" if self.lanes > 1 else ""


Config = TileConfig | SolverConfig
"""The configuration of any device function."""
