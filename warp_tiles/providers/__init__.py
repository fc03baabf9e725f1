"""The providers of GEMM functions."""

from warp_tiles.providers.base import Built, Context, Provider, Recipe
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.providers.mma import MmaProvider
from warp_tiles.providers.nvrtc import NvrtcProvider
from warp_tiles.providers.solver import SolverProvider
from warp_tiles.providers.warps import LibmathdxProvider, ScalarProvider

__all__ = [
    "Built",
    "Context",
    "CublasdxProvider",
    "LibmathdxProvider",
    "MmaProvider",
    "NvrtcProvider",
    "Provider",
    "Recipe",
    "ScalarProvider",
    "SolverProvider",
]
