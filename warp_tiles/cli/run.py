"""``warp-tiles run`` and ``warm``: a script with warp_tiles enabled, and one whose launches are compiled ahead of time.

``run`` enables warp_tiles in the unchanged script and in the processes that it starts.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from warp_tiles import api
from warp_tiles._warp import is_enabled, require_hooks
from warp_tiles.build.ahead import FAILURES, AheadModule, build_ahead, compiled
from warp_tiles.build.start_list import StartModule, read_start_list
from warp_tiles.cli import common
from warp_tiles.cli.cache_commands import counted, require_push, sign_and_write
from warp_tiles.cli.script import Discovery, Script, discover
from warp_tiles.errors import PlanError, RecordError, SettingError, unless_signalled
from warp_tiles.settings import (
    COMMAND_LINE,
    configure,
    configure_by_option,
    configured,
    current,
    keep_start_list,
    override,
)
from warp_tiles.store import cache_root, start_file
from warp_tiles.util.threads import side_by_side, wait_all
from warp_tiles.util.warn import warn

if TYPE_CHECKING:
    from warp_tiles.array_products.tensor_kernel import TensorKernel
    from warp_tiles.build.engine import Engine
    from warp_tiles.store.key import CacheKey
    from warp_tiles.store.transfer import Transfer


@click.command(context_settings=common.GRAMMAR)
@common.record_options
@common.bundle_option
@common.policy_option
@click.option(
    "--start",
    type=common.FILE,
    help="Keep the start list in this file, e.g. for a team. Without it, each script has one in the cache, if "
    "warp-tiles warm has made it, or if modules=all or a remote store is set.",
)
@click.option("--no-start", "keeps", is_flag=True, flag_value=False, default=True, help="Keep no start list.")
@common.json_option
@common.takes_script
def run(
    script: Script, report_file: Path | None, trace_file: Path | None, start: Path | None, keeps: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run SCRIPT with ARGUMENTS under warp_tiles.

    Options of warp-tiles come before SCRIPT. Everything after SCRIPT belongs to the script. The report
    holds the plan and the log of the build of every module of the run, even if the script fails.
    """
    from warp_tiles._warp.internals import find
    from warp_tiles._warp.lookups import gpus_here

    current()  # reports an invalid setting first
    script.require()
    common.require_folders({"the report": report_file, "the trace": trace_file})
    try:
        with common.script_output_to_stderr(as_json):
            if start is not None:
                api.require_start_file(start)
                if not gpus_here():
                    common.note(
                        f"warp-tiles: this machine has no GPU, so {start} does not record what the script launches; "
                        f"`warp-tiles warm --arch 90 --start {start} {script}` needs none"
                    )
            api.enable()
            if is_enabled():
                require_hooks("run").start_is_fixed = start is not None or not keeps
                now = current()
                file = start or start_file(cache_root(now.cache_dir), script.require())
                if keeps and (start or now.all_modules or file.exists()):
                    require_hooks("run").begin_start(file)
            with enabled_in_children():
                try:
                    script.run()
                finally:
                    # the script may have disabled it, or closed its output
                    if is_enabled() and not getattr(sys.stdout, "closed", True):
                        hooks = require_hooks("run")
                        parts = hooks.engine.log, hooks.program_start
                        text = "; ".join(filter(None, (part.summary() for part in parts if part is not None)))
                        find("logger.log_info")(f"warp_tiles: {text}")
    finally:
        if is_enabled() and (report_file or trace_file or as_json):
            report, facts = api.report(), common.facts_of(script, sys.exc_info()[1])
            common.write_reports(report_file, trace_file, report, f"Run of {script.title} with warp_tiles", facts)
            if as_json:
                common.print_json(report)


# ---- warm

Row = dict[str, Any]


