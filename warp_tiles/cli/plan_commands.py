"""``warp-tiles plan`` and ``compile``: what a script needs, printed or built ahead of time."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.filesize import decimal

from warp_tiles import api
from warp_tiles._warp import require_hooks
from warp_tiles.cli import common
from warp_tiles.cli.script import Discovery, Script, Target, discover
from warp_tiles.errors import BuildError, RefusedWorkerError, ScriptError, ToolchainError, WarpTilesError, WorkerError
from warp_tiles.reports import descriptions
from warp_tiles.settings import current
from warp_tiles.util.threads import side_by_side

if TYPE_CHECKING:
    from warp_tiles.compile.toolchain import ToolchainFacts

MOST_THREADS = 32
MOST_THREADS_ON_A_CLUSTER = 256  # they only wait


# ---- the targets of a script


@dataclass(frozen=True)
class Wanted:
    """A script, and what it is planned or built for. ``block_dim`` replaces its own threads per block."""

    script: Script
    archs: tuple[int, ...]
    block_dim: int | None
    allow_incomplete: bool

    @property
    def title(self) -> str:
        return f"{self.script.title} for {', '.join(f'sm_{arch}' for arch in self.archs)}"

    def discovered(self) -> Discovery:
        """What the script would launch. Prints the devices that stood for GPUs that this machine lacks."""
        from warp_tiles._warp.modules import require_target

        for arch in self.archs:
            require_target(arch, self.block_dim)
        discovery = discover(self.script, self.block_dim)
        for missing, device in discovery.substituted.items():
            common.note(f"warp-tiles: {self.script} names {missing}, which this machine lacks: {device} stands for it")
        return discovery

    def targets(self, discovery: Discovery) -> list[tuple[Target, int]]:
        """Each module at each of its block sizes, for each architecture."""
        return [(target, arch) for arch in self.archs for target in discovery.targets]

    @contextlib.contextmanager
    def kernel_errors(self) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError) as error:
            if isinstance(error, WarpTilesError):
                raise
            raise ScriptError(
                f"{self.script}: {error}", remedy="change the kernel, or the provider of its products"
            ) from error


def takes_targets(command: common.F) -> common.F:
    """``[-m] SCRIPT [ARGUMENTS]...``, ``--arch``, ``--block-dim`` and ``--allow-incomplete``, as ``wanted``."""

    @functools.wraps(command)
    def call(
        script: Script, archs: tuple[int, ...], block_dim: int | None, allow_incomplete: bool, **given: Any
    ) -> Any:
        return command(wanted=Wanted(script, archs, block_dim, allow_incomplete), **given)

    block_dim = click.option(
        "--block-dim", type=click.IntRange(1, 1024), help="Threads per block, in place of the script's own."
    )
    return common.arch_option("90", "")(block_dim(common.incomplete_option(common.takes_script(call))))  # type: ignore[return-value]


# ---- plan


@click.command(context_settings=common.GRAMMAR)
@takes_targets
@click.option("--html", "page_file", type=common.FILE, help="Write the plan as a page.", metavar="FILE")
@common.policy_option
@common.json_option
def plan(wanted: Wanted, page_file: Path | None, as_json: bool) -> None:
    """Print the device functions of SCRIPT's kernels, needed or not, the treatment of their loops, and the reasons.
    Products of warp_tiles.matmul, and calls of cholesky and solve, have tables of their own.

    The script runs, but its launches are recorded and not executed. They show the block sizes and the
    generic kernels that the script uses. Where the script needs results, it can ask warp_tiles.is_planning().
    """
    current()  # reports an invalid setting first
    wanted.script.require()
    common.require_folders({"the page": page_file})
    with common.script_output_to_stderr(as_json):
        api.enable()
        discovery = wanted.discovered()
        with wanted.kernel_errors():
            plans = [_planned(target, arch) for target, arch in wanted.targets(discovery)]
    modules = discovery.with_launched(plans)
    products, solves = (
        [plan.to_json() for plan in discovery.products if plan.table == name] for name in ("matmul", "solves")
    )
    document = {"modules": modules, "matmul": products, "solves": solves}
    if page_file is not None:
        facts = common.facts_of(wanted.script, discovery.stopped)
        common.write_page(page_file, document, f"Plan of {wanted.title}", facts)
    if as_json:
        common.print_json(document)
    else:
        shown, others = descriptions.with_tiles(modules)
        for module in shown:
            print_plan(module)
        if products:
            cells = descriptions.product_rows(products)
            common.print_table("products of warp_tiles.matmul", descriptions.PRODUCT_HEADINGS, cells)
        if solves:
            common.print_table(descriptions.SOLVES, descriptions.SOLVE_HEADINGS, descriptions.solve_rows(solves))
        for text in filter(None, (*descriptions.compiled_again(modules), others)):
            common.echo(text)
    common.require_complete(wanted.script, discovery, wanted.allow_incomplete)


def _planned(target: Target, arch: int) -> dict[str, Any]:
    planned = api.plan(target.module, arch=arch, block_dim=target.block_dim)
    packages = require_hooks("plan").engine.build_context(planned.settings).packages
    text = "" if packages is None else packages.planned(planned.name, arch, planned.block_dim)
    return {**planned.to_json(), "kernel_package": text}


def print_plan(module: Mapping[str, Any]) -> None:
    planned = descriptions.functions(module)
    rows = [
        (
            function.title,
            function.planned["dtypes"],
            ", ".join(function.planned["kernels"]),
            function.state,
            function.provider,
            function.reason,
            function.planned["key"][:12],
        )
        for function in planned
        if function.state != descriptions.SKIPPED
    ]
    skipped = Counter(function.reason for function in planned if function.state == descriptions.SKIPPED)
    common.echo(f"module {descriptions.module_title(module)}, kernels: {', '.join(module['kernels'])}")
    if rows:
        common.print_table("", ("function", "dtypes", "kernels", "state", "provider, tile", "reason", "key"), rows)
    for reason, count in skipped.items():
        common.echo(f"{count} function{'s' * (count > 1)} {reason}")
    if loops := descriptions.loop_rows(module):
        common.print_table("loops of products", descriptions.LOOP_HEADINGS, loops)
    for text in descriptions.module_notes(module):
        common.echo(text)


# ---- compile


@click.command("compile", context_settings=common.GRAMMAR)
@takes_targets
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
    type=common.FILE,
    metavar="FILE",
    help="Write FILE.d, which names everything that FILE, made from this output, depends on: the script and what it "
    "imports, device sources, headers, compiler. For make, ninja and CMake.",
)
@common.record_options
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Use the workers of this Dask scheduler, e.g. tcp://host:8786 or tls://host:8786 (docs/cluster.md).",
)
@common.bundle_option
@common.policy_option
@common.json_option
def compile_(
    wanted: Wanted, folder: Path, depends: Path | None, report_file: Path | None, trace_file: Path | None,
    scheduler: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Compile every module of SCRIPT to a cubin with its metadata in the output folder.

    The script runs as under "plan": its launches are recorded and not executed. Modules are compiled in parallel, here
    or by the workers of a Dask scheduler. The report is written even if the script fails.
    """
    current()  # reports an invalid setting first
    file = wanted.script.require()
    common.require_folders({"the report": report_file, "the trace": trace_file, "the depfile": depends})
    built: list[dict[str, Any]] = []
    discovery = Discovery((), "", {}, ())  # of a script that fails
    with common.script_output_to_stderr(as_json), common.interrupted_by_signals(), _enabled(scheduler):
        try:
            discovery = wanted.discovered()
            # Warp's names of metadata have no architecture, and its loader takes one folder
            folders = {arch: folder / f"sm_{arch}" for arch in wanted.archs}
            with common.output_errors(folder):
                for of_arch in folders.values():
                    of_arch.mkdir(parents=True, exist_ok=True)
            earlier = {path: path.stat().st_ino for of_arch in folders.values() for path in of_arch.glob("*.cubin")}

            def compile_one(target: tuple[Target, int]) -> dict[str, Any]:
                row = _compile(*target, folders[target[1]], earlier)
                built.append(row)  # the report has it, also if another build fails
                return row

            threads = MOST_THREADS if scheduler is None else MOST_THREADS_ON_A_CLUSTER
            with wanted.kernel_errors(), common.output_errors(folder):
                built[:] = side_by_side(compile_one, wanted.targets(discovery), threads)  # in order
            if depends is not None:
                common.write_depfile(depends, file)
        finally:
            report = api.report()  # a cluster's builds end with it
            report["modules"] = discovery.with_launched([*report["modules"], *_kept(built)])
            facts = common.facts_of(wanted.script, sys.exc_info()[1] or discovery.stopped)
            common.write_reports(report_file, trace_file, report, f"Build of {wanted.title}", facts)
    builds = {module.get("output"): module for module in report["modules"]}
    rows = [_with_build(row, builds) for row in built]
    common.print_rows(as_json, {"modules": rows}, _HEADINGS, list(map(_cells, rows)))
    for text in () if as_json else descriptions.compiled_again(report["modules"]):
        common.echo(text)
    failures = [failure for row in rows for failure in row["launch_failures"]]
    failures += [
        f"{cubin} is for one of {count} block sizes, whose files have one name by strip_hash: give one with --block-dim"
        for cubin, count in Counter(row["cubin"] for row in rows).items()
        if count > 1
    ]
    if failures:
        raise BuildError("; ".join(dict.fromkeys(failures)))
    common.require_complete(wanted.script, discovery, wanted.allow_incomplete)


