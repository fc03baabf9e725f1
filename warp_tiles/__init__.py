"""warp_tiles plans, builds, caches and links the GEMMs of ``wp.tile_matmul``.

    import warp as wp
    import warp_tiles

    warp_tiles.enable()

Importing it changes nothing; :func:`enable` hooks into Warp and :func:`disable` restores it.
"""

import importlib
import typing

from warp_tiles.api import disable, enable, enabled, is_enabled, plan, report
from warp_tiles.errors import (
    BuildError,
    BundleError,
    CacheError,
    LinkError,
    LockedError,
    PlanError,
    RecordError,
    RecordingError,
    ScriptError,
    SeamError,
    SettingError,
    ToolchainError,
    TuningError,
    UnsupportedVariant,
    WarpTilesError,
    WorkerError,
)
from warp_tiles.planning import ModulePlan, PlannedVariant
from warp_tiles.recorded import RecordedLaunch, RecordingTarget, record
from warp_tiles.settings import Settings, configure, override
from warp_tiles.variant import GemmVariant, Operand, Role
from warp_tiles.version import __version__

if typing.TYPE_CHECKING:
    from warp_tiles.tuning.autotune import autotune
    from warp_tiles.tuning.kernel import TunedKernel
    from warp_tiles.tuning.measure import Effort
    from warp_tiles.tuning.space import Halving, Random, Space

__all__ = [
    "BuildError",
    "BundleError",
    "CacheError",
    "Effort",
    "GemmVariant",
    "Halving",
    "LinkError",
    "LockedError",
    "ModulePlan",
    "Operand",
    "PlanError",
    "PlannedVariant",
    "Random",
    "RecordError",
    "RecordedLaunch",
    "RecordingError",
    "RecordingTarget",
    "Role",
    "ScriptError",
    "SeamError",
    "SettingError",
    "Settings",
    "Space",
    "ToolchainError",
    "TunedKernel",
    "TuningError",
    "UnsupportedVariant",
    "WarpTilesError",
    "WorkerError",
    "__version__",
    "autotune",
    "configure",
    "disable",
    "enable",
    "enabled",
    "is_enabled",
    "override",
    "plan",
    "record",
    "report",
]

# imported when first used: the tuner is a third of the package, and enable() needs none of it
_TUNER = {
    "Effort": "measure",
    "Halving": "space",
    "Random": "space",
    "Space": "space",
    "TunedKernel": "kernel",
    "autotune": "autotune",
}


def __getattr__(name: str) -> object:
    if name not in _TUNER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(f"{__name__}.tuning.{_TUNER[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