@click.command(context_settings=common.GRAMMAR)
@click.option(
    "--record", type=common.FILE, metavar="FILE", help="Compile the modules of this start list; no script runs."
)
@click.option(
    "--start", type=common.FILE, metavar="FILE", help="Leave SCRIPT's start list in this file, not in the cache."
)
@common.arch_option(None, "; by default those of this machine's GPUs, or each module's own with --record")
@click.option("--push", is_flag=True, help="Sign the modules, and write them to the remote store. You vouch for them.")
@common.incomplete_option
@common.json_option
@lambda command: common.takes_script(command, required=False)
def warm(
    script: Script | None, record: Path | None, start: Path | None, archs: tuple[int, ...], push: bool,
    allow_incomplete: bool, as_json: bool,
) -> None:  # fmt: skip
    """Compile what SCRIPT launches into the cache, so that its next start finds it, also without a GPU.

    SCRIPT runs once, and its launches compute nothing: results that it saves are zeros. It can ask
    warp_tiles.is_planning(). Each module is compiled as it is at each of its launches. The start list is left where
    "warp-tiles run" and enable() find it. Modules with FFTs and modules for the CPU are left to their launches. With
    --record, modules whose source depends on the architecture are left out for another one.

    The exit status is 1 if a module cannot be compiled.
    """
    from warp_tiles._warp.modules import require_target

    if (script is None) == (record is None) or (record is not None and start is not None):
        raise click.UsageError("give a script or --record FILE, and --start FILE only with a script")
    now = current()
    if not now.rules.builds or now.policy == "off":
        raise SettingError(f"{now.named('policy')} is {now.policy!r}, which builds nothing", "set the policy to auto")
    if push:
        require_push()  # before the builds, which may take long
    began, discovery = time.perf_counter(), None
    if script is not None:
        script.require()
        common.note(
            f"warp-tiles: the launches of {script} compute nothing, so results that it saves are zeros; it can ask "
            "warp_tiles.is_planning()"
        )
    # what a package has is not pushed
    own: AbstractContextManager[object] = override(kernel_packages="none") if push else nullcontext()
    with own, common.interrupted_by_signals(), common.script_output_to_stderr(as_json):
        for arch in archs:
            require_target(arch, None)
        if script is not None:
            start, rows, discovery = _of_script(script, archs, start)
        else:
            assert record is not None
            rows = _of_list(record, archs)
    counts = Counter(row["state"] for row in rows)
    common.note_reasons(rows)
    pushed: dict[str, Transfer] = {}
    try:
        if push:
            pushed = sign_and_write([row["key"] for row in rows if row["key"]])
    finally:  # the modules are compiled, also if the push fails
        text = ", ".join(f"{count} {state}" for state, count in counts.items()) or "no module"
        text += "".join(f"; {transfer.moved} pushed, {transfer.failed} not pushed" for transfer in pushed.values())
        text += f"; start list {start}" if start else ""
        data: dict[str, Any] = {"modules": rows, "start": start and str(start)}
        data |= {f"push_{kind}": vars(transfer) for kind, transfer in pushed.items()}
        common.print_result(as_json, data, f"{script or record}: {text} ({time.perf_counter() - began:.1f} s)")
    if script is not None and discovery is not None:
        otherwise = ", or run it once with `warp-tiles run --start FILE`, and give `warp-tiles warm --record FILE`"
        common.require_complete(script, discovery, allow_incomplete, otherwise)
    sys.exit(1 if counts["failed"] or any(transfer.failed for transfer in pushed.values()) else 0)


def _of_list(file: Path, archs: Sequence[int]) -> list[Row]:
    """Compile the modules of a start list, for these architectures or for their own."""
    import warp

    from warp_tiles.build.engine import Engine
    from warp_tiles.tuning.snapshots import TunedSnapshots

    kept = read_start_list(file)
    if kept is None or kept.warp != str(warp.__version__):
        what = "is missing" if kept is None else f"is of Warp {kept.warp}, and Warp {warp.__version__} is installed"
        raise RecordError(f"the start list {file} {what}", "`warp-tiles warm --start FILE SCRIPT` writes one")
    jobs = [
        (module, arch)
        for module in kept.modules
        for arch in (archs if archs and module.output == "cubin" else (module.arch,))
    ]
    engine = Engine(warp_toolkit=warp.get_cuda_toolkit_version(), tuned=TunedSnapshots())
    context = engine.build_context(current())

    def build(job: tuple[StartModule, int]) -> Row:
        module, arch = job
        row = _row(module.name, module.block_dim, arch, module.output, module.reason_bound(arch))
        try:
            if not row["reason"]:
                _build(row, lambda: build_ahead(engine, context, replace(module, arch=arch), waits=True))
        finally:
            done()
        return row

    try:
        with counted("modules", len(jobs)) as done:
            return side_by_side(build, jobs, context.pool.jobs)
    finally:
        engine.close()


