"""Run a user's script, or only find the kernels that it launches."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO, cast

from warp_tiles._warp.intercept import ArrayPlan, NotedLaunch, collected_products, intercepted
from warp_tiles.errors import ScriptError

_USAGE_ERROR = 2  # the status of argparse, click and getopt's users
PLANNED = "planned| "  # before each line that a script prints while it is planned
_DRAWN = re.compile(r"\r|\x1b\[[\d;?]*[^\d;?m]")  # moves the cursor, as progress bars do


@dataclass(frozen=True)
class Target:
    """A Warp module of a script at one block size, and the names of the kernels that need it."""

    module: Any
    block_dim: int
    launched: tuple[str, ...] = ()


@dataclass(frozen=True)
class Discovery:
    """The launches that a script would make.

    Attributes:
        targets: Modules with the block sizes that they are launched or asked about with, or their default.
        stopped: The exception that ended the script early, or empty. Scripts that read results often end this way,
            because nothing was computed. What it would have launched after that is missing.
        usage_error: True if it ended with status 2, as after a wrong command line.
        substituted: GPUs that the script names and this machine lacks, each with the device in its place.
        products: How its calls on whole arrays are computed.
        launches: The first of equal launches, in order. They keep their arrays alive.
    """

    targets: tuple[Target, ...]
    stopped: str
    substituted: Mapping[str, str]
    products: tuple[ArrayPlan, ...]
    launches: tuple[NotedLaunch, ...] = ()
    usage_error: bool = False

    def with_launched(self, modules: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Plans or builds of modules, each with the names of the kernels that its block size is launched for."""
        launched = {(target.module.name, target.block_dim): list(target.launched) for target in self.targets}
        return [{**module, "launched": launched.get((module["name"], module["block_dim"]), [])} for module in modules]


@dataclass(frozen=True)
class Script:
    """A user's program, with what ``python`` gets to run it.

    Attributes:
        name: The path of its file, or the name of a module as for ``python -m``.
        arguments: Its command line.
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def __str__(self) -> str:
        return f"-m {self.name}" if self.is_module else self.name

    @property
    def title(self) -> str:
        """A short name: the file's own, or the module's."""
        return str(self) if self.is_module else Path(self.name).name

    @property
    def folder(self) -> str:
        """The folder that Python searches first: the script's own, or the current one for a module."""
        return os.getcwd() if self.is_module else str(Path(self.name).resolve().parent)

    def require(self) -> Path:
        """The file of its code. Raises a ScriptError if there is none."""
        if not self.is_module:
            if not Path(self.name).is_file():
                raise ScriptError(f"there is no script {self.name}", remedy="give the path of a Python file")
            return Path(self.name)
        with _searching(self.folder):
            first, *rest = self.name.split(".")
            try:
                spec = find_spec(first) if first else None
            except ValueError:  # of __main__
                spec = None
            for part in rest:  # find_spec() of a whole name would import its packages
                spec = spec and PathFinder.find_spec(part, spec.submodule_search_locations or [])
            if spec is not None and spec.submodule_search_locations is not None:  # a package
                spec = PathFinder.find_spec("__main__", spec.submodule_search_locations)
        if spec is None or spec.origin is None:
            raise ScriptError(
                f"there is no module {self.name} that can be run", remedy="give a name that works with `python -m`"
            )
        return Path(spec.origin)

    def run(self) -> None:
        """Run it as ``__main__``, as ``python`` does, without the kernels of another one. No exception is caught."""
        from warp_tiles._warp.modules import forget_modules

        self.require()
        forget_modules(["__main__"])
        argv = sys.argv
        sys.argv = [self.name, *self.arguments]
        try:
            with _searching(self.folder):
                if self.is_module:
                    runpy.run_module(self.name, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(self.name, run_name="__main__")
        finally:
            sys.argv = argv


@contextlib.contextmanager
def _searching(folder: str) -> Iterator[None]:
    """Let Python search a folder for modules first."""
    before = list(sys.path)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = before


class _Marked:
    """A stream with a mark before each line. Its other members are the stream's.

    Loggers of the script may keep the stream, so the mark is emptied at the end.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begins_line = True
        self.mark = PLANNED

    def write(self, text: str) -> int:
        for line in re.findall(r"[^\n]*\n|[^\n]+", text):
            self._stream.write(f"{self.mark}{line}" if self._begins_line and not _DRAWN.match(line) else line)
            self._begins_line = line.endswith("\n")
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _marked_output() -> Iterator[None]:
    """Mark what is printed in the block, see :class:`_Marked`."""
    output, errors = _Marked(sys.stdout), _Marked(sys.stderr)
    with contextlib.redirect_stdout(cast(TextIO, output)), contextlib.redirect_stderr(cast(TextIO, errors)):
        try:
            yield
        finally:
            output.mark = errors.mark = ""


def discover(
    script: Script, block_dim: int | None = None, at_launch: Callable[[Any, Any, int], None] | None = None
) -> Discovery:
    """Run a script and collect its launches without executing them. The script sees ``is_planning()``.

    The lines that it prints are marked on both streams, because they show values that nothing has computed. Filters of
    warnings that the script sets end with it, so that they do not hide the warnings of a later build.

    ``block_dim`` takes the place of the block sizes that the script launches with. ``at_launch`` is called at each
    launch, with the kernel's module, the device and the block size. Raises a ScriptError if the file is missing, or the
    script failed before it had any kernel.
    """
    from warp_tiles._warp.modules import name_of, put_module, user_modules, users_own_modules

    before = user_modules()
    launched: dict[tuple[Any, int], dict[str, None]] = {}  # kernels, by module and block size
    launches: dict[Hashable, NotedLaunch] = {}

    def load(kernel: Any, device: Any, threads: int) -> None:
        launched.setdefault((kernel.module, threads), {}).setdefault(name_of(kernel))
        if at_launch is not None:
            at_launch(kernel.module, device, threads)

    def note(launch: NotedLaunch) -> None:
        load(launch.kernel, launch.device, launch.block_dim)
        launches.setdefault(launch.signature, launch)

    stopped, usage_error, file = "", False, script.require()
    try:
        with intercepted(note, load) as substituted, collected_products() as products, warnings.catch_warnings():
            try:
                with _marked_output():
                    script.run()
            except ScriptError:
                raise
            except SystemExit as error:
                stopped = f"SystemExit: {error.code}" if error.code else ""
                usage_error = error.code == _USAGE_ERROR
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                lines = [frame.lineno for frame in frames if Path(frame.filename) == file]
                where = f", in line {lines[-1]}" if lines else ""
                stopped = "".join(traceback.format_exception_only(type(error), error)).strip() + where
        defined = [m for m in users_own_modules() if before.get(m.name) is not m]
    finally:
        if "__main__" in before:  # the program that plans the script; settings that change have to reach its kernels
            put_module("__main__", before["__main__"])
    targets = [Target(module, threads, tuple(names)) for (module, threads), names in launched.items()]
    seen = {target.module for target in targets}
    targets += [Target(m, int(m.options["block_dim"])) for m in defined if m not in seen]
    if block_dim is not None:
        targets = [Target(module, block_dim) for module in dict.fromkeys(target.module for target in targets)]
    if not targets:
        reason = f"it stopped with {stopped}" if stopped else "it defines none"
        remedy = "give the arguments that it needs" if usage_error else "run it by itself first"
        raise ScriptError(f"no kernel was found in {script}: {reason}", remedy=remedy)
    return Discovery(tuple(targets), stopped, substituted, tuple(products), tuple(launches.values()), usage_error)
