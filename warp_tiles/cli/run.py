"""``warp-tiles run``: runs an unchanged script and the processes that it starts with warp_tiles enabled.

It may rehearse the script: a second process of it compiles what it launches.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import click

from warp_tiles._warp import is_enabled, require_hooks
from warp_tiles._warp.intercept import intercepted
from warp_tiles.api import enable, report, require_place
from warp_tiles.build.idle import IdleModule, compiled
from warp_tiles.build.start_record import default_file
from warp_tiles.cli.output import (
    FILE,
    bundle_option,
    facts_of,
    json_option,
    note,
    policy_option,
    print_json,
    record_options,
    require_folders,
    script_output_to_stderr,
    write_records,
)
from warp_tiles.cli.scripts import GRAMMAR, takes_script
from warp_tiles.compile.search import import_path
from warp_tiles.compile.worker import end_with
from warp_tiles.errors import CacheError, SettingError
from warp_tiles.launch.script import Script
from warp_tiles.settings import COMMAND_LINE, configure, configure_by_option, configured, current, keep_start_record
from warp_tiles.store.paths import cache_root
from warp_tiles.util.threads import DaemonThreads, available_cores, raise_if_signalled, suppressed, wait_all
from warp_tiles.util.warn import warn

log = logging.getLogger("warp_tiles")
_ANSWER_BYTES = 4096  # what a pipe takes at once
_REASON_CHARACTERS = 300
#: Seconds without a new module after which the rehearsal of a program ends.
QUIET_S = 30.0
# a module in the working folder must not shadow one of Python's
_BOOTSTRAP = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
from warp_tiles.cli.run import rehearse_here
rehearse_here(int(sys.argv[1]))
"""