def _row(module: str, block_dim: int, arch: int, output: str, reason: str = "") -> Row:
    return {
        "module": module, "block_dim": block_dim, "arch": arch, "output": output, "key": "", "state": "left out",
        "reason": reason, "seconds": 0.0, "packages": [],
    }  # fmt: skip


def _build(row: Row, build: Callable[[], tuple[CacheKey, bool] | None]) -> None:
    """Build a module, and put its key and state, or the reason against it, into its row."""
    started = time.perf_counter()
    try:
        if (keyed := build()) is None:
            row["reason"] = "no key covers its code, or its functions under these settings"
        else:
            row.update(key=keyed[0].digest, state="compiled" if keyed[1] else "present")
    except unless_signalled(*FAILURES) as error:
        _fail(row, error)
    row["seconds"] = round(time.perf_counter() - started, 3)


def _fail(row: Row, error: Exception) -> None:
    log = getattr(error, "log", "").strip()
    row.update(state="failed", reason="\n".join(filter(None, (getattr(error, "message", str(error)), log))))


def _of_script(script: Script, archs: Sequence[int], start: Path | None) -> tuple[Path | None, list[Row], Discovery]:
    now = current()
    if start is not None:
        api.require_start_file(start)
    file = script.require()
    api.enable()
    hooks = require_hooks("warm")
    hooks.start_is_fixed = start is not None
    hooks.begin_start(start or start_file(cache_root(now.cache_dir), file))
    modules = LaunchedModules(hooks.engine, archs)
    try:
        discovery = discover(script, at_launch=modules.at_launch)
        modules.finish()
        kernels = compile_matmul_kernels(hooks.engine, discovery, modules.archs)
        started = hooks.program_start
        assert started is not None
        for generated, row in zip(modules.generated, modules.rows):
            if generated is not None and row["key"]:
                started.note(generated.module, generated.key.digest)
    finally:
        api.disable()  # writes the list
    return started.file if started.file.exists() else None, [*modules.rows, *kernels], discovery


def compile_matmul_kernels(engine: Engine, discovery: Discovery, archs: Collection[int]) -> list[Row]:
    """Compile the kernels of ``warp_tiles.matmul`` that Warp does not launch, with a row each."""
    from warp_tiles.array_products.tensor_matmul import built_kernel, planned_kernels
    from warp_tiles.gemm.hardware import WGMMA_ARCH

    now = current()

    def build(kernel: TensorKernel) -> Row:
        reason = "Warp generates the code of its epilogue at the call" if kernel.has_function else ""
        row = _row(kernel.name, kernel.threads, WGMMA_ARCH, "cubin", reason)

        def built() -> tuple[CacheKey, bool]:
            entry, is_new = built_kernel(engine, kernel, now)
            row["cubin_bytes"] = len(entry.payload)
            return entry.manifest.key, is_new

        if not reason:
            _build(row, built)
        return row

    kernels = planned_kernels(discovery.products) if WGMMA_ARCH in archs else []
    return side_by_side(build, kernels, engine.build_context(now).pool.jobs)


