"""Tune the GEMM variants that a script's kernels need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from warp_tiles import _warp, api
from warp_tiles.build.engine import Engine
from warp_tiles.gemm.variant import GemmVariant
from warp_tiles.launch.script import discover, require_script
from warp_tiles.settings import Settings, current
from warp_tiles.tuning.environment import sharing_gpus
from warp_tiles.tuning.gemm import Progress, TunedVariant, Tuner, default_tuner, present_device, silent


def tune_script(
    script: Path,
    arguments: tuple[str, ...] = (),
    *,
    budget_s: float = 0.0,
    block_dim: int | None = None,
    devices: Sequence[str] = (),
    tuner: Callable[[Engine, Settings], Tuner] | None = None,
    progress: Progress = silent,
    stopped: Callable[[str], None] = lambda reason: None,
) -> list[TunedVariant]:
    """Tune every variant that a script's kernels need on this machine's GPUs and that has no complete record.

    The script runs as ``warp-tiles plan`` runs it: its launches are recorded, not executed. Measurements made before an
    interruption are kept, and the next call continues from there.

    Args:
        script: A Python file.
        arguments: Its command line.
        budget_s: Seconds for all variants, 0 for no limit; each has an equal share of what is left.
        block_dim: Use this block size instead of those that the script launches with.
        devices: Warp's names of the GPUs that measure; the first one is tuned for, and those unlike it are left out.
            Empty for the GPU that Warp takes by default and all that are like it.
        tuner: Makes what measures and remembers; None for these devices.
        progress: Called with what is known of a variant after each batch.
        stopped: Called before the first batch with why the script ended early, if it did.

    Returns:
        The variants in the order in which the script needs them.

    Raises:
        ScriptError: The script is missing, or has no kernels.
        ToolchainError: There is no GPU or none of a name, or no compiler.
    """
    require_script(script)
    api.enable()
    engine, now = api.engine(), current()
    if tuner is None:
        found_tuner = default_tuner(engine, now, sharing_gpus(present_device(), devices))
    else:
        found_tuner = tuner(engine, now)
    variants: list[GemmVariant] = []
    found = discover(script, arguments, block_dim)
    if found.stopped:
        stopped(found.stopped)
    for target in found.targets:
        plan = api.plan(target.module, arch=found_tuner.arch, block_dim=target.block_dim)
        variants += [v.variant for v in plan.needed if v.variant is not None]
    tuned = found_tuner.tune_all(variants, budget_s, progress)
    if any(item.measured for item in tuned):
        engine.records_changed()
        _warp.rehash_modules()
    return tuned
