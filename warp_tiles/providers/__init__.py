"""The providers of device functions."""

from warp_tiles.providers.base import Built, Provider, ProviderContext, Recipe
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.providers.fallbacks import LibmathdxProvider, ScalarProvider
from warp_tiles.providers.mma import MmaProvider
from warp_tiles.providers.nvrtc import NvrtcProvider
from warp_tiles.providers.solver import SolverProvider

__all__ = [
    "Built",
    "CublasdxProvider",
    "LibmathdxProvider",
    "MmaProvider",
    "NvrtcProvider",
    "Provider",
    "ProviderContext",
    "Recipe",
    "ScalarProvider",
    "SolverProvider",
]
