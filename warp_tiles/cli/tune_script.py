"""Tune the kernels that a script launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warp_tiles._warp import require_hooks
from warp_tiles.api import enable
from warp_tiles.build.engine import Engine
from warp_tiles.launch.script import Script, discover
from warp_tiles.settings import Settings, current
from warp_tiles.tuning.in_place import (
    PlacedLaunch,
    Progress,
    TunedPlace,
    Tuner,
    local_tuner,
    places_of,
    silent,
)
from warp_tiles.tuning.key import sharing_gpus
from warp_tiles.util.threads import side_by_side


def tune_script(
    script: Script,
    *,
    budget_s: float = 0.0,
    devices: Sequence[str] = (),
    tuners: Callable[[Engine, Settings], Sequence[Tuner]] | None = None,
    progress: Progress = silent,
    stopped: Callable[[str], None] = lambda reason: None,
) -> list[TunedPlace]:
    """Tune each loop and function of a script's kernels that has no complete record, on this machine's GPUs.

    The script runs as in ``warp-tiles plan``: its launches are recorded, not executed. Then its kernels are launched
    with copies of the arguments, in which arrays that kernels would have written are zeros, and zeros of inputs random
    numbers. After an interruption, the next call continues with the stored measurements.

    Args:
        script: A script, and its command line.
        budget_s: Seconds for all of them, 0 for no limit. Each has an equal share of the remaining time.
        devices: Warp's names of the GPUs that measure. The first one is tuned for; GPUs of another kind are skipped.
            Empty for Warp's default GPU and all others of its kind.
        tuners: Creates tuners, one for each kind of GPU; None for one of these devices.
        progress: Called with the record of a place after each batch.
        stopped: Called with the reason before the first batch, if the script stopped early.

    Returns:
        The loops and functions in the order in which the script needs them, for each tuner.

    Raises:
        ScriptError: The script is missing, or has no kernels.
        ToolchainError: There is no GPU, no GPU with a given name, or no compiler, or the last GPU was lost.
    """
    script.require()
    enable()
    engine, now = require_hooks("tune_script()").engine, current()
    if tuners is None:
        working: Sequence[Tuner] = [local_tuner(engine, now, sharing_gpus(devices))]
    else:
        working = tuners(engine, now)
    found = discover(script)
    if found.stopped:
        stopped(found.stopped)
    wanted = [(tuner, places_of(engine, found.launches, tuner.arch)) for tuner in working]
    tuned = _tune_all(wanted, budget_s, progress)
    if any(item.measured for item in tuned):
        engine.records_changed()
        from warp_tiles._warp.modules import hash_all_again

        hash_all_again()
    return tuned


def _tune_all(
    wanted: Sequence[tuple[Tuner, Sequence[PlacedLaunch]]], budget_s: float, progress: Progress
) -> list[TunedPlace]:
    """Tune for each kind of GPU, for all of them at the same time."""
    if len(wanted) == 1:  # in this thread, which may show a progress bar
        ((tuner, places),) = wanted
        return tuner.tune_all(places, budget_s, progress)
    found = side_by_side(lambda item: item[0].tune_all(item[1], budget_s, progress), wanted, len(wanted))
    return [tuned for each in found for tuned in each]
