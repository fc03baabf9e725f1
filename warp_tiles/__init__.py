"""warp_tiles plans, builds, caches and links the functions of ``wp.tile_matmul`` and of Warp's tile solvers.

    import warp as wp
    import warp_tiles

    warp_tiles.enable()

The import changes nothing. :func:`enable` hooks into Warp, and :func:`disable` restores it. The
modules that plan, tune, record launches or multiply matrices are imported at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from warp_tiles.api import disable, enable, enabled, is_enabled, is_planning, plan, prefetch, report
from warp_tiles.errors import (
    BuildError,
    BundleError,
    CacheError,
    LinkError,
    LockedError,
    MatmulError,
    OutputError,
    PlanError,
    RecordError,
    RecordingError,
    RefusedWorkerError,
    RemoteError,
    ScriptError,
    SettingError,
    ToolchainError,
    TuningError,
    UnsupportedProblem,
    UnsupportedWarpError,
    WarpTilesError,
    WorkerError,
)
from warp_tiles.settings import Settings, configure, override
from warp_tiles.util.version import __version__

if TYPE_CHECKING:
    from warp_tiles.array_products.public import cholesky, matmul, solve
    from warp_tiles.gemm.problem import GemmProblem, Operand, Role
    from warp_tiles.plan.planning import ModulePlan, PlannedFunction, PlannedLoop
    from warp_tiles.recorded import RecordedLaunch, RecordingTarget, record
    from warp_tiles.tuning.factory import Random, Space
    from warp_tiles.tuning.kernel import TunedKernel, autotune
    from warp_tiles.tuning.measure import Effort

_LAZY = {
    "array_products.public": ("cholesky", "matmul", "solve"),
    "gemm.problem": ("GemmProblem", "Operand", "Role"),
    "recorded": ("RecordedLaunch", "RecordingTarget", "record"),
    "plan.planning": ("ModulePlan", "PlannedLoop", "PlannedFunction"),
    "tuning.factory": ("Random", "Space"),
    "tuning.kernel": ("TunedKernel", "autotune"),
    "tuning.measure": ("Effort",),
}
_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "BuildError",
    "BundleError",
    "CacheError",
    "Effort",
    "GemmProblem",
    "LinkError",
    "LockedError",
    "MatmulError",
    "ModulePlan",
    "Operand",
    "OutputError",
    "PlanError",
    "PlannedFunction",
    "PlannedLoop",
    "Random",
    "RecordError",
    "RecordedLaunch",
    "RecordingError",
    "RecordingTarget",
    "RefusedWorkerError",
    "RemoteError",
    "Role",
    "ScriptError",
    "SettingError",
    "Settings",
    "Space",
    "ToolchainError",
    "TunedKernel",
    "TuningError",
    "UnsupportedProblem",
    "UnsupportedWarpError",
    "WarpTilesError",
    "WorkerError",
    "__version__",
    "autotune",
    "cholesky",
    "configure",
    "disable",
    "enable",
    "enabled",
    "is_enabled",
    "is_planning",
    "matmul",
    "override",
    "plan",
    "prefetch",
    "record",
    "report",
    "solve",
]


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
