"""This project's own solver functions: the source, the options and the cache key of a solver variant."""

from __future__ import annotations

from typing import Any, ClassVar

from warp_tiles.errors import UnsupportedVariant
from warp_tiles.heuristics.solver import choose, obstacle
from warp_tiles.providers.base import Recipe
from warp_tiles.providers.nvrtc import NvrtcProvider
from warp_tiles.providers.solver_source import SOURCE, solver_translation_unit
from warp_tiles.solver.config import SolverConfig
from warp_tiles.solver.variant import SolverVariant
from warp_tiles.toolchain import sources
from warp_tiles.toolchain.sources import DeviceSource

SOURCE_SCHEMA = 1


class SolverProvider(NvrtcProvider[SolverVariant, SolverConfig]):
    """Builds solver variants from the templates in ``kernels/solver``, which need no headers but their own.

    It belongs to the setting's value ``mma``: the project's own device code.

    Args:
        store: Finds the compiler and digests files.
    """

    name = "mma"
    serves: ClassVar[tuple[type, ...]] = (SolverVariant,)

    @property
    def schema(self) -> int:
        """See :class:`NvrtcProvider`."""
        return SOURCE_SCHEMA

    def source(self) -> DeviceSource:
        """See :class:`NvrtcProvider`."""
        kernels = sources.kernels_folder()
        return DeviceSource(kernels / SOURCE, kernels, (kernels,))

    def text(self, variant: SolverVariant, config: SolverConfig | None) -> str:
        """See :class:`NvrtcProvider`."""
        return solver_translation_unit(variant, config or choose(variant))

    def options(self, variant: SolverVariant) -> dict[str, Any]:
        """See :class:`NvrtcProvider`."""
        return {"arch": f"sm_{variant.arch}", "std": "c++17"}

    def resolved_config(self, variant: SolverVariant, config: SolverConfig | None) -> SolverConfig:
        """See :class:`NvrtcProvider`."""
        return config or choose(variant)

    def recipes(self, variant: SolverVariant) -> tuple[Recipe, ...]:
        """See :meth:`Provider.recipes`."""
        if reason := obstacle(variant):
            raise UnsupportedVariant(f"{self.name} cannot serve {reason}")
        return (Recipe("the provider mma", variant, variant.symbol, choose(variant)),)

    def details(self, config: SolverConfig | None) -> dict[str, object]:
        """See :class:`NvrtcProvider`."""
        return {"tile_config": config.to_json() if config else None}
