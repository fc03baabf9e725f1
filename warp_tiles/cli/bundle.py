"""``warp-tiles bundle``: everything that a script needs on machines that build nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.filesize import decimal

from warp_tiles.cli.output import (
    FILE,
    echo,
    interrupted_by_signals,
    json_option,
    note,
    print_rows,
    require_folders,
    script_output_to_stderr,
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
from warp_tiles.reports.functions import compiled_again
from warp_tiles.util.threads import side_by_side

if TYPE_CHECKING:
    from warp_tiles.launch.script import Target
    from warp_tiles.store.keys import SigningKey

_MOST_THREADS = 32


@click.command(context_settings=GRAMMAR)
@target_options
@click.option("-o", "--output", "file", type=FILE, required=True)
@json_option
@takes_script
def bundle(
    script: Script, archs: tuple[int, ...], block_dim: int | None, allow_incomplete: bool, file: Path, as_json: bool
) -> None:
    """Build every module of SCRIPT, sign it, and write all to one bundle.

    The script runs as under "plan": its launches are recorded and not executed. The bundle also holds the tuning
    records, and the facts about the compiler that keys contain. `warp-tiles run --bundle FILE SCRIPT` needs no more.
    """
    from warp_tiles._warp.modules import compile_module
    from warp_tiles.api import enable, report
    from warp_tiles.settings import current, override
    from warp_tiles.store.bundle import write_bundle
    from warp_tiles.store.keys import signer_of
    from warp_tiles.store.paths import cache_root

    now = current()
    require_folders({"the bundle": file})
    signer = signer_of(now)
    own_records = cache_root(now.cache_dir) / "tuning"
    records = (*now.record_paths, *([own_records] if own_records.is_dir() else []))  # a missing folder is warned of
    with script_output_to_stderr(as_json), interrupted_by_signals(), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with override(cache_dir=folder, cache_modules=True, remote="", record_paths=records):
            enable()
            found = discovered(script, archs, block_dim)
            jobs = [(target, arch) for arch in archs for target in found.targets]

            def build(job: tuple[Target, int]) -> None:
                target, arch = job
                compile_module(target.module, arch, target.block_dim, folder / f"sm_{arch}")

            with kernel_errors(script):
                side_by_side(build, jobs, _MOST_THREADS)
            objects = _signed(signer)
        write_bundle(file, sorted(objects))
    held = {key for _, key, _ in objects}
    built = found.with_launched(report()["modules"])
    rows = [_row(record, held) for record in built if "output" in record]
    rows.sort(key=lambda row: (row["module"], row["arch"], row["block_dim"]))  # modules are recorded as they end
    for row in rows:
        if not row["bundled"]:
            note(f"warp-tiles: module {row['module']} for sm_{row['arch']} is not in the bundle: {row['reason']}")
    data = {"bundle": str(file), "bytes": file.stat().st_size, "signer": str(signer.public), "modules": rows}
    table = [(row["module"], f"sm_{row['arch']}", row["block_dim"], decimal(row["cubin_bytes"])) for row in rows]
    print_rows(as_json, data, ("module", "target", "threads", "cubin"), table, str(file))
    for text in () if as_json else compiled_again(built):
        echo(text)
    require_complete(script, found.stopped, allow_incomplete)


def _row(record: dict[str, Any], held: set[str]) -> dict[str, Any]:
    bundled = record["module_key"] in held
    reason = record["linker_reason"] or "it names files of this machine"
    if record["lto_builds"] + record["lto_hits"] == 0:
        reason = "it has no function from here, so Warp builds it"
    return {
        "module": record["name"],
        "arch": record["arch"],
        "block_dim": record["block_dim"],
        "cubin_bytes": record["cubin_bytes"],
        "bundled": bundled,
        "reason": "" if bundled else reason,
    }


def _signed(signer: SigningKey) -> list[tuple[str, str, bytes]]:
    """The signed objects of all modules, of the tuning records, and of the facts about the toolchain."""
    from warp_tiles._warp import require_hooks
    from warp_tiles.build.deployment import facts_entry
    from warp_tiles.settings import current
    from warp_tiles.store import ANY_TOOLCHAIN, MODULE, RECORDS, TOOLCHAIN
    from warp_tiles.store.envelope import pack
    from warp_tiles.tuning.store import count_of, open_store

    now = current()
    engine = require_hooks("bundle").engine
    context = engine.build_context(now)
    found = [(TOOLCHAIN, facts_entry(now, context.store, engine.device_sources(now)), ANY_TOOLCHAIN)]
    modules = (context.modules.read_verified(item.key) for item in context.modules.entries())
    found += [(MODULE, entry, context.toolchain_text(MODULE)) for entry in modules if entry is not None]
    records = open_store(now).entry(signer=signer)
    if count_of(records):
        found.append((RECORDS, records, ANY_TOOLCHAIN))
    return [(kind, entry.key, pack(kind, entry, toolchain, signer)) for kind, entry, toolchain in found]
