"""Processes beside that of ``warp-tiles run``: the children that the script starts, and its rehearsal."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from warp_tiles._warp import is_enabled, require_hooks
from warp_tiles._warp.idle import generated_for
from warp_tiles._warp.intercept import intercepted
from warp_tiles.api import enable
from warp_tiles.build.idle import compiled
from warp_tiles.compile.search import search_path
from warp_tiles.compile.worker import end_with
from warp_tiles.launch.script import Script
from warp_tiles.settings import COMMAND_LINE, configure, configure_by_option, configured, current, keep_start_record
from warp_tiles.util.threads import DaemonThreads, available_cores, suppressed, wait_all
from warp_tiles.util.warn import warn

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
    from warp_tiles.cli.children import enable_here
    enable_here(configured, options, start_record)
finally:
    sys.path = before
"""


def _state() -> dict[str, Any]:
    """The arguments of :func:`enable_here`."""
    given = {"configured": configured(), "options": configured(COMMAND_LINE)}
    return {**given, "start_record": current().start_record}


class _Enabler:
    """A value that enables warp_tiles in the process that unpickles it."""

    def __init__(self) -> None:
        self._given = _state()

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


# ---- the rehearsal

# a module in the working folder must not shadow one of Python's
_REHEARSE = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
from warp_tiles.cli.children import rehearse
rehearse(int(sys.argv[1]))
"""


class Rehearsal:
    """A second process that runs a script without its launches, so that it reaches all of them early.

    It compiles the modules that they need on GPUs. A launch of the script finds its module, or waits for the build. The
    rehearsal ends with this process. Its output is discarded.
    """

    def __init__(self, script: Script) -> None:
        package = Path(__file__).resolve().parents[2]
        path = os.pathsep.join(dict.fromkeys([*search_path(), str(package)]))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _REHEARSE, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl+C reaches only the script, whose end ends the rehearsal
        )
        assert self._process.stdin is not None
        with suppressed(OSError):  # it has ended already
            self._process.stdin.write(pickle.dumps((script, _state())))
            self._process.stdin.close()

    def __enter__(self) -> Rehearsal:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> bytes:
        """End the process, and return what it has written."""
        self._process.kill()
        answers = self._process.stdout
        assert answers is not None
        found = b"" if answers.closed else answers.read()
        answers.close()
        self._process.wait()
        return found

    def summary(self) -> str:
        """End the rehearsal, also if it still compiles, and say what it compiled. Warns of an error that stopped it."""
        if not (answer := self._end()):
            return "the rehearsal did not finish"
        found = json.loads(answer)
        if found["stopped"]:
            warn(
                f"the rehearsal stopped early with {found['stopped']}; modules that it did not reach are compiled at "
                "their launches. Remedy: where the script needs results, let it ask warp_tiles.is_planning()"
            )
        return f"compiled by the rehearsal: {found['compiled']}"


def rehearse(parent: int) -> None:
    """Run the script that standard input describes, without its launches, and compile the modules that they need.

    Args:
        parent: Process ID of the parent, with which this process ends.
    """
    script, state = pickle.load(sys.stdin.buffer)
    answer = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(2):
        os.dup2(nowhere, stream)
    end_with(parent)
    enable_here(**state)
    compiled, stopped = compile_launched(script.run)
    answer.write(json.dumps({"compiled": compiled, "stopped": stopped}))
    answer.flush()
    os._exit(0)  # the script's exit handlers run in the other process


def compile_launched(run: Callable[[], None], device: Any = None) -> tuple[int, str]:
    """Run a program without its launches, and compile what it launches on GPUs into the cache.

    At a launch, this thread generates the module with the kernels that it has now, because the program may add others
    later. Other threads compile or link it. Modules with FFTs are left to their launches.

    Args:
        run: The program.
        device: Compile for this device instead of those of the launches.

    Returns:
        The number of modules that were compiled, and the error that stopped the program; empty if there was none.
    """
    hooks, stopped = require_hooks("run"), ""
    compilers = DaemonThreads(current().jobs or available_cores(), "warp_tiles_rehearsal")
    compiling: list[Future[bool]] = []
    seen: set[tuple[int, int, str, int]] = set()

    def load(kernel: Any, on: Any, threads: int) -> None:
        module, place = kernel.module, device or on
        known = id(module), len(module.kernels), str(place), threads
        if known in seen or place.is_cpu:
            return
        seen.add(known)
        if (one := generated_for(hooks.reloads, module, place, threads)) is not None:
            compiling.append(compilers.submit(compiled, hooks.engine, one))

    try:
        with intercepted(lambda launch: load(launch.kernel, launch.device, launch.block_dim), load):
            run()
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            stopped = f"{type(error).__name__}: {error}"
    wait_all(compiling)  # a launch meets the error of a build, and reports it
    return sum(one.exception() is None and one.result() for one in compiling), stopped
