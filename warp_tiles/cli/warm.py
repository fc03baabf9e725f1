"""``warp-tiles warm``: compiles ahead of time what a script launches, or what a start record names."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from warp_tiles import api
from warp_tiles._warp import require_hooks
from warp_tiles.build.ahead import FAILURES, AheadModule, build_ahead, compiled
from warp_tiles.build.start_record import StartModule, read_record
from warp_tiles.cli.cache_commands import counted, require_push, sign_and_write
from warp_tiles.cli.output import FILE, interrupted_by_signals, json_option, note, print_result, script_output_to_stderr
from warp_tiles.cli.scripts import GRAMMAR, arch_option, incomplete_option, require_complete, takes_script
from warp_tiles.errors import PlanError, RecordError, SettingError
from warp_tiles.launch.script import Discovery, Script, discover
from warp_tiles.settings import current, override
from warp_tiles.store.paths import cache_root, start_file
from warp_tiles.util.threads import side_by_side, unless_signalled, wait_all

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine
    from warp_tiles.store.key import CacheKey
    from warp_tiles.store.transfer import Transfer

Row = dict[str, Any]


@click.command(context_settings=GRAMMAR)
@click.option("--record", type=FILE, metavar="FILE", help="Compile the modules of this start record; no script runs.")
@click.option("--start", type=FILE, metavar="FILE", help="Leave SCRIPT's start record in this file, not in the cache.")
@arch_option(None, "; by default those of this machine's GPUs, or each module's own with --record")
@click.option("--push", is_flag=True, help="Sign the modules, and write them to the remote store. You vouch for them.")
@incomplete_option
@json_option
@lambda command: takes_script(command, required=False)
def warm(
    script: Script | None, record: Path | None, start: Path | None, archs: tuple[int, ...], push: bool,
    allow_incomplete: bool, as_json: bool,
) -> None:  # fmt: skip
    """Compile what SCRIPT launches into the cache, so that its next start finds it, also without a GPU.

    SCRIPT runs once, and its launches compute nothing: results that it saves are zeros. It can ask
    warp_tiles.is_planning(). Each module is compiled as it is at each of its launches. The start record is left where
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
    began, found = time.perf_counter(), None
    if script is not None:
        script.require()
        note(
            f"warp-tiles: the launches of {script} compute nothing, so results that it saves are zeros; it can ask "
            "warp_tiles.is_planning()"
        )
    # what a package has is not pushed
    own: AbstractContextManager[object] = override(kernel_packages="none") if push else nullcontext()
    with own, interrupted_by_signals(), script_output_to_stderr(as_json):
        for arch in archs:
            require_target(arch, None)
        if script is not None:
            start, rows, found = _of_script(script, archs, start)
        else:
            assert record is not None
            rows = _of_record(record, archs)
    counts = Counter(row["state"] for row in rows)
    for row in rows:
        if row["reason"]:
            note(f"warp-tiles: module {row['module']} for sm_{row['arch']} {row['state']}: {row['reason']}")
    pushed: dict[str, Transfer] = {}
    try:
        if push:
            pushed = sign_and_write([row["key"] for row in rows if row["key"]])
    finally:  # the modules are compiled, also if the push fails
        text = ", ".join(f"{count} {state}" for state, count in counts.items()) or "no module"
        text += "".join(f"; {each.moved} pushed, {each.failed} not pushed" for each in pushed.values())
        text += f"; start record {start}" if start else ""
        data: dict[str, Any] = {"modules": rows, "start": start and str(start)}
        data |= {f"push_{kind}": vars(each) for kind, each in pushed.items()}
        print_result(as_json, data, f"{script or record}: {text} ({time.perf_counter() - began:.1f} s)")
    if script is not None and found is not None:
        require_complete(script, found, allow_incomplete)
    sys.exit(1 if counts["failed"] or any(each.failed for each in pushed.values()) else 0)


# ---- a record


