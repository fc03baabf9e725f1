"""``warp-tiles tune``: tunes a script's kernels, and manages tuning records."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.filesize import decimal

from warp_tiles._warp import require_hooks
from warp_tiles.api import enable
from warp_tiles.build.log import is_enabled
from warp_tiles.cli import common
from warp_tiles.cli.script import Script, discover
from warp_tiles.errors import RecordError, ScriptError, SettingError
from warp_tiles.settings import current
from warp_tiles.settings.table import seconds
from warp_tiles.store.keys import signer_if_any, trusted_by
from warp_tiles.tuning.record import STATUSES, Config, Record, Timing, sharing_gpus
from warp_tiles.tuning.store import RecordStore, StoredRecord, open_store

if TYPE_CHECKING:
    from warp_tiles.tuning.in_kernels import Progress, TunedTask
    from warp_tiles.tuning.tasks import TuningTask

KEY_DIGITS = 12


def _as_budget(context: click.Context, parameter: click.Parameter, value: Any) -> float | None:
    try:
        return None if value is None else seconds("it", value)
    except SettingError as error:
        raise click.BadParameter(f"{error.message}; {error.remedy}") from error


def _as_minutes(context: click.Context, parameter: click.Parameter, value: Any) -> float:
    with suppress(ValueError):
        if 0 < (minutes := float(value)) < math.inf:
            return minutes
    raise click.BadParameter(f"it is {value!r}; give minutes, a number above 0")


def _as_names(context: click.Context, parameter: click.Parameter, value: Any) -> tuple[str, ...]:
    if not isinstance(value, str):  # none, or those that the group has read
        return value or ()
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    if not all(names):
        raise click.BadParameter(f"{value!r} has an empty name")
    return names


_budget_option = click.option(
    "--budget",
    "budget_s",
    type=click.UNPROCESSED,
    callback=_as_budget,
    metavar="SECONDS",
    help="Stop each search after this time, with the best result so far; 0 for no limit. Default: tune_budget_s.",
)
_devices_option = click.option(
    "--devices",
    type=click.UNPROCESSED,
    callback=_as_names,
    metavar="NAMES",
    help="The GPUs that measure, e.g. cuda:0,cuda:1. The first one is tuned for; GPUs of another kind are skipped. "
    "Default: Warp's default GPU and all others of its kind.",
)


class _ScriptOrCommand(click.Group):
    """A group whose first word is a script, unless it is the name of a command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        command = self.get_command(ctx, args[0])
        if command is None or ctx.params["is_module"]:
            return "", _script, args
        taken = {parameter.name for parameter in command.params}
        for option in self.params:
            if option.name not in taken and ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{option.opts[0]} is an option of `tune SCRIPT`, and not of `tune {args[0]}`")
        return super().resolve_command(ctx, args)


@click.group(cls=_ScriptOrCommand, subcommand_metavar="SCRIPT [ARGUMENTS]... | COMMAND [ARGS]...")
@_budget_option
@_devices_option
@common.incomplete_option
@common.module_option
@common.json_option
@click.pass_context
def tune(context: click.Context, /, **given: Any) -> None:
    """Tune the kernels of SCRIPT, or manage tuning records.

    The command needs a GPU. It notes the launches of SCRIPT without computing anything. Then it launches each kernel
    with products of wp.tile_matmul, once for each pipeline that its loops can have and each function that can serve its
    products, and keeps what is faster than the default. If a script has the name of a command, give its path, e.g.
    ./list.
    """
    context.default_map = dict.fromkeys(["", *tune.commands], given)


