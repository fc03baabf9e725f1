"""``warp-tiles run``: runs an unchanged script with warp_tiles enabled."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import click

from warp_tiles.cli.output import (
    bundle_option,
    json_option,
    output_errors,
    policy_option,
    print_json,
    script_output_to_stderr,
)
from warp_tiles.errors import ScriptError


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--report", "report_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the record here.")
@bundle_option
@policy_option
@json_option
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(script: Path, arguments: tuple[str, ...], report_file: Path | None, as_json: bool) -> None:
    """Run SCRIPT with ARGUMENTS under warp_tiles.

    Options of warp-tiles come before SCRIPT. Everything after SCRIPT belongs to the script. The report
    holds the plan and the build record of every module of the run, even if the script fails. With the
    setting prefetch, the modules that the script's last run loaded are compiled side by side.
    """
    from warp_tiles import api, settings
    from warp_tiles.cli.children import enabled_in_children
    from warp_tiles.launch.previous_run import prefetched
    from warp_tiles.launch.script import require_script, run_script
    from warp_tiles.util.files import write_output

    settings.current()  # reports an invalid setting first
    require_script(script)
    if report_file is not None and not report_file.absolute().parent.is_dir():
        raise ScriptError(f"the report cannot be written: there is no folder {report_file.absolute().parent}")
    logger = logging.getLogger("warp_tiles")
    messages = logging.StreamHandler()
    logger.addHandler(messages)
    logger.setLevel(logging.INFO)
    try:
        with script_output_to_stderr(as_json):
            api.enable()
            with enabled_in_children(), prefetched(script):
                run_script(script, arguments)
    finally:
        logger.removeHandler(messages)
        if api.is_enabled():
            record = api.report()
            if report_file is not None:
                with output_errors(report_file):
                    write_output(report_file, (json.dumps(record, indent=2) + "\n").encode("utf-8"))
            if as_json:
                print_json(record)