@click.command(context_settings=GRAMMAR)
@record_options
@bundle_option
@policy_option
@click.option(
    "--start",
    type=FILE,
    help="Keep the start record in this file, e.g. for a team. Without it, each script has one in the cache if "
    "modules=all, a remote store or --rehearse is set.",
)
@click.option("--no-start", "keeps", is_flag=True, flag_value=False, default=True, help="Keep no start record.")
@click.option(
    "--rehearse",
    is_flag=True,
    help="If there is no start record yet, also run SCRIPT in a second process. Launches do nothing there; it compiles "
    "the modules that they need. Everything else in SCRIPT happens twice.",
)
@json_option
@takes_script
def run(
    script: Script, report_file: Path | None, trace_file: Path | None, start: Path | None, keeps: bool, rehearse: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run SCRIPT with ARGUMENTS under warp_tiles.

    Options of warp-tiles come before SCRIPT. Everything after SCRIPT belongs to the script. The report
    holds the plan and the build record of every module of the run, even if the script fails.
    """
    from warp_tiles._warp.internals import find

    current()  # reports an invalid setting first
    script.require()
    require_folders({"the report": report_file, "the trace": trace_file})
    if rehearse and not keeps:
        raise click.UsageError("--rehearse keeps a start record and --no-start keeps none: give only one of them")
    if rehearse and current().modules == "tiles":
        raise SettingError(
            "--rehearse was given, and modules is 'tiles', so the launches would not find what the rehearsal compiles",
            current().remedy("modules", "all"),
        )
    rehearses = False
    try:
        with script_output_to_stderr(as_json):
            if start is not None:
                require_place(start)
            enable()
            if is_enabled():
                require_hooks("run").takes_start = keeps and start is None
            now = current()
            if keeps and is_enabled() and (start or rehearse or now.all_modules):
                file = start or default_file(cache_root(now.cache_dir), script.title, str(script.require().resolve()))
                may_build = now.rules.builds and now.policy != "off" and now.bundle is None
                rehearses = rehearse and may_build and not file.exists()
                if rehearse and not may_build:
                    reason = f"the policy is {now.policy!r}" if now.bundle is None else "modules come from a bundle"
                    note(f"warp-tiles: nothing is rehearsed, because {reason}")
                require_hooks("run").begin_start(file)
            with enabled_in_children(), Rehearsal(script) if rehearses else contextlib.nullcontext() as rehearsal:
                try:
                    script.run()
                finally:
                    # the script may have disabled it, or closed its output
                    if is_enabled() and not getattr(sys.stdout, "closed", True):
                        hooks = require_hooks("run")
                        parts = hooks.engine.recorder, hooks.program_start, hooks.engine.idle, rehearsal
                        text = "; ".join(filter(None, (part.summary() for part in parts if part is not None)))
                        find("logger.log_info")(f"warp_tiles: {text}")
    finally:
        if is_enabled() and (report_file or trace_file or as_json):
            record, facts = report(), facts_of(script, sys.exc_info()[1])
            write_records(report_file, trace_file, record, f"Run of {script.title} with warp_tiles", facts)
            if as_json:
                print_json(record)


# ---- the rehearsal


class Rehearsal:
    """A second process that runs a script without its launches, so that it reaches all of them early.

    It compiles the modules that they need on GPUs. A launch of the script finds its module, or waits for the build. The
    rehearsal ends with this process. Its output is discarded. If it cannot be started, a warning says so.
    """

    def __init__(self, script: Script) -> None:
        self._parent = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        given = pickle.dumps((script, os.environ.get("PYTHONPATH"), enabling()))
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", _BOOTSTRAP, str(self._parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": import_path()},
                start_new_session=True,  # Ctrl+C reaches only the script, whose end ends the rehearsal
            )
            assert self._process.stdin is not None
            with suppressed(BrokenPipeError):  # it has ended already
                self._process.stdin.write(given)
                self._process.stdin.close()
        except OSError as error:
            raise_if_signalled(error)
            warn(f"there is no rehearsal, because its process could not be started: {error}")

    def __enter__(self) -> Rehearsal:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> bytes:
        """End the process and what it has started, and return its answer; empty if it did not finish."""
        process, self._process = self._process, None
        if process is None or os.getpid() != self._parent:  # a forked child of the script leaves it alone
            return b""
        answers = process.stdout
        assert answers is not None
        ready, _, _ = select.select([answers], [], [], 0)
        answer = os.read(answers.fileno(), _ANSWER_BYTES) if ready else b""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        answers.close()
        process.wait()
        return answer

    def summary(self) -> str:
        """End the rehearsal, also if it still compiles, and say what it compiled. Logs an error that stopped it."""
        try:
            found = json.loads(self._end())
            count, stopped = int(found["compiled"]), str(found["stopped"])
        except (ValueError, LookupError, TypeError):
            return "the rehearsal did not finish"
        if stopped:
            log.warning(
                "the rehearsal stopped early with %s; modules that it did not reach are compiled at their launches. "
                "Remedy: where the script needs results, let it ask warp_tiles.is_planning()",
                stopped,
            )
        return f"compiled by the rehearsal: {count}"


def rehearse_here(parent: int) -> None:
    """Run the script that standard input describes, without its launches, and compile the modules that they need.

    Args:
        parent: Process ID of the parent, with which this process ends.
    """
    script, import_path_before, state = pickle.load(sys.stdin.buffer)
    os.environ.pop("PYTHONPATH")
    if import_path_before is not None:
        os.environ["PYTHONPATH"] = import_path_before
    answer = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(2):
        os.dup2(nowhere, stream)
    end_with(parent)
    count, stopped = 0, ""
    try:
        enable_here(**state)
        count, stopped = compile_launched(script.run)
    except BaseException as error:
        stopped = _reason(error)
    os.write(answer, json.dumps({"compiled": count, "stopped": stopped[:_REASON_CHARACTERS]}).encode("ascii"))
    os._exit(0)  # the script's exit handlers run in the other process


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class _EnoughError(BaseException):
    """Ends a program that has launched nothing new for long. The program's handlers of exceptions do not catch it."""


def compile_launched(run: Callable[[], None], device: Any = None) -> tuple[int, str]:
    """Run a program without its launches, and compile what it launches on GPUs into the cache.

    At each new launch, this thread generates the module as it is now; the program may add kernels later. It then
    generates modules of files on the call stack, which are likely to be launched next. Other threads compile or link
    them. Modules with FFTs are left to their launches. A program that launches nothing new for :data:`QUIET_S` ends.

    Args:
        run: The program.
        device: Compile for this device instead of those of the launches.

    Returns:
        The number of modules that were compiled, and the error that stopped the program; empty if there was none.
    """
    from warp_tiles._warp.idle import IdleModules, kernels_of

    engine, modules = require_hooks("run").engine, IdleModules()
    compilers = DaemonThreads(current().jobs or available_cores(), "warp_tiles_rehearsal")
    compiling: list[Future[bool]] = []
    seen: set[tuple[object, ...]] = set()
    quiet_since = time.monotonic()
    stopped = ""

    def build(one: IdleModule) -> bool:
        try:
            return compiled(engine, one)
        except Exception as error:  # the launch meets it again, and reports it
            log.debug("module %s was not compiled by the rehearsal: %r", one.module.name, error)
            if isinstance(error, CacheError):  # the next ones would be compiled for nothing, too
                compilers.close()
            return False

    def load(kernel: Any, on: Any, threads: int) -> None:
        nonlocal quiet_since
        module, place = kernel.module, device or on
        wanted = module, kernels_of(module), str(place), threads
        if wanted in seen or place.is_cpu:
            if seen and time.monotonic() - quiet_since > QUIET_S:
                raise _EnoughError
            return
        seen.add(wanted)
        for one in modules.generate_launched(module, place, threads):
            try:
                compiling.append(compilers.submit(build, one))
            except RuntimeError as closed:  # the cache cannot keep anything
                raise_if_signalled(closed)
                break
        quiet_since = time.monotonic()

    try:
        with intercepted(lambda launch: load(launch.kernel, launch.device, launch.block_dim), load):
            run()
    except _EnoughError:
        pass
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            stopped = _reason(error)
    wait_all(compiling)
    compilers.close()
    return sum(one.result() for one in compiling if not one.cancelled()), stopped


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
    enable_here(configured, options, start_record)
finally:
    sys.path = before
"""


def enabling() -> dict[str, Any]:
    """The arguments of :func:`enable_here`."""
    given = {"configured": configured(), "options": configured(COMMAND_LINE)}
    return {**given, "start_record": current().start_record}


class _Enabler:
    """A value that enables warp_tiles in the process that unpickles it."""

    def __init__(self) -> None:
        self._given = enabling()

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_ENABLE, {"search_path": list(sys.path), **self._given})


def enable_here(configured: Mapping[str, Any], options: Mapping[str, Any], start_record: bool) -> None:
    """Enable warp_tiles in a child as in its parent. If it cannot be enabled, the child runs with Warp alone.

    Args:
        configured: The settings of :func:`warp_tiles.configure` in the parent, and of options of the command.
        options: Those of options of the command alone.
        start_record: True if the parent keeps a start record.
    """
    try:
        configure(**configured)
        for name, value in options.items():
            configure_by_option(name, value)
        keep_start_record(kept=start_record)
        enable()
        if is_enabled():
            require_hooks("run").takes_start = False  # the parent writes the record
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
