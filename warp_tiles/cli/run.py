"""``warp-tiles run``: runs an unchanged script with warp_tiles enabled."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click

from warp_tiles._warp import is_enabled, require_hooks
from warp_tiles.api import enable, report, require_place
from warp_tiles.build.start_record import default_file
from warp_tiles.cli.children import enabled_in_children
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
from warp_tiles.cli.rehearsal import Rehearsal
from warp_tiles.cli.scripts import GRAMMAR, takes_script
from warp_tiles.errors import SettingError
from warp_tiles.launch.script import Script
from warp_tiles.settings import current
from warp_tiles.store.paths import cache_root


@click.command(context_settings=GRAMMAR)
@record_options
@bundle_option
@policy_option
@click.option(
    "--start",
    type=FILE,
    help="Keep the start record in this file, e.g. for a team. Without it, each script has one in the cache if "
    "modules=all, a remote store or --rehearse is set.",
)
@click.option("--no-start", "keeps", is_flag=True, flag_value=False, default=True, help="Keep no start record.")
@click.option(
    "--rehearse",
    is_flag=True,
    help="If there is no start record yet, also run SCRIPT in a second process. Launches do nothing there; it compiles "
    "the modules that they need. Everything else in SCRIPT happens twice.",
)
@json_option
@takes_script
def run(
    script: Script, report_file: Path | None, trace_file: Path | None, start: Path | None, keeps: bool, rehearse: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run SCRIPT with ARGUMENTS under warp_tiles.

    Options of warp-tiles come before SCRIPT. Everything after SCRIPT belongs to the script. The report
    holds the plan and the build record of every module of the run, even if the script fails.
    """
    from warp_tiles._warp.internals import find

    current()  # reports an invalid setting first
    script.require()
    require_folders({"the report": report_file, "the trace": trace_file})
    if rehearse and not keeps:
        raise click.UsageError("--rehearse keeps a start record and --no-start keeps none: give only one of them")
    if rehearse and current().modules == "tiles":
        raise SettingError(
            "--rehearse was given, and modules is 'tiles', so the launches would not find what the rehearsal compiles",
            current().remedy("modules", "all"),
        )
    rehearses = False
    try:
        with script_output_to_stderr(as_json):
            if start is not None:
                require_place(start)
            enable()
            if is_enabled():
                require_hooks("run").takes_start = keeps and start is None
            now = current()
            if keeps and is_enabled() and (start or rehearse or now.all_modules):
                file = start or default_file(cache_root(now.cache_dir), script.title, str(script.require().resolve()))
                may_build = now.rules.builds and now.policy != "off" and now.bundle is None
                rehearses = rehearse and may_build and not file.exists()
                if rehearse and not may_build:
                    reason = f"the policy is {now.policy!r}" if now.bundle is None else "modules come from a bundle"
                    note(f"warp-tiles: nothing is rehearsed, because {reason}")
                require_hooks("run").begin_start(file)
            with enabled_in_children(), Rehearsal(script) if rehearses else nullcontext() as rehearsal:
                try:
                    script.run()
                finally:
                    # the script may have disabled it, or closed its output
                    if is_enabled() and not getattr(sys.stdout, "closed", True):
                        hooks = require_hooks("run")
                        parts = hooks.engine.recorder, hooks.program_start, hooks.engine.idle, rehearsal
                        text = "; ".join(filter(None, (part.summary() for part in parts if part is not None)))
                        find("logger.log_info")(f"warp_tiles: {text}")
    finally:
        if is_enabled() and (report_file or trace_file or as_json):
            record, facts = report(), facts_of(script, sys.exc_info()[1])
            write_records(report_file, trace_file, record, f"Run of {script.title} with warp_tiles", facts)
            if as_json:
                print_json(record)
