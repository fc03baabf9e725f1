"""The device functions of a module: each planned variant beside its build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.solver.variant import SolverConfig

Json = Mapping[str, Any]

SKIPPED = "skipped"
SCALAR = "scalar path"
BUILT = "built"
CACHED = "from cache"
SHARED = "shared"
TO_BUILD = "to build"
IN_CACHE = "in the cache"
NOT_BUILT = "not built"
BY_WARP = "built by Warp"
_CHOICES = {"tuned": "chosen from a tuning record", "default": "chosen by default"}


@dataclass(frozen=True)
class Function:
    """One planned variant and its build.

    Attributes:
        variant: An entry of a module's ``variants``.
        build: The entry of its ``builds`` for the same variant; None if nothing was built or looked up.
        is_plan: True if the module is part of a plan, False if it is part of the record of a run.
    """

    variant: Json
    build: Json | None
    is_plan: bool

    @property
    def size(self) -> str:
        """Its sizes, e.g. ``64x64x32``, or the name of its call if it has none."""
        return size_text(self.variant)

    @property
    def dtypes(self) -> str:
        """Its element types, e.g. ``float16 x float16 -> float32 (tf32)``; empty if it has none."""
        variant = self.variant
        if variant.get("solver"):
            return str(variant.get("dtype") or "")
        if not variant.get("a_dtype"):
            return ""
        tf32 = " (tf32)" if variant.get("precision") == "tf32" else ""
        return f"{variant['a_dtype']} x {variant['b_dtype']} -> {variant['c_dtype']}{tf32}"

    @property
    def provider(self) -> str:
        """The provider that built it, or that will."""
        return str((self.build or self.variant).get("provider") or "")

    @property
    def state(self) -> str:
        """What was done, or what will be done, in one or two words."""
        if not self.variant.get("needed"):
            return SKIPPED
        if self.provider in ("", "scalar"):
            return SCALAR
        if self.build is not None:
            if not self.build.get("hit"):
                return BUILT
            return SHARED if self.build.get("shared") else CACHED
        if not self.is_plan:
            return NOT_BUILT
        if not self.variant.get("key"):
            return BY_WARP
        return IN_CACHE if self.variant.get("cached") else TO_BUILD

    @property
    def tile(self) -> str:
        """Its tile configuration in words; empty without one."""
        return tile_text((self.build or self.variant).get("tile_config"))

    @property
    def choice(self) -> str:
        """What decided about provider and tile configuration, in words; empty if there was no choice."""
        return _CHOICES.get(str(self.variant.get("choice") or ""), "")

    @property
    def fallback(self) -> str:
        """How the build differs from the plan; empty if it is as planned."""
        build = self.build
        if build is None:
            return ""
        if build.get("provider") != self.variant.get("provider"):
            return f"planned with {self.variant.get('provider') or 'no provider'}, built with {build.get('provider')}"
        if build.get("tile_config") != self.variant.get("tile_config"):
            return f"planned with the tile {tile_text(self.variant.get('tile_config')) or 'of the provider'}"
        return ""


def functions(module: Json) -> list[Function]:
    """Every planned variant of a module, needed or not, in the order of the plan."""
    builds = [build for build in module.get("builds") or () if isinstance(build.get("variant"), Mapping)]
    return [
        Function(variant, _build_of(variant, builds), "builds" not in module)
        for variant in module.get("variants") or ()
    ]


def _build_of(variant: Json, builds: Sequence[Json]) -> Json | None:
    if not variant.get("needed"):
        return None
    for build in builds:
        if all(variant.get(name) == value for name, value in build["variant"].items()):
            return build
    return None


def size_text(variant: Json) -> str:
    """The sizes of a variant, e.g. ``64x64x32`` or ``cholesky 32x32``; the name of its call if it has none."""
    if variant.get("solver"):
        columns = f", {variant.get('columns')} columns" if "solve" in str(variant["solver"]) else ""
        return f"{variant['solver']} {variant.get('n')}x{variant.get('n')}{columns}"
    if variant.get("m") is None:
        return str(variant.get("call") or "")
    return f"{variant['m']}x{variant.get('n')}x{variant.get('k')}"


def tile_text(config: Json | None) -> str:
    """A tile configuration in words; empty without one."""
    if not config:
        return ""
    try:
        found = TileConfig.from_json(dict(config)) if "instruction" in config else SolverConfig.from_json(dict(config))
    except (TypeError, ValueError, KeyError):  # a record of another version
        return ", ".join(f"{name}={value}" for name, value in config.items())
    return found.describe()
