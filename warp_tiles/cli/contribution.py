"""Measurements of a list of products and solves on one GPU, in a file that maintainers can ship.

The file is an export of tuning records (:meth:`warp_tiles.tuning.store.RecordStore.export`), with facts about the
machine.
"""

from __future__ import annotations

import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warp_tiles._warp import require_hooks
from warp_tiles._warp.intercept import NotedLaunch
from warp_tiles.array_products.measured_solves import SOLVE, SOLVES, solve_task
from warp_tiles.array_products.solve_choice import SolveProblem
from warp_tiles.compile.find import dotted
from warp_tiles.errors import RecordError, TuningError, shown, unless_signalled
from warp_tiles.settings import SETTINGS, Settings, override
from warp_tiles.tuning.corpus import PRODUCTS, Product
from warp_tiles.tuning.in_kernels import Progress, TunedTask, Tuner, tasks_of
from warp_tiles.tuning.record import decode_records
from warp_tiles.tuning.store import RecordStore, read_export
from warp_tiles.tuning.tasks import FUNCTION, LOOP, TuningTask

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine

MINUTES = 15.0
Listed = Product | SolveProblem
LISTED: tuple[Listed, ...] = (*SOLVES, *PRODUCTS)
SUBJECTS = (LOOP, FUNCTION, SOLVE)
Fact = str | int | float | None
# fields of nvidia-smi, by the names of the facts; clocks are in MHz, and the limit is in watts
_FIELDS = {
    "driver_version": "driver_version",
    "largest_clock_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.max.memory",
    "power_limit_w": "power.limit",
    "clock_mhz": "clocks.sm",
}
_NVIDIA_SMI_S = 10.0
_REMEDY = "give a file that `warp-tiles tune contribute` of this release wrote, and copy it unchanged"


def contributed_tasks(engine: Engine, launch: NotedLaunch, gpu: Any) -> list[TuningTask]:
    """The tasks of a product's launch on a GPU, with the configurations that are measured."""
    # a function of cuBLASDx takes seconds to build, which a contribution has no time for
    tasks = tasks_of(engine, [launch], gpu)
    return [
        replace(task, configs=tuple(config for config in task.configs if config.get("provider") != "cublasdx"))
        for task in tasks
    ]


def listed_tasks(engine: Engine, listed: Listed, gpus: Sequence[Any]) -> list[TuningTask]:
    """The tasks of an entry of the list, which are measured on GPUs that are alike."""
    gpu = gpus[0]
    if isinstance(listed, SolveProblem):
        return [solve_task(listed, gpu.arch, gpus)]
    return contributed_tasks(engine, listed.launch(gpu, gpu.sm_count), gpu)


def possible(arch: int) -> list[Listed]:
    """The entries of the list that an architecture can compute."""
    return [listed for listed in LISTED if isinstance(listed, SolveProblem) or listed.is_possible(arch)]


def text_of(listed: Listed) -> str:
    return listed.describe() if isinstance(listed, SolveProblem) else listed.text


def contribute(
    path: Path,
    gpus: Sequence[Any],
    minutes: float = MINUTES,
    started: Callable[[int, int, Listed], object] = lambda number, total, listed: None,
    progress: Progress = lambda task, record: None,
) -> tuple[list[TunedTask], int]:
    """Measure the list on GPUs that are alike, and write the file after each entry. An existing file is continued.

    Stored and shipped records do not count, and settings that affect code have their defaults. Each entry has an equal
    share of the remaining time. ``started`` is called before each with its number from 1, the number of entries, and
    the entry, and ``progress`` with the record of a task after each batch.

    Returns:
        The tasks that were reached, each once, and the number of entries that were not.

    Raises:
        RecordError: The file exists and is no contribution of this machine and its versions, or cannot be written.
        ToolchainError, TuningError: Nothing can be built or measured here, or nothing was in time.
    """
    end, gpu = time.monotonic() + 60.0 * minutes, gpus[0]
    engine = require_hooks("contribute()").engine
    defaults: Any = {name: getattr(Settings(), name) for name, item in SETTINGS.items() if item.affects == "code"}
    tuned_tasks: dict[str, TunedTask] = {}
    with tempfile.TemporaryDirectory(prefix="warp_tiles_") as folder, override(policy="auto", **defaults) as now:
        tuner = replace(Tuner.of(engine, now, gpus), store=RecordStore(Path(folder)), changed=lambda: None)
        entries = possible(gpu.arch)
        toolchain = engine.build_context(now).facts.toolchain()
        versions = {"nvrtc": dotted(toolchain.nvrtc_version), "nvjitlink": dotted(toolchain.nvjitlink_version)}
        facts: dict[str, Fact] = _continued(path, tuner) if path.exists() else {}
        facts |= {**versions, "python": platform.python_version(), "products": len(entries)}
        left = len(entries)
        for number, listed in enumerate(entries, 1):
            if (left_s := end - time.monotonic()) <= 0:
                break
            started(number, len(entries), listed)
            tuned = tuner.tune_all(listed_tasks(engine, listed, gpus), left_s / left, progress)
            tuned_tasks |= {item.task.digest: item for item in tuned}
            left -= 1
            facts |= _gpu_facts(gpu.uuid, facts)
            if records := tuner.store.united():
                tuner.store.export(path, records, facts=facts)
        if not tuner.store.records():
            raise TuningError(
                f"no kernel could be built and measured on {gpu.name} in its share of {minutes:g} minutes",
                remedy="give more --minutes; what was built is kept, so the same command may suffice too",
            )
    return list(tuned_tasks.values()), left


def _continued(path: Path, tuner: Tuner) -> dict[str, Fact]:
    """Take the records of a file that an earlier call wrote. Returns its facts."""
    facts: dict[str, Any] = {}
    for entry in read_export(path):
        facts |= {name: value for name, value in entry.manifest.info.items() if name != "records"}
        try:
            records = decode_records(entry.payload)
            if others := sorted({record.key.subject for record in records}.difference(SUBJECTS)):
                raise ValueError(f"it has records of other subjects than {', '.join(SUBJECTS)}: {shown(others[0])}")
        except ValueError as error:
            raise RecordError(f"{path} is no contribution: {error}", _REMEDY) from error
        for record in records:
            where = record.key.environment
            if (where, record.key.source) != (tuner.environment, tuner.source):
                raise RecordError(
                    f"{path} has measurements of {where.device} with warp_tiles {where.warp_tiles}, "
                    "and the GPU, the driver, the compiler or a version is different here",
                    remedy="name a new file",
                )
            tuner.store.merge(record.key, record.timings)
    return facts


def _gpu_facts(uuid: str, before: Mapping[str, Fact]) -> dict[str, Fact]:
    """What nvidia-smi says right after a measurement, with the least and the greatest clock so far."""
    fields = ",".join(_FIELDS.values())
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_NVIDIA_SMI_S)
    except unless_signalled(OSError, subprocess.SubprocessError):  # some containers lack it
        return {}
    facts: dict[str, Fact] = {}
    for name, text in zip(_FIELDS, done.stdout.strip().split(", ")):
        try:
            facts[name] = text if name == "driver_version" else float(text)
        except ValueError:  # of a GPU that does not say it
            facts[name] = None
    clock = facts.pop("clock_mhz", None)
    for name, chosen in (("least_clock_mhz", min), ("greatest_clock_mhz", max)):
        clocks = [mhz for mhz in (before.get(name), clock) if isinstance(mhz, float)]
        facts[name] = chosen(clocks, default=None)
    return facts