@click.command(context_settings=common.GRAMMAR)
@_budget_option
@_devices_option
@common.incomplete_option
@common.json_option
@common.takes_script
@click.pass_context
def _script(
    context: click.Context,
    script: Script,
    budget_s: float | None,
    devices: tuple[str, ...],
    allow_incomplete: bool,
    as_json: bool,
) -> None:
    """Tune the kernels of SCRIPT."""
    now = current()
    try:
        script.require()
    except ScriptError as error:
        near = [f"did you mean `tune {name}`? " for name in get_close_matches(script.name, tune.commands, 1)]
        valid = f"{error.remedy}, or a command: {', '.join(sorted(tune.commands))}"
        raise ScriptError(error.message, remedy="".join(near) + valid) from error
    budget_s = now.tune_budget_s if budget_s is None else budget_s
    with common.script_output_to_stderr(as_json):
        tuned = tune_script(
            script, budget_s=budget_s, devices=devices, progress=_print_best, allow_incomplete=allow_incomplete
        )
    _print_tuned(script, tuned, as_json)
    if any(item.error for item in tuned):
        context.exit(1)


def tune_script(
    script: Script,
    *,
    budget_s: float = 0.0,
    devices: Sequence[str] = (),
    progress: Progress = lambda task, record: None,
    allow_incomplete: bool = True,
) -> list[TunedTask]:
    """Tune each loop and function of a script's kernels that has no complete record, on this machine's GPUs.

    The script runs as in ``warp-tiles plan``: its launches are recorded, not executed. Then its kernels are launched
    with copies of the arguments, in which arrays that kernels would have written are zeros, and zeros of inputs random
    numbers. After an interruption, the next call continues with the stored measurements. The result is in the order in
    which the script needs loops and functions.

    Args:
        budget_s: Seconds for all of them, 0 for no limit. Each has an equal share of the remaining time.
        devices: Names of the GPUs that measure, see :func:`sharing_gpus`.
        progress: Called with the record of a task after each batch.

    Raises:
        ScriptError: The script is missing, has no kernels, or stops early and ``allow_incomplete`` is False.
        ToolchainError: There is no GPU, no GPU with a given name, or no compiler, or the last GPU was lost.
    """
    from warp_tiles.tuning.in_kernels import Tuner, tasks_of

    script.require()
    enable()
    engine, now, gpus = require_hooks("tune_script()").engine, current(), sharing_gpus(devices)
    tuner = Tuner.of(engine, now, gpus)
    discovery = discover(script)
    common.require_complete(script, discovery, allow_incomplete)
    tuned = tuner.tune_all(tasks_of(engine, discovery.launches, gpus[0]), budget_s, progress)
    if any(item.measured for item in tuned):
        engine.records_changed()
        from warp_tiles._warp.modules import hash_all_again

        hash_all_again()
    return tuned


def _print_tuned(script: Script, tuned: Sequence[TunedTask], as_json: bool) -> None:
    rows, table = [], []
    for item in tuned:
        task, key, default, winner = item.task, item.record.key, item.record.default, item.winner
        data: dict[str, Any] = {"subject": task.subject, "problem": task.title, "kernel": item.kernel}
        data |= {"device": key.environment.device, "key": key.digest, "measured": item.measured}
        data |= {"error": item.error or None, "default": default and default.to_json()}
        rows.append({**data, "winner": winner and winner.to_json()})
        text = "the default" if winner and winner is default else _winner(winner)
        times = [microseconds(timing.median_us) if timing else "-" for timing in (default, winner)]
        measured = f"{item.measured} of {len(task.configs)}"
        table.append((item.kernel, task.subject, task.title, text, *times, measured, key.digest[:KEY_DIGITS]))
    if not as_json and not tuned:
        common.note(f"warp-tiles: {script} launches no kernel that can be tuned on a GPU")
    headings = ("kernel", "subject", "problem", "winner", "default", "time", "measured now", "key")
    common.print_rows(as_json, {"tasks": rows}, headings, table)
    if not as_json:
        _print_unfinished(tuned)


def _print_unfinished(tuned: Sequence[TunedTask]) -> None:
    for item in tuned:
        if item.error:
            common.note(f"warp-tiles: {item.task.title} is unfinished: {item.error}")


def _winner(winner: Timing | None) -> str:
    return "none so far" if winner is None else label(winner.config)


