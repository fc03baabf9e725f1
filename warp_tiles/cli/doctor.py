"""``warp-tiles doctor``: checks this machine, and prints findings and remedies."""

from __future__ import annotations

import sys

import click

from warp_tiles.cli.output import json_option, print_json, print_table, script_output_to_stderr


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check Python, Warp, compiler, headers, linker, GPUs and the cache. Exit with 1 if there is a problem."""
    from warp_tiles.cli.diagnose import diagnose

    with script_output_to_stderr(True):
        findings = list(diagnose())
    if as_json:
        print_json({"findings": [finding.to_json() for finding in findings]})
    else:
        rows = [(f.subject, f.state, f.detail, f.remedy) for f in findings]
        print_table("", ("what", "state", "found", "remedy"), rows)
    sys.exit(1 if any(finding.state == "problem" for finding in findings) else 0)
