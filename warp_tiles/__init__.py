"""warp_tiles plans, builds, caches and links the GEMMs of ``wp.tile_matmul``.

    import warp as wp
    import warp_tiles

    warp_tiles.enable()

Importing it changes nothing; :func:`enable` hooks into Warp and :func:`disable` restores it.
"""

from warp_tiles.api import disable, enable, enabled, is_enabled, plan, report
from warp_tiles.errors import (
    BuildError,
    BundleError,
    CacheError,
    LinkError,
    LockedError,
    PlanError,
    RecordError,
    ScriptError,
    SeamError,
    SettingError,
    ToolchainError,
    UnsupportedVariant,
    WarpTilesError,
    WorkerError,
)
from warp_tiles.planning import ModulePlan, PlannedVariant
from warp_tiles.settings import Settings, configure, override
from warp_tiles.variant import GemmVariant, Operand, Role
from warp_tiles.version import __version__

__all__ = [
    "BuildError",
    "BundleError",
    "CacheError",
    "GemmVariant",
    "LinkError",
    "LockedError",
    "ModulePlan",
    "Operand",
    "PlanError",
    "PlannedVariant",
    "RecordError",
    "Role",
    "ScriptError",
    "SeamError",
    "SettingError",
    "Settings",
    "ToolchainError",
    "UnsupportedVariant",
    "WarpTilesError",
    "WorkerError",
    "__version__",
    "configure",
    "disable",
    "enable",
    "enabled",
    "is_enabled",
    "override",
    "plan",
    "report",
]