def _print_best(task: TuningTask, record: Record) -> None:
    """Print one line on standard error for each measured batch."""
    if is_enabled():
        winner = record.winner()
        time = "" if winner is None else f"{microseconds(winner.median_us)}, "
        common.note(f"{task.title}: {len(record.timings)} candidates, best {time}{_winner(winner)}")


@tune.command("list")
@common.json_option
def list_(as_json: bool) -> None:
    """List every record, in the order of lookup: read-only folders first."""
    records = open_store().records()
    headings = ("key", "subject", "values", "device", "configurations", "winner", "time", "folder")
    common.print_rows(as_json, {"records": list(map(_summary, records))}, headings, list(map(_cells, records)))


def _cells(stored: StoredRecord) -> tuple[object, ...]:
    key, winner = stored.record.key, stored.record.winner()
    fastest = ("none", "-") if winner is None else (label(winner.config), microseconds(winner.median_us))
    identity = (key.digest[:KEY_DIGITS], key.subject, str(key), key.environment.device)
    folder = str(stored.path.parents[1]) if stored.read_only else "own"
    return (*identity, len(stored.record.timings), *fastest, folder)


def _summary(stored: StoredRecord) -> dict[str, Any]:
    record, winner = stored.record, stored.record.winner()
    return {
        "key": record.key.digest,
        **record.key.to_json(),
        "path": str(stored.path),
        "read_only": stored.read_only,
        "configurations": {status: sum(timing.status == status for timing in record.timings) for status in STATUSES},
        "winner": winner and winner.to_json(),
    }


@tune.command()
@click.argument("key")
@common.json_option
def show(key: str, as_json: bool) -> None:
    """Print every timing and failure of one record. The winner is marked.

    A KEY may be shortened to its first digits.
    """
    stored = open_store().find(key)
    record = stored.record
    if as_json:
        common.print_json({**_summary(stored), "timings": record.to_json()["timings"]})
        return
    data = record.key.to_json()
    facts = [("subject", data["subject"]), *data["values"].items(), ("source", data["source"])]
    facts += [(name, "-" if value is None else value) for name, value in data["environment"].items()]
    common.print_table(f"key {record.key.digest}", ("what", "value"), [*facts, ("file", stored.path)])
    winner = record.winner()
    rows = [_row(timing, timing is winner) for timing in sorted(record.timings, key=_order)]
    headings = ("configuration", "", "median", "95 % interval", "launches", "shared memory", "reason")
    common.print_table("", headings, rows)


def _order(timing: Timing) -> tuple[int, float, str]:
    """Sort key: measured timings by time, then dropped ones, then failures."""
    time_us = timing.median_us if math.isfinite(timing.median_us) else math.inf
    return STATUSES.index(timing.status), time_us, timing.identity


def _row(timing: Timing, wins: bool) -> tuple[object, ...]:
    state, times = "winner" if wins else timing.status, [microseconds(timing.median_us), "-", "-", "-"]
    if timing.samples > 0:
        interval = f"{microseconds(timing.low_us)} to {microseconds(timing.high_us)}"
        times[1:] = [interval, str(timing.samples), decimal(timing.shared_bytes)]
    return (label(timing.config), state, *times, timing.reason)


@tune.command()
@click.argument("file", type=common.FILE)
@click.option(
    "--minutes",
    type=click.UNPROCESSED,
    callback=_as_minutes,
    default=15.0,
    show_default=True,
    help="Stop after this time. The same command continues with what is left.",
)
@_devices_option
@common.json_option
def contribute(file: Path, minutes: float, devices: tuple[str, ...], as_json: bool) -> None:
    """Measure a fixed list of loops, products and solvers on this GPU, and write FILE, from which maintainers ship
    records.

    The command needs a GPU. FILE has all timings, versions, GPU, driver and clocks, and nothing else. It is written
    after each of them. If it exists, its measurements are kept.
    """
    from warp_tiles.cli.contribution import Listed, text_of
    from warp_tiles.cli.contribution import contribute as measure

    common.require_folders({"the contribution": file})
    enable()
    gpus = sharing_gpus(devices)

    def started(number: int, total: int, listed: Listed) -> None:
        if is_enabled():
            common.note(f"{number} of {total}: {text_of(listed)}")

    with common.output_errors(file), common.interrupted_by_signals():
        tuned, left = measure(file, gpus, minutes, started, _print_best)
    complete = [item for item in tuned if not item.pending]
    faster = sum(item.winner not in (None, item.record.default) for item in complete)
    unfinished = len(tuned) - len(complete)
    counts = {"complete": len(complete), "faster": faster, "unfinished": unfinished, "left": left}
    text = f"{len(complete)} tasks measured on {gpus[0].name}, {faster} with a faster configuration than the default"
    common.print_result(as_json, {"file": str(file), **counts}, f"{text}; written to {file}")
    _print_unfinished(tuned)
    if unfinished or left:
        rest = f"{unfinished} tasks are unfinished, {left} of the list were not reached"
        common.note(f"warp-tiles: {rest}: the same command continues")


