"""Tune the GEMM variants that a script's kernels need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from warp_tiles import api
from warp_tiles.build.engine import Engine
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.launch.script import discover, require_script
from warp_tiles.settings import Settings, current
from warp_tiles.tuning.environment import sharing_gpus
from warp_tiles.tuning.gemm import Progress, TunedVariant, Tuner, default_tuner, present_device, silent
from warp_tiles.tuning.record import Record
from warp_tiles.util.threads import side_by_side


def tune_script(
    script: Path,
    arguments: tuple[str, ...] = (),
    *,
    budget_s: float = 0.0,
    block_dim: int | None = None,
    devices: Sequence[str] = (),
    tuners: Callable[[Engine, Settings], Sequence[Tuner]] | None = None,
    progress: Progress = silent,
    stopped: Callable[[str], None] = lambda reason: None,
) -> list[TunedVariant]:
    """Tune every variant that a script's kernels need and that has no complete record, on this machine's GPUs.

    The script runs as in ``warp-tiles plan``: its launches are recorded, not executed. After an interruption, the
    next call continues with the stored measurements.

    Args:
        script: A Python file.
        arguments: Its command line.
        budget_s: Seconds for all variants, 0 for no limit. Each variant has an equal share of the remaining time.
        block_dim: Block size, in place of those that the script launches with.
        devices: Warp's names of the GPUs that measure. The first one is tuned for; GPUs of another kind are skipped.
            Empty for Warp's default GPU and all others of its kind.
        tuners: Creates tuners, one for each kind of GPU, which work at the same time; None for one of these devices.
        progress: Called with the record of a variant after each batch, by one thread at a time.
        stopped: Called before the first batch with the reason, if the script ended early.

    Returns:
        The variants in the order in which the script needs them, for each tuner.

    Raises:
        ScriptError: The script is missing, or has no kernels.
        ToolchainError: There is no GPU, no GPU with a given name, or no compiler.
    """
    require_script(script)
    api.enable()
    engine, now = api.engine(), current()
    if tuners is None:
        working: Sequence[Tuner] = [default_tuner(engine, now, sharing_gpus(present_device(), devices))]
    else:
        working = tuners(engine, now)
    found = discover(script, arguments, block_dim)
    if found.stopped:
        stopped(found.stopped)
    variants: dict[int, list[GemmProblem]] = {tuner.arch: [] for tuner in working}
    for arch, wanted in variants.items():
        for target in found.targets:
            plan = api.plan(target.module, arch=arch, block_dim=target.block_dim)
            wanted += [v.variant for v in plan.needed if isinstance(v.variant, GemmProblem)]
    tuned = _tune_all(working, variants, budget_s, progress)
    if any(item.measured for item in tuned):
        engine.records_changed()
        from warp_tiles._warp.modules import rehash_modules

        rehash_modules()
    return tuned


def _tune_all(
    tuners: Sequence[Tuner], variants: dict[int, list[GemmProblem]], budget_s: float, progress: Progress
) -> list[TunedVariant]:
    if len(tuners) == 1:
        return tuners[0].tune_all(variants[tuners[0].arch], budget_s, progress)
    lock = threading.Lock()

    def one_at_a_time(variant: GemmProblem, record: Record, device: str) -> None:
        with lock:
            progress(variant, record, device)

    found = side_by_side(
        lambda tuner: tuner.tune_all(variants[tuner.arch], budget_s, one_at_a_time), tuners, len(tuners)
    )
    return [tuned for each in found for tuned in each]
