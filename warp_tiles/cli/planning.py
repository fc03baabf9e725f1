"""``warp-tiles plan``, ``compile`` and ``bundle``: what a script needs, printed or built ahead of time."""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
from rich.filesize import decimal

from warp_tiles import api
from warp_tiles._warp import require_hooks
from warp_tiles.cli.cluster import connected, require_same_installation
from warp_tiles.cli.output import (
    FILE,
    F,
    bundle_option,
    echo,
    facts_of,
    interrupted_by_signals,
    json_option,
    note,
    output_errors,
    policy_option,
    print_json,
    print_rows,
    print_table,
    record_options,
    require_folders,
    script_output_to_stderr,
    write_depfile,
    write_page,
    write_records,
)
from warp_tiles.cli.scripts import GRAMMAR, arch_option, incomplete_option, require_complete, takes_script
from warp_tiles.errors import BuildError, ScriptError, WarpTilesError
from warp_tiles.launch.script import Discovery, Script, Target, discover
from warp_tiles.reports.descriptions import (
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
from warp_tiles.settings import current, override
from warp_tiles.store import ANY_TOOLCHAIN, MODULE, RECORDS, TOOLCHAIN
from warp_tiles.store.keys import SigningKey, signer_of
from warp_tiles.store.paths import cache_root
from warp_tiles.tuning.store import count_of, open_store
from warp_tiles.util.threads import side_by_side

_MOST_THREADS = 32
_MOST_THREADS_ON_A_CLUSTER = 256  # they only wait


# ---- the targets of a script


@dataclass(frozen=True)
class _Wanted:
    """A script, and what it is planned or built for.

    Attributes:
        block_dim: Threads per block, in place of the script's own; None for these.
        allow_incomplete: Accept a script that stops early.
    """

    script: Script
    archs: tuple[int, ...]
    block_dim: int | None
    allow_incomplete: bool

    @property
    def title(self) -> str:
        """The script and its architectures."""
        return f"{self.script.title} for {', '.join(f'sm_{arch}' for arch in self.archs)}"

    def discovered(self) -> Discovery:
        """What the script would launch. Prints the devices that stood for GPUs that this machine lacks.

        Raises:
            PlanError: There is no such target.
            ScriptError: No kernel was found.
        """
        from warp_tiles._warp.modules import require_target

        for arch in self.archs:
            require_target(arch, self.block_dim)
        found = discover(self.script, self.block_dim)
        for missing, device in found.substituted.items():
            note(f"warp-tiles: {self.script} names {missing}, which this machine lacks: {device} stands for it")
        return found

    def targets(self, found: Discovery) -> list[tuple[Target, int]]:
        """Each module at each of its block sizes, for each architecture."""
        return [(target, arch) for arch in self.archs for target in found.targets]

    @contextlib.contextmanager
    def kernel_errors(self) -> Iterator[None]:
        """Convert Warp's errors about a kernel to an error that is printed without a traceback.

        Raises:
            ScriptError: In place of a TypeError or ValueError.
        """
        try:
            yield
        except (TypeError, ValueError) as error:
            if isinstance(error, WarpTilesError):
                raise
            raise ScriptError(
                f"{self.script}: {error}", remedy="change the kernel, or the provider of its products"
            ) from error


def _takes_targets(command: F) -> F:
    """``[-m] SCRIPT [ARGUMENTS]...``, ``--arch``, ``--block-dim`` and ``--allow-incomplete``, as ``wanted``."""

    @functools.wraps(command)
    def call(
        script: Script, archs: tuple[int, ...], block_dim: int | None, allow_incomplete: bool, **given: Any
    ) -> Any:
        return command(wanted=_Wanted(script, archs, block_dim, allow_incomplete), **given)

    block_dim = click.option(
        "--block-dim", type=click.IntRange(1, 1024), help="Threads per block, in place of the script's own."
    )
    return arch_option("90", "")(block_dim(incomplete_option(takes_script(call))))  # type: ignore[return-value]


# ---- plan


@click.command(context_settings=GRAMMAR)
@_takes_targets
@click.option("--html", "page_file", type=FILE, help="Write the plan as a page.", metavar="FILE")
@policy_option
@json_option
def plan(wanted: _Wanted, page_file: Path | None, as_json: bool) -> None:
    """Print the device functions of SCRIPT's kernels, needed or not, the treatment of their loops, and the reasons.
    Products of warp_tiles.matmul have a table of their own.

    The script runs, but its launches are recorded and not executed. They show the block sizes and the
    generic kernels that the script uses. Where the script needs results, it can ask warp_tiles.is_planning().
    """
    current()  # reports an invalid setting first
    wanted.script.require()
    require_folders({"the page": page_file})
    with script_output_to_stderr(as_json):
        api.enable()
        found = wanted.discovered()
        with wanted.kernel_errors():
            plans = [_planned(target, arch) for target, arch in wanted.targets(found)]
    document = {
        "modules": found.with_launched(plans),
        "matmul": [product.to_json() for product in found.products],
    }
    if page_file is not None:
        write_page(page_file, document, f"Plan of {wanted.title}", facts_of(wanted.script, found.stopped))
    if as_json:
        print_json(document)
    else:
        _print_plans(document)
    require_complete(wanted.script, found, wanted.allow_incomplete)


def _planned(target: Target, arch: int) -> dict[str, Any]:
    found = api.plan(target.module, arch=arch, block_dim=target.block_dim)
    packages = require_hooks("plan").engine.build_context(found.settings).packages
    text = "" if packages is None else packages.planned(found.name, arch, found.block_dim)
    return {**found.to_json(), "kernel_package": text}


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


# ---- compile


@click.command("compile", context_settings=GRAMMAR)
@_takes_targets
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Write cubins and metadata here, those of an architecture in its folder, such as DIR/sm_90, which "
    "wp.load_aot_module(..., module_dir=) takes.",
)
@click.option(
    "--depfile-of",
    "depends",
    type=FILE,
    metavar="FILE",
    help="Write FILE.d, which names everything that FILE, made from this output, depends on: the script and what it "
    "imports, device sources, headers, compiler. For make, ninja and CMake.",
)
@record_options
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Use the workers of this Dask scheduler, e.g. tcp://host:8786 or tls://host:8786 (docs/cluster.md).",
)
@bundle_option
@policy_option
@json_option
def compile_(
    wanted: _Wanted, folder: Path, depends: Path | None, report_file: Path | None, trace_file: Path | None,
    scheduler: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Compile every module of SCRIPT to a cubin with its metadata in the output folder.

    The script runs as under "plan": its launches are recorded and not executed. Modules are compiled in parallel, here
    or by the workers of a Dask scheduler. The report is written even if the script fails.
    """
    current()  # reports an invalid setting first
    file = wanted.script.require()
    require_folders({"the report": report_file, "the trace": trace_file, "the depfile": depends})
    built: list[dict[str, Any]] = []
    found = Discovery((), "", {}, ())  # of a script that fails
    with script_output_to_stderr(as_json), interrupted_by_signals(), _enabled(scheduler):
        try:
            found = wanted.discovered()
            # Warp's names of metadata have no architecture, and its loader takes one folder
            folders = {arch: folder / f"sm_{arch}" for arch in wanted.archs}
            with output_errors(folder):
                for each in folders.values():
                    each.mkdir(parents=True, exist_ok=True)
            earlier = {path: path.stat().st_ino for each in folders.values() for path in each.glob("*.cubin")}

            def compile_one(target: tuple[Target, int]) -> dict[str, Any]:
                row = _compile(*target, folders[target[1]], earlier)
                built.append(row)  # the report has it, also if another build fails
                return row

            threads = _MOST_THREADS if scheduler is None else _MOST_THREADS_ON_A_CLUSTER
            with wanted.kernel_errors(), output_errors(folder):
                built[:] = side_by_side(compile_one, wanted.targets(found), threads)  # in order
            if depends is not None:
                write_depfile(depends, file)
        finally:
            record = api.report()  # a cluster's builds end with it
            record["modules"] = found.with_launched([*record["modules"], *_kept(built)])
            facts = facts_of(wanted.script, sys.exc_info()[1] or found.stopped)
            write_records(report_file, trace_file, record, f"Build of {wanted.title}", facts)
    records = {each.get("output"): each for each in record["modules"]}
    rows = [_with_record(row, records) for row in built]
    if as_json:
        print_json({"modules": rows})
    else:
        _print_rows(rows)
        for text in compiled_again(record["modules"]):
            echo(text)
    problems = [problem for row in rows for problem in row["launch_problems"]]
    problems += [
        f"{cubin} is for one of {count} block sizes, whose files have one name by strip_hash: give one with --block-dim"
        for cubin, count in Counter(row["cubin"] for row in rows).items()
        if count > 1
    ]
    if problems:
        raise BuildError("; ".join(dict.fromkeys(problems)))
    require_complete(wanted.script, found, wanted.allow_incomplete)


_COUNTS = {"lto_builds": "built", "lto_hits": "from cache"}


def _print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    headings = ("module", "arch", "cubin", "size", "state", "functions", "LTO-IR", "seconds")
    table = [
        (
            row["name"],
            row["target"] or f"sm_{row['arch']}",
            row["cubin"],
            decimal(row["cubin_bytes"]),
            "up to date" if row["up_to_date"] else "from cache" if row["found"] else "built",
            ", ".join(f"{row[name]} {text}" for name, text in _COUNTS.items() if row[name]),
            decimal(row["lto_bytes"]) if row["lto_bytes"] else "",
            f"{row['seconds']:.1f}",
        )
        for row in rows
    ]
    print_table("", headings, table)


@contextlib.contextmanager
def _enabled(scheduler: str | None) -> Iterator[None]:
    """warp_tiles in the block, with the workers of a scheduler if one is named."""
    if scheduler is None:
        api.enable()
        yield
        return
    with connected(scheduler) as client:
        api.enable(executor=client.get_executor(pure=False))
        require_same_installation(client, require_hooks("compile").engine.build_context(current()).store)
        yield
        api.disable()


def _compile(target: Target, arch: int, folder: Path, earlier: Mapping[Path, int]) -> dict[str, Any]:
    from warp_tiles._warp.modules import compile_module, launch_problems

    start = time.perf_counter()
    progress, choice = require_hooks("compile").engine.progress, current().progress
    with progress.module(target.module.name, arch, target.block_dim, choice):
        cubin = compile_module(target.module, arch, target.block_dim, folder)
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


def _kept(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records of the modules whose files of an earlier call were kept. They have none of a build."""
    return [
        {name: row[name] for name in ("name", "arch", "block_dim", "cubin_bytes", "up_to_date")}
        | {"output": Path(row["cubin"]).name}
        for row in rows
        if row["up_to_date"]
    ]


def _with_record(row: dict[str, Any], records: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """Add what the build record says: counts, the target, and whether the linked module was found.

    The counts are 0 for a module without functions and for one that was not built. The latter has the target None.
    """
    record = records.get(Path(row["cubin"]).name, {})
    counts = {name: record.get(name, 0) for name in ("lto_builds", "lto_hits", "lto_bytes")}
    return {**row, **counts, "found": record.get("found", False), "target": record.get("target")}


# ---- bundle


@click.command(context_settings=GRAMMAR)
@_takes_targets
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File of the bundle, or folder of the wheel.")
@click.option("--wheel", metavar="NAME", help="Write a wheel of kernels, NAME or NAME==VERSION, for several scripts.")
@click.option("--client", metavar="NAME", help="The distribution of the kernels, where the scripts do not show it.")
@json_option
def bundle(wanted: _Wanted, output: Path | None, wheel: str | None, client: str | None, as_json: bool) -> None:
    """Build every module of SCRIPT, sign it, and write all to one bundle.

    The script runs as under "plan": its launches are recorded and not executed. The bundle also holds the tuning
    records, and the facts about the compiler that keys contain. `warp-tiles run --bundle FILE SCRIPT` needs no more.

    With --wheel, every argument is a script, with its own arguments in quotes: "train.py --size 4". Each runs as under
    "warm", and the wheel holds what all launch. Installed, it is found without an option.
    """
    if wheel is not None:
        from warp_tiles.cli.bundle_wheel import bundle_wheel

        if wanted.block_dim is not None:
            raise click.UsageError("--block-dim does not go with --wheel")
        bundle_wheel(wanted.script, wanted.archs, wheel, client, output, wanted.allow_incomplete, as_json)
        return
    if output is None or client is not None:
        raise click.UsageError("give -o FILE; --client goes with --wheel")
    _bundle(wanted, output, as_json)


def _bundle(wanted: _Wanted, file: Path, as_json: bool) -> None:
    from warp_tiles._warp.modules import compile_module
    from warp_tiles.store.bundle import write_bundle

    now = current()
    wanted.script.require()
    require_folders({"the bundle": file})
    signer = signer_of(now)
    own_records = cache_root(now.cache_dir) / "tuning"
    records = (*now.record_paths, *([own_records] if own_records.is_dir() else []))  # a missing folder is warned of
    with script_output_to_stderr(as_json), interrupted_by_signals(), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        kept: Literal["all", "tiles"] = "all" if now.modules == "all" else "tiles"
        with override(cache_dir=folder, modules=kept, remote="", record_paths=records, kernel_packages="none"):
            api.enable()
            found = wanted.discovered()

            def build(job: tuple[Target, int]) -> None:
                target, arch = job
                compile_module(target.module, arch, target.block_dim, folder / f"sm_{arch}")

            with wanted.kernel_errors():
                side_by_side(build, wanted.targets(found), _MOST_THREADS)
            objects = _signed(signer)
        write_bundle(file, sorted(objects))
    held = {key for _, key, _ in objects}
    built = found.with_launched(api.report()["modules"])
    rows = [_bundled(record, held) for record in built if "output" in record]
    rows.sort(key=lambda row: (row["module"], row["arch"], row["block_dim"]))  # modules are recorded as they end
    for row in rows:
        if not row["bundled"]:
            note(f"warp-tiles: module {row['module']} for sm_{row['arch']} is not in the bundle: {row['reason']}")
    data = {"bundle": str(file), "bytes": file.stat().st_size, "signer": str(signer.public), "modules": rows}
    table = [(row["module"], f"sm_{row['arch']}", row["block_dim"], decimal(row["cubin_bytes"])) for row in rows]
    print_rows(as_json, data, ("module", "target", "threads", "cubin"), table, str(file))
    for text in () if as_json else compiled_again(built):
        echo(text)
    require_complete(wanted.script, found, wanted.allow_incomplete)


def _bundled(record: dict[str, Any], held: set[str]) -> dict[str, Any]:
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
    from warp_tiles.build.deployment import facts_entry
    from warp_tiles.store.envelope import pack

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
