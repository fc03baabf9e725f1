"""``warp-tiles plan``: prints the needs of a script's kernels, without building or launching."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from warp_tiles.cli.output import (
    echo,
    json_option,
    kernel_errors,
    policy_option,
    print_json,
    print_notes,
    print_table,
    script_output_to_stderr,
)
from warp_tiles.cli.outputs import facts_of, require_folders, write_page
from warp_tiles.reports.functions import (
    LOOP_HEADINGS,
    PRODUCT_HEADINGS,
    functions,
    loop_rows,
    module_notes,
    module_title,
    product_rows,
)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@click.option("--arch", type=click.IntRange(min=1), default=90, show_default=True, help="Compute capability.")
@click.option("--block-dim", type=click.IntRange(1, 1024), help="Threads per block, in place of the script's own.")
@click.option(
    "--html",
    "page_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the plan as a page.",
    metavar="FILE",
)
@policy_option
@json_option
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def plan(
    script: Path, arguments: tuple[str, ...], arch: int, block_dim: int | None, page_file: Path | None, as_json: bool
) -> None:
    """Print the device functions of SCRIPT's kernels, needed or not, the treatment of their loops, and the reasons.
    Products of warp_tiles.matmul have a table of their own.

    The script runs, but its launches are recorded and not executed. They show the block sizes and the
    generic kernels that the script uses. Where the script needs results, it can ask warp_tiles.is_planning().
    """
    from warp_tiles._warp.modules import require_target
    from warp_tiles.api import enable, plan
    from warp_tiles.launch.script import discover
    from warp_tiles.settings import current

    current()  # reports an invalid setting first
    require_folders({"the page": page_file})
    with script_output_to_stderr(as_json):
        enable()
        require_target(arch, block_dim)
        found = discover(script, arguments, block_dim)
        print_notes(script, found)
        with kernel_errors(script):
            plans = [plan(target.module, arch=arch, block_dim=target.block_dim) for target in found.targets]
    document = {
        "modules": [item.to_json() for item in plans],
        "matmul": [product.to_json() for product in found.products],
    }
    if page_file is not None:
        write_page(page_file, document, f"Plan of {script.name} for sm_{arch}", facts_of(script, arguments))
    if as_json:
        print_json(document)
        return
    shown = [item for item in plans if item.variants or not item.settings.providers]  # none: left to Warp
    for item in shown:
        print_plan(item.to_json())
    if found.products:
        print_table("products of warp_tiles.matmul", PRODUCT_HEADINGS, product_rows(document["matmul"]))
    if others := len({item.name for item in plans} - {item.name for item in shown}):
        echo(f"{others} {'module' if others == 1 else 'modules'} without tile functions")


def print_plan(module: Mapping[str, Any]) -> None:
    """Print the plan of a module as tables."""
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
        for each in functions(module)
    ]
    print_table(
        f"module {module_title(module)}, kernels: {', '.join(module['kernels'])}",
        ("function", "dtypes", "kernels", "state", "provider, tile", "reason", "key"),
        rows,
    )
    if loops := loop_rows(module):
        print_table("loops of products", LOOP_HEADINGS, loops)
    for text in module_notes(module):
        echo(text)
