"""Who can build a GEMM variant, and how."""

from warp_tiles.providers.cublasdx import CublasdxProvider

__all__ = ["CublasdxProvider"]
