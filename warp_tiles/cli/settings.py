"""``warp-tiles settings``: prints the current value and the layer of every setting."""

from __future__ import annotations

import click

from warp_tiles.cli.output import json_option, print_json, print_table
from warp_tiles.settings import current


@click.command()
@json_option
def settings(as_json: bool) -> None:
    """Print the current value and the layer of every setting."""
    found = current().to_json()
    if as_json:
        print_json(found)
        return
    rows = [(name, item["value"], item["layer"]) for name, item in found.items()]
    print_table("", ("setting", "value", "layer"), rows)
