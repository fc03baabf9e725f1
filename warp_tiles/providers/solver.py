"""The provider of this project's own solver functions."""

from __future__ import annotations

from typing import ClassVar

from warp_tiles.errors import UnsupportedVariant
from warp_tiles.heuristics.solver import choose, reason_unsupported
from warp_tiles.providers.base import Recipe
from warp_tiles.providers.own import OwnProvider
from warp_tiles.providers.solver_source import SOURCE, solver_translation_unit
from warp_tiles.solver.config import SolverConfig
from warp_tiles.solver.variant import SolverVariant


class SolverProvider(OwnProvider[SolverVariant, SolverConfig]):
    """Builds solver variants from the templates in ``kernels/solver``.

    It belongs to the setting's value ``mma``: the project's own device code.

    Args:
        store: Finds the compiler and digests files.
    """

    schema = 1
    header = SOURCE
    serves: ClassVar[tuple[type, ...]] = (SolverVariant,)

    def text(self, variant: SolverVariant, config: SolverConfig | None) -> str:
        """See :class:`NvrtcProvider`."""
        return solver_translation_unit(variant, config or choose(variant))

    def resolved_config(self, variant: SolverVariant, config: SolverConfig | None) -> SolverConfig:
        """See :class:`NvrtcProvider`."""
        return config or choose(variant)

    def recipes(self, variant: SolverVariant) -> tuple[Recipe, ...]:
        """See :meth:`Provider.recipes`."""
        if reason := reason_unsupported(variant):
            raise UnsupportedVariant(f"{self.name} cannot serve {reason}")
        return (Recipe("the provider mma", variant, variant.symbol, choose(variant)),)
