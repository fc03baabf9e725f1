"""``warp-tiles plan``: prints the needs of a script's kernels, without building or launching."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from warp_tiles.cli.output import (
    FILE,
    echo,
    facts_of,
    json_option,
    policy_option,
    print_json,
    print_table,
    require_folders,
    script_output_to_stderr,
    write_page,
)
from warp_tiles.cli.scripts import (
    GRAMMAR,
    discovered,
    kernel_errors,
    require_complete,
    takes_script,
    target_options,
)
from warp_tiles.launch.script import Script
from warp_tiles.reports.functions import (
    LOOP_HEADINGS,
    PRODUCT_HEADINGS,
    SKIPPED,
    compiled_again,
    functions,
    loop_rows,
    module_notes,
    module_title,
    product_rows,
    with_tiles,
)


@click.command(context_settings=GRAMMAR)
@target_options
@click.option("--html", "page_file", type=FILE, help="Write the plan as a page.", metavar="FILE")
@policy_option
@json_option
@takes_script
def plan(
    script: Script, archs: tuple[int, ...], block_dim: int | None, allow_incomplete: bool, page_file: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Print the device functions of SCRIPT's kernels, needed or not, the treatment of their loops, and the reasons.
    Products of warp_tiles.matmul have a table of their own.

    The script runs, but its launches are recorded and not executed. They show the block sizes and the
    generic kernels that the script uses. Where the script needs results, it can ask warp_tiles.is_planning().
    """
    from warp_tiles.api import enable, plan
    from warp_tiles.settings import current

    current()  # reports an invalid setting first
    require_folders({"the page": page_file})
    with script_output_to_stderr(as_json):
        enable()
        found = discovered(script, archs, block_dim)
        with kernel_errors(script):
            plans = [
                plan(each.module, arch=arch, block_dim=each.block_dim).to_json()
                for arch in archs
                for each in found.targets
            ]
    document = {
        "modules": found.with_launched(plans),
        "matmul": [product.to_json() for product in found.products],
    }
    if page_file is not None:
        targets = ", ".join(f"sm_{arch}" for arch in archs)
        write_page(page_file, document, f"Plan of {script.title} for {targets}", facts_of(script, found.stopped))
    if as_json:
        print_json(document)
    else:
        _print_plans(document)
    require_complete(script, found.stopped, allow_incomplete)


def _print_plans(document: Mapping[str, Any]) -> None:
    shown, others = with_tiles(document["modules"])
    for module in shown:
        print_plan(module)
    if document["matmul"]:
        print_table("products of warp_tiles.matmul", PRODUCT_HEADINGS, product_rows(document["matmul"]))
    for text in filter(None, (*compiled_again(document["modules"]), others)):
        echo(text)


def print_plan(module: Mapping[str, Any]) -> None:
    """Print the plan of a module as tables."""
    found = functions(module)
    rows = [
        (
            each.title,
            each.variant["dtypes"],
            ", ".join(each.variant["kernels"]),
            each.state,
            each.provider,
            each.reason,
            each.variant["key"][:12],
        )
        for each in found
        if each.state != SKIPPED
    ]
    skipped = Counter(each.reason for each in found if each.state == SKIPPED)
    echo(f"module {module_title(module)}, kernels: {', '.join(module['kernels'])}")
    if rows:
        print_table("", ("function", "dtypes", "kernels", "state", "provider, tile", "reason", "key"), rows)
    for reason, count in skipped.items():
        echo(f"{count} function{'s' * (count > 1)} {reason}")
    if loops := loop_rows(module):
        print_table("loops of products", LOOP_HEADINGS, loops)
    for text in module_notes(module):
        echo(text)