def _of_record(file: Path, archs: Sequence[int]) -> list[Row]:
    """Compile the modules of a start record, for these architectures or for their own."""
    import warp

    from warp_tiles.build.engine import Engine
    from warp_tiles.tuning.snapshots import TunedSnapshots

    kept = read_record(file)
    if kept is None or kept.warp != str(warp.__version__):
        found = "is missing" if kept is None else f"is of Warp {kept.warp}, and Warp {warp.__version__} is installed"
        raise RecordError(f"the start record {file} {found}", "`warp-tiles warm --start FILE SCRIPT` writes one")
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
        if (found := build()) is None:
            row["reason"] = "no key covers its code, or its functions under these settings"
        else:
            row.update(key=found[0].digest, state="compiled" if found[1] else "present")
    except unless_signalled(*FAILURES) as error:
        _fail(row, error)
    row["seconds"] = round(time.perf_counter() - started, 3)


def _fail(row: Row, error: Exception) -> None:
    log = getattr(error, "log", "").strip()
    row.update(state="failed", reason="\n".join(filter(None, (getattr(error, "message", str(error)), log))))


# ---- a script


def _of_script(script: Script, archs: Sequence[int], start: Path | None) -> tuple[Path | None, list[Row], Discovery]:
    """Run a script without its launches, and compile what it launches.

    Returns:
        Its start record, or None if no module was compiled; a row for each module; and what was discovered.
    """
    now = current()
    if start is not None:
        api.require_place(start)
    file = script.require()
    api.enable()
    hooks = require_hooks("warm")
    hooks.takes_start = start is None
    hooks.begin_start(start or start_file(cache_root(now.cache_dir), file))
    modules = LaunchedModules(hooks.engine, archs)
    try:
        found = discover(script, at_launch=modules.at_launch)
        modules.finish()
        record = hooks.program_start
        assert record is not None
        for one, row in zip(modules.generated, modules.rows):
            if one is not None and row["key"]:
                record.add(one.module, one.key.digest)
    finally:
        api.disable()  # writes the record
    return record.file if record.file.exists() else None, modules.rows, found


class LaunchedModules:
    """The modules of a program whose launches are replaced, each compiled as it is at its launch.

    Args:
        archs: Architectures to compile for; none for those of this machine's GPUs.

    Attributes:
        generated: What was generated, in order; None for what is left to its launch.
        rows: The result of each.

    Raises:
        PlanError: No architecture is named, and there is no GPU.
    """

    def __init__(self, engine: Engine, archs: Sequence[int] = ()) -> None:
        from warp_tiles._warp.plain import gpus_here

        gpus = gpus_here()
        self._targets = [(None, arch) for arch in archs] or [(device, arch) for arch, device in gpus.items()]
        if not self._targets:
            raise PlanError("this machine has no GPU, and no architecture is named", "give one or more: --arch 80,90")
        self._engine, self._has_gpus = engine, bool(gpus)
        self._seen: set[tuple[object, ...]] = set()
        self._queue = engine.build_context(current()).queue
        self._builds: list[Future[None]] = []
        self.generated: list[AheadModule | None] = []
        self.rows: list[Row] = []

    def at_launch(self, module: Any, device: Any, threads: int) -> None:
        """Generate a module, and queue its build, if it was not launched as it is now."""
        from warp_tiles._warp.generate_ahead import generate_launched, kernels_of, packages_of

        if self._has_gpus and device.is_cpu:  # elsewhere, the CPU stands for the GPU
            return
        for target, arch in self._targets:
            wanted = module, kernels_of(module), arch, threads
            if wanted in self._seen:
                continue
            self._seen.add(wanted)
            one, row = None, _row(str(module.name), threads, arch, "cubin")
            row["packages"] = packages_of(module)
            self.rows.append(row)
            try:
                one = generate_launched(module, threads, {"device": target, "output_arch": arch})
                row["reason"] = "" if one is not None else "only its launch may build it"
            except unless_signalled(Exception) as error:
                _fail(row, error)
            self.generated.append(one)
            if one is not None:
                row["output"] = one.module.output
                self._builds.append(self._queue.submit(self._build, one, row))

    def _build(self, one: AheadModule, row: Row) -> None:
        module, choice = one.module, one.context.settings.progress
        with self._engine.progress.module(module.name, module.arch, module.block_dim, choice, awaited=False):
            _build(row, lambda: compiled(self._engine, one, waits=True))

    def finish(self) -> None:
        """Wait for the builds."""
        wait_all(self._builds)
        for build in self._builds:
            build.result()