_HEADINGS = ("module", "arch", "cubin", "size", "state", "functions", "LTO-IR", "seconds")
_COUNTS = {"lto_builds": "built", "lto_hits": "from cache"}


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        row["target"] or f"sm_{row['arch']}",
        row["cubin"],
        decimal(row["cubin_bytes"]),
        "up to date" if row["up_to_date"] else "from cache" if row["found"] else "built",
        ", ".join(f"{row[name]} {text}" for name, text in _COUNTS.items() if row[name]),
        decimal(row["lto_bytes"]) if row["lto_bytes"] else "",
        f"{row['seconds']:.1f}",
    )


@contextlib.contextmanager
def _enabled(scheduler: str | None) -> Iterator[None]:
    """warp_tiles in the block, with the workers of a scheduler if one is named."""
    if scheduler is None:
        api.enable()
        yield
        return
    with connected(scheduler) as client:
        api.enable(executor=client.get_executor(pure=False))
        require_same_installation(client, require_hooks("compile").engine.build_context(current()).facts)
        yield
        api.disable()


def _compile(target: Target, arch: int, folder: Path, earlier: Mapping[Path, int]) -> dict[str, Any]:
    from warp_tiles._warp.modules import compile_module, launch_failures

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
        "launch_failures": launch_failures(cubin, arch, target.block_dim),
    }


