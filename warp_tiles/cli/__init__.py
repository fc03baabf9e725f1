"""The ``warp-tiles`` command."""

from __future__ import annotations

import sys

import click

from warp_tiles.cli import cache, compile_, doctor, plan, run, settings, tune
from warp_tiles.errors import WarpTilesError
from warp_tiles.version import __version__

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="warp-tiles")
def commands() -> None:
    """Plan, build, cache and link the functions of wp.tile_matmul and of Warp's tile solvers."""


for command in (run.run, plan.plan, compile_.compile_, cache.cache, tune.tune, settings.settings, doctor.doctor):
    commands.add_command(command)


def main() -> None:
    """Entry point. Errors of this package are printed as one message, with exit status 2."""
    try:
        commands(prog_name="warp-tiles")
    except WarpTilesError as error:
        print(f"warp-tiles: {error}", file=sys.stderr)
        sys.exit(2)
