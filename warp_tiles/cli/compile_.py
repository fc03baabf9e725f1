"""``warp-tiles compile``: compiles ahead of time, without a GPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from warp_tiles.cli.output import (
    bundle_option,
    human_bytes,
    json_option,
    kernel_errors,
    output_errors,
    policy_option,
    print_json,
    print_notes,
    print_table,
    script_output_to_stderr,
)
from warp_tiles.cli.outputs import facts_of, record_options, require_folders, write_report, write_trace
from warp_tiles.launch.script import Target
from warp_tiles.util.threads import side_by_side

_MOST_THREADS = 32


@click.command("compile", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@click.option("--arch", type=click.IntRange(min=1), default=90, show_default=True, help="Compute capability.")
@click.option("--block-dim", type=click.IntRange(1, 1024), help="Threads per block, in place of the script's own.")
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path, file_okay=False), required=True)
@record_options
@bundle_option
@policy_option
@json_option
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def compile_(
    script: Path, arguments: tuple[str, ...], arch: int, block_dim: int | None, folder: Path, report_file: Path | None,
    trace_file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compile every module of SCRIPT to a cubin with its metadata in the output folder.

    The script runs as under "plan": its launches are recorded and not executed. Modules are compiled in parallel.
    """
    from warp_tiles import _warp, api, settings
    from warp_tiles.launch.script import discover

    settings.current()  # reports an invalid setting first
    require_folders({"the report": report_file, "the trace": trace_file})
    with script_output_to_stderr(as_json):
        api.enable()
        _warp.require_target(arch, block_dim)
        found = discover(script, arguments, block_dim)
        print_notes(script, found)
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with kernel_errors(script), output_errors(folder):
            built = side_by_side(lambda target: _compile(target, arch, folder), found.targets, _MOST_THREADS)
    if report_file is not None:
        title = f"Build of {script.name} for sm_{arch}"
        write_report(report_file, api.report(), title, facts_of(script, arguments))
    if trace_file is not None:
        write_trace(trace_file, api.report(), facts_of(script, arguments))
    rows = [_with_record(row) for row in built]
    if as_json:
        print_json({"modules": rows})
        return
    headings = ("module", "cubin", "size", "built", "from cache", "LTO-IR", "seconds")
    table = [
        (
            row["name"],
            row["cubin"],
            human_bytes(row["cubin_bytes"]),
            row["lto_builds"],
            row["lto_hits"],
            human_bytes(row["lto_bytes"]),
            f"{row['seconds']:.1f}",
        )
        for row in rows
    ]
    print_table("", headings, table)


def _compile(target: Target, arch: int, folder: Path) -> dict[str, Any]:
    from warp_tiles import _warp

    start = time.perf_counter()
    cubin = _warp.compile_module(target.module, arch, target.block_dim, folder)
    return {
        "name": target.module.name,
        "block_dim": target.block_dim,
        "arch": arch,
        "cubin": str(cubin),
        "cubin_bytes": cubin.stat().st_size,
        "seconds": round(time.perf_counter() - start, 3),
    }


def _with_record(row: dict[str, Any]) -> dict[str, Any]:
    """Add the counts of the build record. They are 0 for a module without functions and for one that was not built."""
    from warp_tiles import api

    counts = {"lto_builds": 0, "lto_hits": 0, "lto_bytes": 0}
    for record in api.report()["modules"]:
        if record.get("output") == Path(row["cubin"]).name:
            counts = {name: record[name] for name in counts}
    return {**row, **counts}