def _kept(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a report has of modules whose files of an earlier call were kept: nothing about a build."""
    return [
        {name: row[name] for name in ("name", "arch", "block_dim", "cubin_bytes", "up_to_date")}
        | {"output": Path(row["cubin"]).name}
        for row in rows
        if row["up_to_date"]
    ]


def _with_build(row: dict[str, Any], builds: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """Add what the report says. A module that was not built has counts of 0, and the target None."""
    build = builds.get(Path(row["cubin"]).name, {})
    counts = {name: build.get(name, 0) for name in ("lto_builds", "lto_hits", "lto_bytes")}
    return {**row, **counts, "found": build.get("found", False), "target": build.get("target")}


# ---- the cluster of Dask whose workers compile: --scheduler

_CONNECT_S = 5.0
_WORKERS_S = 5.0


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of a Dask scheduler that has workers."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ToolchainError(f"--scheduler needs Dask: {error}", "pip install 'warp-tiles[dask]'") from error
    for name in ("distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.ERROR)  # the errors here say the same
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False, name="warp-tiles")
    except Exception as error:  # of many classes: no reply, no such host, an unknown protocol, no certificate
        raise WorkerError(
            f"the scheduler {address} cannot be reached: {_first_line(error)}",
            remedy="give the address that `dask scheduler` prints, e.g. tcp://host:8786, and check that this machine "
            "reaches it; for tls:// set Dask's certificates (docs/cluster.md)",
        ) from error
    try:
        from distributed import TimeoutError as DaskTimeoutError  # another class than Python's before 3.11

        try:
            client.wait_for_workers(1, timeout=_WORKERS_S)
        except DaskTimeoutError as error:
            raise WorkerError(
                f"the scheduler {address} has no worker", remedy=f"start some: dask worker {address} --nworkers 4"
            ) from error
        yield client
    finally:
        with contextlib.suppress(Exception):  # the results are complete
            client.close(timeout=2)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def require_same_installation(client: Any, facts: ToolchainFacts) -> None:
    """Check all workers before the first request, so that each unlike one is named."""
    from warp_tiles.build.executor import (
        ALL,
        SAME_PACKAGES,
        Installation,
        Job,
        Reply,
        differences,
        executor_error,
        run_job,
    )

    expected = tuple((name, fact) for name, fact in Installation(facts).facts(ALL) if fact.digest)
    job, refused = Job(None, expected, warp_toolkit=facts.warp_toolkit), []
    try:
        replies = client.run(run_job, job, on_error="return", wait=True)
    except Exception as error:
        raise executor_error(error) from error
    for worker, reply in replies.items():
        if isinstance(reply, Reply) and reply.failure is None:
            text = differences(expected, reply.found)
        else:
            failure = reply.failure if isinstance(reply, Reply) else reply
            text = (
                f"{type(failure).__name__}: {_first_line(failure)}" if isinstance(failure, Exception) else repr(reply)
            )
        if text:
            refused.append(f"{worker}: {text}")
    if refused:
        raise RefusedWorkerError(
            f"{len(refused)} of {len(replies)} workers are refused:\n  " + "\n  ".join(refused), SAME_PACKAGES
        )