@tune.command()
@click.argument("file", type=common.FILE)
@click.argument("keys", nargs=-1)
@common.json_option
def export(file: Path, keys: tuple[str, ...], as_json: bool) -> None:
    """Write records to one bundle FILE: those of KEYS, or all. It is signed if there is a signing key."""
    store = open_store()
    records = [store.find(key).record for key in keys] if keys else None
    count = store.export(file, records, signer_if_any(current()))
    common.print_result(as_json, {"records": count, "file": str(file)}, f"{_records(count)} written to {file}")


@tune.command("import")
@click.argument("file", type=common.FILE)
@click.option(
    "--into",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Add them to this folder in place of your own, e.g. to ship it with an application.",
)
@common.json_option
def import_(file: Path, folder: Path | None, as_json: bool) -> None:
    """Add the records of an exported FILE to your own. Existing timings stay.

    If it is signed, then by a trusted key.
    """
    store = open_store()
    if folder is not None:
        with common.output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        store = RecordStore(folder, shared=True)  # as readable as the folder
    count = store.import_(file, trusted_by(current()))
    data = {"records": count, "folder": str(store.root)}
    common.print_result(as_json, data, f"{_records(count)} added to {store.root}")


@tune.command()
@click.argument("keys", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of your own records.")
@common.json_option
def clear(keys: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Remove your own records of KEYS. Read-only folders stay unchanged."""
    if bool(keys) == everything:
        raise click.UsageError("give KEYS, or --all for all records")
    store = open_store()
    count = store.remove(None if everything else [_own_digest(store, key) for key in keys])
    common.print_result(as_json, {"removed": count}, f"{_records(count)} removed")


def _own_digest(store: RecordStore, prefix: str) -> str:
    first, here = store.find(prefix), [stored for stored in store.records() if not stored.read_only]
    digest = first.record.key.digest
    if digest not in {stored.record.key.digest for stored in here}:
        raise RecordError(
            f"the record {digest[:KEY_DIGITS]} is in a read-only folder, {first.path.parents[1]}",
            remedy="remove the folder from the setting record_paths, or remove the file yourself",
        )
    return digest


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


# ---- configurations and times as short texts for tables


def label(config: Config, prefix: str = "") -> str:
    """Returns a configuration on one line. A dot joins nested names: ``block_dim=128 tile.m=64``."""
    return (
        " ".join(
            label(value, f"{prefix}{name}.")
            if isinstance(value, Mapping) and value
            else f"{prefix}{name}={_text(value)}"
            for name, value in config.items()
        )
        or "-"
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, (int, float)) for item in value):
        return "x".join(_text(item) for item in value)
    return json.dumps(value, separators=(",", ":"))


def microseconds(time_us: float) -> str:
    """Returns a time with three or four digits and its unit; ``-`` for a time that is not finite."""
    if not math.isfinite(time_us):
        return "-"
    for limit, factor, unit in ((1e3, 1.0, "µs"), (1e6, 1e-3, "ms")):
        if time_us < limit:
            return f"{time_us * factor:.4g} {unit}"
    return f"{time_us * 1e-6:.4g} s"
