"""``warp-tiles compile``: compiles ahead of time, without a GPU."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal

from warp_tiles.cli.cluster import connected, require_same_installation, scheduler_option
from warp_tiles.cli.output import (
    FILE,
    bundle_option,
    echo,
    facts_of,
    interrupted_by_signals,
    json_option,
    output_errors,
    policy_option,
    print_json,
    print_table,
    record_options,
    require_folders,
    script_output_to_stderr,
    write_depfile,
    write_records,
)
from warp_tiles.cli.scripts import (
    GRAMMAR,
    discovered,
    kernel_errors,
    require_complete,
    takes_script,
    target_options,
)
from warp_tiles.errors import BuildError
from warp_tiles.launch.script import Discovery, Script, Target
from warp_tiles.reports.functions import compiled_again
from warp_tiles.util.files import has_digests, matches
from warp_tiles.util.threads import side_by_side
from warp_tiles.util.warn import warn

_MOST_THREADS = 32
_MOST_THREADS_ON_A_CLUSTER = 256  # they only wait


@click.command("compile", context_settings=GRAMMAR)
@target_options
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option(
    "--depfile-of",
    "depends",
    type=FILE,
    metavar="FILE",
    help="Write FILE.d, which names everything that FILE, made from this output, depends on: the script and what it "
    "imports, device sources, headers, compiler. For make, ninja and CMake.",
)
@record_options
@scheduler_option
@bundle_option
@policy_option
@json_option
@takes_script
def compile_(
    script: Script, archs: tuple[int, ...], block_dim: int | None, allow_incomplete: bool, folder: Path,
    depends: Path | None, report_file: Path | None, trace_file: Path | None, scheduler: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Compile every module of SCRIPT to a cubin with its metadata in the output folder.

    The script runs as under "plan": its launches are recorded and not executed. Modules are compiled in parallel, here
    or by the workers of a Dask scheduler. The report is written even if the script fails.
    """
    from warp_tiles.api import report
    from warp_tiles.settings import current

    current()  # reports an invalid setting first
    file = script.require()
    require_folders({"the report": report_file, "the trace": trace_file, "the depfile": depends})
    title = f"Build of {script.title} for {', '.join(f'sm_{arch}' for arch in archs)}"
    built: list[dict[str, Any]] = []
    found = Discovery((), "", {}, ())  # of a script that fails
    with script_output_to_stderr(as_json), interrupted_by_signals(), _enabled(scheduler):
        try:
            found = discovered(script, archs, block_dim)
            folders = {arch: folder / f"sm_{arch}" if len(archs) > 1 else folder for arch in archs}
            with output_errors(folder):
                for each in folders.values():
                    each.mkdir(parents=True, exist_ok=True)
            wanted = [(target, arch) for arch in archs for target in found.targets]
            earlier = {path: path.stat().st_ino for each in folders.values() for path in each.glob("*.cubin")}

            def compile_one(target: tuple[Target, int]) -> dict[str, Any]:
                row = _compile(*target, folders[target[1]], earlier)
                built.append(row)  # the report has it, also if another build fails
                return row

            threads = _MOST_THREADS if scheduler is None else _MOST_THREADS_ON_A_CLUSTER
            with kernel_errors(script), output_errors(folder):
                built[:] = side_by_side(compile_one, wanted, threads)  # in order
            if depends is not None:
                write_depfile(depends, file)
        finally:
            record = report()  # a cluster's builds end with it
            record["modules"] = found.with_launched([*record["modules"], *_kept(built)])
            facts = facts_of(script, sys.exc_info()[1] or found.stopped)
            write_records(report_file, trace_file, record, title, facts)
    records = {each.get("output"): each for each in record["modules"]}
    rows = [_with_record(row, records) for row in built]
    if as_json:
        print_json({"modules": rows})
    else:
        _print_rows(rows)
        for text in compiled_again(record["modules"]):
            echo(text)
    if problems := [problem for row in rows for problem in row["launch_problems"]]:
        raise BuildError("; ".join(problems))
    require_complete(script, found.stopped, allow_incomplete)


def _print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    headings = ("module", "arch", "cubin", "size", "built", "from cache", "LTO-IR", "seconds")
    table = [
        (
            row["name"],
            row["target"] or f"sm_{row['arch']}",
            row["cubin"],
            decimal(row["cubin_bytes"]),
            "up to date" if row["up_to_date"] else row["lto_builds"],
            row["lto_hits"],
            decimal(row["lto_bytes"]),
            f"{row['seconds']:.1f}",
        )
        for row in rows
    ]
    print_table("", headings, table)


@contextlib.contextmanager
def _enabled(scheduler: str | None) -> Iterator[None]:
    """warp_tiles in the block, with the workers of a scheduler if one is named."""
    from warp_tiles._warp import require_hooks
    from warp_tiles.api import disable, enable
    from warp_tiles.settings import current

    if scheduler is None:
        enable()
        yield
        return
    with connected(scheduler) as client:
        enable(executor=client.get_executor(pure=False))
        require_same_installation(client, require_hooks("compile").engine.build_context(current()).store)
        yield
        disable()


def _compile(target: Target, arch: int, folder: Path, earlier: Mapping[Path, int]) -> dict[str, Any]:
    from warp_tiles._warp import require_hooks
    from warp_tiles._warp.modules import compile_module, launch_problems
    from warp_tiles.settings import current

    start = time.perf_counter()
    progress, choice = require_hooks("compile").engine.progress, current().progress
    with progress.module(target.module.name, arch, target.block_dim, choice):
        cubin = compile_module(target.module, arch, target.block_dim, folder)
    _warn_of_other_archs(cubin)
    return {
        "name": target.module.name,
        "block_dim": target.block_dim,
        "arch": arch,
        "cubin": str(cubin),
        "cubin_bytes": cubin.stat().st_size,
        "up_to_date": earlier.get(cubin) == cubin.stat().st_ino,  # a new file has replaced it otherwise
        "seconds": round(time.perf_counter() - start, 3),
        "launch_problems": launch_problems(cubin, arch, target.block_dim),
    }


def _warn_of_other_archs(cubin: Path) -> None:
    """Warn if an earlier call compiled the module for another architecture into the same folder.

    The file of metadata has no architecture in its name, and it may hold other sizes of shared memory for each.
    """
    module = cubin.name.partition(".sm")[0]
    for other in cubin.parent.glob(f"{module}.sm*.cubin"):
        if other != cubin and has_digests(other) and not matches(other, [cubin.with_name(f"{module}.meta")]):
            warn(
                f"{other} does not fit {module}.meta any more, which is now that of {cubin.name}. "
                "Remedy: compile all architectures with one command, e.g. --arch 80,90"
            )


def _kept(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records of the modules whose files of an earlier call were kept. They have none of a build."""
    return [
        {name: row[name] for name in ("name", "arch", "block_dim", "cubin_bytes", "up_to_date")}
        | {"output": Path(row["cubin"]).name}
        for row in rows
        if row["up_to_date"]
    ]


def _with_record(row: dict[str, Any], records: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """Add the counts and the target of the build record.

    The counts are 0 for a module without functions and for one that was not built. The latter has the target None.
    """
    record = records.get(Path(row["cubin"]).name, {})
    counts = {name: record.get(name, 0) for name in ("lto_builds", "lto_hits", "lto_bytes")}
    return {**row, **counts, "target": record.get("target")}
