"""The providers of Warp's own implementations of a product: libmathdx, and the scalar path of its templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from warp_tiles.errors import UnsupportedVariant
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.providers.base import Built, Provider, ProviderContext, Recipe, refusal
from warp_tiles.providers.cublasdx import require_served
from warp_tiles.solver.variant import SolverVariant, Variant

Libmathdx = Callable[[GemmProblem], tuple[str, bytes]]
LIBMATHDX_TITLE, SCALAR_TITLE = "Warp's libmathdx", "Warp's scalar path"
IN_SOURCE_TITLE = "functions in the module's source"
# docs/measured.md has the times; the own templates take 30 ms and 30 KB
COSTS = {
    IN_SOURCE_TITLE: "which Warp compiles with the module, without a limit of registers",
    LIBMATHDX_TITLE: "which takes 5 to 18 s and 1 to 7 MB of LTO-IR for each function",
    SCALAR_TITLE: "which uses no tensor cores",
}


class LibmathdxProvider(Provider[GemmProblem]):
    """Lets Warp build a variant with libmathdx, if this Warp has that. The result is not cached here."""

    name = "libmathdx"

    def __init__(self, function: Libmathdx | None) -> None:
        self._function = function

    def recipes(self, variant: GemmProblem) -> tuple[Recipe, ...]:
        if self._function is None:
            raise UnsupportedVariant("libmathdx is not part of this Warp")
        require_served(self.name, variant)
        # Warp names the function when it builds it
        return (Recipe(LIBMATHDX_TITLE, variant, variant.symbol),)

    def build(self, recipe: Recipe, context: ProviderContext) -> Built:
        assert self._function is not None
        return Built(*self._function(cast(GemmProblem, recipe.variant)))


class ScalarProvider(Provider[Variant]):
    """Leaves a product to Warp's templates, which compute it without a device function."""

    name = "scalar"
    serves = (GemmProblem, SolverVariant)

    def recipes(self, variant: Variant) -> tuple[Recipe, ...]:
        if isinstance(variant, GemmProblem) and variant.c.dtype == "bfloat16":
            raise refusal(self.name, "c_dtype", variant.c.dtype, "Warp's scalar path would accumulate in bfloat16")
        return (Recipe(SCALAR_TITLE, variant, ""),)

    def build(self, recipe: Recipe, context: ProviderContext) -> Built:
        return Built("", b"")