class LaunchedModules:
    """The modules of a program whose launches are replaced, each compiled as it is at its launch, with a row each."""

    def __init__(self, engine: Engine, archs: Sequence[int] = ()) -> None:
        from warp_tiles._warp.lookups import gpus_here

        gpus = gpus_here()
        self._targets = [(None, arch) for arch in archs] or [(device, arch) for arch, device in gpus.items()]
        if not self._targets:
            raise PlanError("this machine has no GPU, and no architecture is named", "give one or more: --arch 80,90")
        self.archs = {arch for _, arch in self._targets}
        self._engine, self._has_gpus = engine, bool(gpus)
        self._seen: set[tuple[object, ...]] = set()
        self._early: dict[tuple[object, ...], tuple[AheadModule | None, Row]] = {}  # before their launches
        self._queue = engine.build_context(current()).queue
        self._builds: list[Future[None]] = []
        self.generated: list[AheadModule | None] = []
        self.rows: list[Row] = []

    def at_launch(self, module: Any, device: Any, threads: int) -> None:
        """Generate a module, and queue its build, if it was not launched as it is now.

        A long module that calls it comes first: it will be launched, too, and the command ends with the last build.
        """
        from warp_tiles._warp.lookups import program_at_launch
        from warp_tiles._warp.reload import kernels_of, long_callers

        if self._has_gpus and device.is_cpu:  # elsewhere, the CPU stands for the GPU
            return
        for target, arch in self._targets:
            wanted = module, kernels_of(module), arch, threads
            if wanted in self._seen:
                continue
            self._seen.add(wanted)
            for caller in long_callers(module):
                usual = int(caller.options["block_dim"])
                early = caller, kernels_of(caller), arch, usual
                if early not in self._seen and early not in self._early:
                    self._early[early] = self._generate(caller, target, arch, usual, is_launched=False)
            generated, row = self._early.get(wanted, (None, None))
            # a constant may have changed since
            if generated is None or row is None or generated.module.program != program_at_launch(module, threads):
                generated, row = self._generate(module, target, arch, threads)
            self.generated.append(generated)
            self.rows.append(row)

    def _generate(
        self, module: Any, target: Any, arch: int, threads: int, *, is_launched: bool = True
    ) -> tuple[AheadModule | None, Row]:
        """Generate a module, and queue its build, which completes the row."""
        from warp_tiles._warp.reload import generate_launched

        generated, row = None, _row(str(module.name), threads, arch, "cubin")
        # the Python packages that define its kernels, by the first part of their names
        row["packages"] = sorted({str(k.func.__module__).partition(".")[0] for k in module.kernels.values()})
        given = {"device": target, "output_arch": arch}
        try:
            generated = generate_launched(module, threads, given, is_launched=is_launched)
            row["reason"] = "" if generated is not None else "only its launch may build it"
        except unless_signalled(Exception) as error:
            _fail(row, error)
        if generated is not None:
            row["output"] = generated.module.output
            self._builds.append(self._queue.submit(self._build, generated, row))
        return generated, row

    def _build(self, generated: AheadModule, row: Row) -> None:
        module, choice = generated.module, generated.context.settings.progress
        with self._engine.progress.module(module.name, module.arch, module.block_dim, choice, awaited=False):
            _build(row, lambda: compiled(self._engine, generated, waits=True))

    def finish(self) -> None:
        wait_all(self._builds)
        for build in self._builds:
            build.result()


# ---- children of a script through multiprocessing (spawn and forkserver)
#
# Such a child begins with data that its parent pickles: search path, arguments, main module. One more value is
# added to this data. Unpickling it enables warp_tiles in the child, before the main module is imported. A forked child
# inherits warp_tiles anyway.

_NAME = "warp_tiles"
# the child's search path is not set yet when it reads this
_ENABLE = """
import sys
before, sys.path = sys.path, search_path
try:
    from warp_tiles.cli.run import enable_here
    enable_here(configured, options, start_list)
finally:
    sys.path = before
"""


class _Enabler:
    """A value that enables warp_tiles in the process that unpickles it."""

    def __init__(self) -> None:
        self._given: dict[str, Any] = {"configured": configured(), "options": configured(COMMAND_LINE)}
        self._given["start_list"] = current().start_list

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_ENABLE, {"search_path": list(sys.path), **self._given})


def enable_here(configured: Mapping[str, Any], options: Mapping[str, Any], start_list: bool) -> None:
    """Enable warp_tiles in a child as in its parent. If it cannot be enabled, the child runs with Warp alone."""
    try:
        configure(**configured)
        for name, value in options.items():
            configure_by_option(name, value)
        keep_start_list(kept=start_list)
        api.enable()
        if is_enabled():
            require_hooks("run").start_is_fixed = True  # the parent writes the list
        _enable_children()
    except Exception as error:  # a child must not fail because of this
        warn(f"a child process runs with Warp alone: {error}")


@contextlib.contextmanager
def enabled_in_children() -> Iterator[None]:
    """Enable warp_tiles in the children that are started in the block. They get the settings of their start."""
    original = spawn.get_preparation_data
    _enable_children()
    try:
        yield
    finally:
        spawn.get_preparation_data = original


def _enable_children() -> None:
    """Add the value to the data of children, as long as warp_tiles is enabled."""
    original = spawn.get_preparation_data

    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        data = dict(original(name))
        return {**data, _NAME: _Enabler()} if is_enabled() else data

    spawn.get_preparation_data = get_preparation_data
