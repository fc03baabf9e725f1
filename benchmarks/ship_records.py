"""Adds the records of a contribution to those that the package ships, or compares its choices with those on a GPU.

    python -m benchmarks.ship_records gpu.records
    python -m benchmarks.ship_records gpu.records --compare --minutes 5 --json compared.json

The file is one of `warp-tiles tune contribute`. What ships are the tasks of the list whose default lost by at
least 2 %, with finished timings of configurations that this version knows. They replace shipped records of the same
tasks. A task of the file whose default did not lose removes its shipped record.

`--compare` needs the GPU of the file. It measures the choice of the file beside that of the package, whose
records of this GPU count, on the launches of the list. The ratio is the speed of the file's choice over that of the
package's. The status is 1 if a ratio is below 0.98. With `--limits 89`, this GPU counts as one with the shared
memory, threads and blocks of sm_89. A file that does not exist is measured first, within the same number of minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.contributions import Contribution, read_contribution
from benchmarks.runner import geometric_mean
from benchmarks.speed.occupancy import limits_of
from benchmarks.tune_matmul import shipped
from warp_tiles.array_products.measured_solves import solve_task
from warp_tiles.array_products.solve_choice import SolveProblem
from warp_tiles.cli.contribution import SUBJECTS, contribute, contributed_tasks, listed_tasks, possible
from warp_tiles.errors import RecordError
from warp_tiles.settings import current
from warp_tiles.tuning.in_kernels import Tuner
from warp_tiles.tuning.record import (
    DEFAULTS,
    Config,
    Environment,
    Record,
    decode_records,
    encode_records,
    identity,
    shipped_file,
    shipped_records,
)
from warp_tiles.tuning.store import RecordStore
from warp_tiles.tuning.tasks import TuningTask
from warp_tiles.util.files import write_output

LEAST_SPEED = 0.98  # of the package's choice


def tasks(engine: Any, arch: int) -> dict[str, TuningTask]:
    """The tasks of the list on an architecture, by their digests. It needs no GPU."""
    gpu: Any = SimpleNamespace(is_cpu=False, get_cuda_compile_arch=lambda: arch)
    found: dict[str, TuningTask] = {}
    for listed in possible(arch):
        if isinstance(listed, SolveProblem):
            asked = [solve_task(listed, arch)]
        else:
            asked = contributed_tasks(engine, replace(listed.launch("cpu", 1), device=gpu), gpu)
        found |= {task.digest: task for task in asked}
    return found


def arch_of(contribution: Contribution) -> int:
    """The architecture of the tasks: the GPU's own, or the newest that Warp's compiler knew."""
    for record in contribution.records:
        values = dict(record.key.values)
        if arch := values.get("arch") or values.get("products.0.arch"):
            return int(arch)
    return contribution.environment.arch or 0


def known(records: Iterable[Record], asked: Mapping[str, TuningTask]) -> dict[str, Record]:
    """The records of tasks that this version asks and whose default and a rival have finished timings, by digest.

    They keep finished timings of configurations that this version knows.
    """
    found = {}
    for record in records:
        digest = record.key.problem_digest
        if digest in asked:
            configurations = {identity(config) for config in asked[digest].configs}
            names = {one.identity for one in record.timings if one.identity in configurations and not one.unfinished}
            if identity(DEFAULTS[record.key.subject]) in names and len(names) > 1:
                found[digest] = record.among(names)
    return found


def ship(contribution: Contribution, asked: Mapping[str, TuningTask]) -> dict[Path, int]:
    """Write the files of the package. Returns the number of records in each.

    Raises:
        RecordError: This version asks none of the file's tasks, or a shipped file is of another GPU.
    """
    where, written = contribution.environment, {}
    gpu = where.device
    measured = known(contribution.records, asked)
    if not measured:
        raise RecordError(
            f"none of the {len(contribution.records)} tasks is asked by this version",
            "measure again with `warp-tiles tune contribute` of this version",
        )
    for subject in SUBJECTS:
        path = shipped_file(subject, gpu)
        before = list(decode_records(path.read_bytes())) if path.exists() else []
        if others := {record.key.environment.device for record in before} - {gpu}:
            raise RecordError(
                f"{path} has records of {others.pop()!r}, and the file is of {gpu!r}", "rename the older file"
            )
        new = {digest: record for digest, record in measured.items() if record.key.subject == subject}
        kept = [record for record in before if not (_is_of(record, where) and _digest(record) in new)]
        records = [*kept, *shipped(list(new.values()))]
        if records:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_output(path, encode_records(sorted(records, key=lambda record: record.key.digest)))
        else:
            path.unlink(missing_ok=True)
        written[path] = len(records)
    return written


def _is_of(record: Record, where: Environment) -> bool:
    found = record.key.environment
    return (found.arch, found.multiprocessors) == (where.arch, where.multiprocessors)


def _digest(record: Record) -> str:
    return record.key.problem_digest


def choice(record: Record) -> Config:
    """The configuration that a shipped record gives; the default if it has none."""
    winner = record.winner()
    return DEFAULTS[record.key.subject] if winner is None else winner.config


def choices(contribution: Contribution, asked: Mapping[str, TuningTask]) -> dict[str, tuple[Config, Config]]:
    """The choices of the file and of the package, by the digests of the file's tasks."""
    where, package = contribution.environment, dict[str, Config]()
    for subject in SUBJECTS:
        records = shipped_records(subject, where.device, (where.arch, where.multiprocessors))
        package |= {record.key.problem_digest: choice(record) for record in records}
    found = {}
    for digest, record in known(contribution.records, asked).items():
        default = DEFAULTS[record.key.subject]
        found[digest] = next(map(choice, shipped([record])), default), package.get(digest, default)
    return found


