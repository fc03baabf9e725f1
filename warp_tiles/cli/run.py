"""``warp-tiles run``: a script with warp_tiles enabled, unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from warp_tiles.cli.output import json_option, print_json, script_output_to_stderr


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--report", "report_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the record here.")
@json_option
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(script: Path, arguments: tuple[str, ...], report_file: Path | None, as_json: bool) -> None:
    """Run SCRIPT with ARGUMENTS under warp_tiles.

    Options of warp-tiles come before SCRIPT; whatever follows belongs to the script. The report
    holds the plan and the build record of every module that the run met, also if the script fails.
    """
    import warp_tiles
    from warp_tiles.files import write_atomic
    from warp_tiles.script import run_script

    record: dict[str, Any] = {}
    with script_output_to_stderr(as_json):
        warp_tiles.enable()
        try:
            run_script(script, arguments)
        finally:
            record = warp_tiles.report()
            if report_file is not None:
                write_atomic(report_file, (json.dumps(record, indent=2) + "\n").encode("utf-8"))
    if as_json:
        print_json(record)
