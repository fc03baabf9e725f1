"""The rehearsal of ``warp-tiles run --rehearse``: a second process of the script, which compiles what it launches."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from warp_tiles._warp import require_hooks
from warp_tiles._warp.intercept import intercepted
from warp_tiles.build.idle import IdleModule, compiled
from warp_tiles.cli.children import enable_here, enabling
from warp_tiles.compile.search import import_path
from warp_tiles.compile.worker import end_with
from warp_tiles.errors import CacheError
from warp_tiles.launch.script import Script
from warp_tiles.settings import current
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
from warp_tiles.cli.rehearsal import rehearse
rehearse(int(sys.argv[1]))
"""


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


def rehearse(parent: int) -> None:
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
