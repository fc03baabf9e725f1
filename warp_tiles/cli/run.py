"""``warp-tiles run``: runs an unchanged script and the processes that it starts with warp_tiles enabled."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import click

from warp_tiles._warp import is_enabled, require_hooks
from warp_tiles.api import enable, report, require_place
from warp_tiles.cli.output import (
    FILE,
    bundle_option,
    facts_of,
    json_option,
    note,
    policy_option,
    print_json,
    record_options,
    require_folders,
    script_output_to_stderr,
    write_records,
)
from warp_tiles.cli.scripts import GRAMMAR, takes_script
from warp_tiles.launch.script import Script
from warp_tiles.settings import COMMAND_LINE, configure, configure_by_option, configured, current, keep_start_record
from warp_tiles.store.paths import cache_root, start_file
from warp_tiles.util.warn import warn


@click.command(context_settings=GRAMMAR)
@record_options
@bundle_option
@policy_option
@click.option(
    "--start",
    type=FILE,
    help="Keep the start record in this file, e.g. for a team. Without it, each script has one in the cache, if "
    "warp-tiles warm has made it, or if modules=all or a remote store is set.",
)
@click.option("--no-start", "keeps", is_flag=True, flag_value=False, default=True, help="Keep no start record.")
@json_option
@takes_script
def run(
    script: Script, report_file: Path | None, trace_file: Path | None, start: Path | None, keeps: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run SCRIPT with ARGUMENTS under warp_tiles.

    Options of warp-tiles come before SCRIPT. Everything after SCRIPT belongs to the script. The report
    holds the plan and the build record of every module of the run, even if the script fails.
    """
    from warp_tiles._warp.internals import find
    from warp_tiles._warp.plain import gpus_here

    current()  # reports an invalid setting first
    script.require()
    require_folders({"the report": report_file, "the trace": trace_file})
    try:
        with script_output_to_stderr(as_json):
            if start is not None:
                require_place(start)
                if not gpus_here():
                    note(
                        f"warp-tiles: this machine has no GPU, and {start} records what a GPU loads, so it stays as it "
                        f"is; `warp-tiles warm --arch 90 --start {start} {script}` needs none"
                    )
            enable()
            if is_enabled():
                require_hooks("run").takes_start = keeps and start is None
                now = current()
                file = start or start_file(cache_root(now.cache_dir), script.require())
                if keeps and (start or now.all_modules or file.exists()):
                    require_hooks("run").begin_start(file)
            with enabled_in_children():
                try:
                    script.run()
                finally:
                    # the script may have disabled it, or closed its output
                    if is_enabled() and not getattr(sys.stdout, "closed", True):
                        hooks = require_hooks("run")
                        parts = hooks.engine.recorder, hooks.program_start
                        text = "; ".join(filter(None, (part.summary() for part in parts if part is not None)))
                        find("logger.log_info")(f"warp_tiles: {text}")
    finally:
        if is_enabled() and (report_file or trace_file or as_json):
            record, facts = report(), facts_of(script, sys.exc_info()[1])
            write_records(report_file, trace_file, record, f"Run of {script.title} with warp_tiles", facts)
            if as_json:
                print_json(record)


# ---- children of a script through multiprocessing (spawn and forkserver)
#
# Such a child begins with data that its parent pickles: search path, arguments, main module. One more value is
# added to this data. Unpickling it enables warp_tiles in the child, before the main module is imported. A forked child
# inherits warp_tiles anyway.

_NAME = "warp_tiles"
# the child's search path is not set yet when it reads this
_ENABLE = """
import sys
before, sys.path = sys.path, search_path
try:
    from warp_tiles.cli.run import enable_here
    enable_here(configured, options, start_record)
finally:
    sys.path = before
"""


def enabling() -> dict[str, Any]:
    """The arguments of :func:`enable_here`."""
    given = {"configured": configured(), "options": configured(COMMAND_LINE)}
    return {**given, "start_record": current().start_record}


class _Enabler:
    """A value that enables warp_tiles in the process that unpickles it."""

    def __init__(self) -> None:
        self._given = enabling()

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_ENABLE, {"search_path": list(sys.path), **self._given})


def enable_here(configured: Mapping[str, Any], options: Mapping[str, Any], start_record: bool) -> None:
    """Enable warp_tiles in a child as in its parent. If it cannot be enabled, the child runs with Warp alone.

    Args:
        configured: The settings of :func:`warp_tiles.configure` in the parent, and of options of the command.
        options: Those of options of the command alone.
        start_record: True if the parent keeps a start record.
    """
    try:
        configure(**configured)
        for name, value in options.items():
            configure_by_option(name, value)
        keep_start_record(kept=start_record)
        enable()
        if is_enabled():
            require_hooks("run").takes_start = False  # the parent writes the record
        _enable_children()
    except Exception as error:  # a child must not fail because of this
        warn(f"a child process runs with Warp alone: {error}")


@contextlib.contextmanager
def enabled_in_children() -> Iterator[None]:
    """Enable warp_tiles in the children that are started in the block. They get the settings of their start."""
    original = spawn.get_preparation_data
    _enable_children()
    try:
        yield
    finally:
        spawn.get_preparation_data = original


def _enable_children() -> None:
    """Add the value to the data of children, as long as warp_tiles is enabled."""
    original = spawn.get_preparation_data

    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        data = dict(original(name))
        return {**data, _NAME: _Enabler()} if is_enabled() else data

    spawn.get_preparation_data = get_preparation_data