def compared(tuner: Tuner, task: TuningTask, chosen: tuple[Config, Config], budget_s: float) -> dict[str, Any]:
    """Both choices for a task, their times in microseconds, and the ratio, unless the time did not suffice.

    Equal choices have a ratio of 1 and are not measured.
    """
    row: dict[str, Any] = {"question": task.title, "file": chosen[0], "package": chosen[1]}
    if identity(chosen[0]) == identity(chosen[1]):
        return {**row, "ratio": 1.0}
    if budget_s <= 0:
        return row
    tuned = tuner.tune(replace(task, configs=chosen), budget_s)
    timings = {name: tuned.record.timing(config) for name, config in zip(("file", "package"), chosen)}
    row |= {f"{name}_us": one.median_us for name, one in timings.items() if one is not None and one.samples}
    if {"file_us", "package_us"} <= row.keys():
        row["ratio"] = round(row["package_us"] / row["file_us"], 4)
    return row


def compare(contribution: Contribution, engine: Any, gpu: Any, minutes: float) -> list[dict[str, Any]]:
    """A row of :func:`compared` for each task of the file that this version asks.

    Raises:
        RecordError: The GPU is another one than that of the file.
    """
    where = contribution.environment
    if (gpu.name, gpu.arch, gpu.sm_count) != (where.device, where.arch, where.multiprocessors):
        raise RecordError(
            f"the file is of {where.device}, and this GPU is {gpu.name}", "compare it on the GPU of the file"
        )
    end, rows = time.monotonic() + 60.0 * minutes, {}
    wanted = choices(contribution, tasks(engine, arch_of(contribution)))
    entries = possible(gpu.arch)
    with tempfile.TemporaryDirectory() as folder:
        tuner = replace(Tuner.of(engine, current(), [gpu]), store=RecordStore(Path(folder)))
        for number, listed in enumerate(entries):
            for task in listed_tasks(engine, listed, [gpu]):
                digest, left_s = task.digest, end - time.monotonic()
                if digest in wanted and digest not in rows:
                    rows[digest] = compared(tuner, task, wanted[digest], left_s / (len(entries) - number))
                    print(f"{task.title}: {rows[digest].get('ratio', 'not measured')}", flush=True)
    return list(rows.values())


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Number of tasks, of those with different choices and of those without a ratio, and the ratios."""
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    return {
        "questions": len(rows),
        "different": sum(identity(row["file"]) != identity(row["package"]) for row in rows),
        "not_measured": len(rows) - len(ratios),
        "geometric_mean": round(geometric_mean(ratios) or 0.0, 4),
        "least": min(ratios, default=0.0),
    }


def main(arguments: list[str] | None = None) -> int:
    """Ship a file, or compare it. The status of a comparison is 1 if a choice of the file is too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--compare", action="store_true", help="measure on this GPU, and ship nothing")
    parser.add_argument("--minutes", type=float, default=5.0, help="time limit of a comparison")
    parser.add_argument("--limits", type=int, metavar="ARCH", help="compare within the limits of another architecture")
    parser.add_argument("--json", type=Path, help="file for the rows of a comparison")
    options = parser.parse_args(arguments)
    import warp as wp

    import warp_tiles
    from warp_tiles._warp import require_hooks

    wp.config.log_level = wp.LOG_WARNING
    warp_tiles.enable()
    engine = require_hooks("ship_records").engine
    if not options.compare:
        contribution = read_contribution(options.file)
        for path, count in ship(contribution, tasks(engine, arch_of(contribution))).items():
            print(f"{path}: {count} records")
        return 0
    gpu = wp.get_device("cuda:0")
    with limits_of(options.limits or gpu.arch, gpu.arch):
        if not options.file.exists():
            contribute(options.file, [gpu], options.minutes)
        contribution = read_contribution(options.file)
        rows = compare(contribution, engine, gpu, options.minutes)
    data = {"contribution": contribution.facts, "gpu": gpu.name, "limits": options.limits or gpu.arch}
    data |= {"summary": summary(rows), "rows": rows}
    print(json.dumps(data["summary"], indent=1))
    if options.json:
        write_output(options.json, (json.dumps(data, indent=1) + "\n").encode())
    return int(data["summary"]["least"] < LEAST_SPEED or data["summary"]["not_measured"] > 0)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except RecordError as error:
        raise SystemExit(f"ship_records: {error}") from None
