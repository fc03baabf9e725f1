"""Run a user's script, or only find the kernels that it launches."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warp_tiles._warp.intercept import NotedLaunch, intercepted
from warp_tiles.errors import ScriptError
from warp_tiles.gemm.matmul_question import MatmulAnswer


@dataclass(frozen=True)
class Target:
    """A Warp module of a script at one block size."""

    module: Any
    block_dim: int


@dataclass(frozen=True)
class Discovery:
    """The launches that a script would make.

    Attributes:
        targets: Modules with the block sizes that they are launched with, or their default.
        stopped: The exception that ended the script early, or empty. Scripts that read results often end this way,
            because nothing was computed.
        substituted: GPUs that the script names and this machine lacks, each with the device in its place.
        launches: The first of equal launches, in order. They keep their arrays alive.
    """

    targets: tuple[Target, ...]
    stopped: str
    substituted: Mapping[str, str]
    products: tuple[MatmulAnswer, ...]
    launches: tuple[NotedLaunch, ...] = ()


_collections: list[dict[MatmulAnswer, None]] = []  # global, because every thread of a script must see it


@contextlib.contextmanager
def collected_products() -> Iterator[list[MatmulAnswer]]:
    """Collect the products that are noted in the block. They are complete after it, each once."""
    noted: dict[MatmulAnswer, None] = {}
    found: list[MatmulAnswer] = []
    _collections.append(noted)
    try:
        yield found
    finally:
        _collections[:] = [one for one in _collections if one is not noted]  # an equal one may be open
        found.extend(noted)


def note_product(product: MatmulAnswer) -> None:
    """Add a product of ``warp_tiles.matmul`` to the collections that are open."""
    for noted in _collections:
        noted.setdefault(product)


def require_script(script: Path) -> None:
    """Check that a script exists.

    Raises:
        ScriptError: There is no such file.
    """
    if not script.is_file():
        raise ScriptError(f"there is no script {script}", remedy="give the path of a Python file")


@contextlib.contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set the interpreter up as ``python script arguments`` does, without the kernels of another ``__main__``."""
    from warp_tiles._warp.searches import forget_modules

    require_script(script)
    forget_modules(["__main__"])
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def run_script(script: Path, arguments: Sequence[str] = ()) -> None:
    """Run a script as ``__main__``. Its exceptions are not caught.

    Raises:
        ScriptError: There is no such file.
    """
    with _as_main(script, arguments):
        runpy.run_path(str(script), run_name="__main__")


def discover(script: Path, arguments: Sequence[str] = (), block_dim: int | None = None) -> Discovery:
    """Run a script and collect its launches without executing them. The script sees ``is_planning()``.

    Filters of warnings that the script sets end with it, so that they do not hide the warnings of a later build.

    Args:
        block_dim: Use this block size instead of those that the script launches with.

    Raises:
        ScriptError: The file is missing, or the script failed before it had any kernel.
    """
    from warp_tiles._warp.modules import user_modules, users_own_modules
    from warp_tiles._warp.searches import put_module

    before = user_modules()
    launched: dict[tuple[int, int], Target] = {}
    launches: dict[Hashable, NotedLaunch] = {}

    def note(launch: NotedLaunch) -> None:
        module, threads = launch.kernel.module, launch.block_dim
        launched.setdefault((id(module), threads), Target(module, threads))
        launches.setdefault(launch.signature, launch)

    stopped = ""
    try:
        with intercepted(note) as substituted, collected_products() as products, warnings.catch_warnings():
            try:
                run_script(script, arguments)
            except ScriptError:
                raise
            except SystemExit as error:
                stopped = f"SystemExit: {error.code}" if error.code else ""
            except Exception as error:
                stopped = "".join(traceback.format_exception_only(type(error), error)).strip()
        defined = [m for m in users_own_modules() if before.get(m.name) is not m]
    finally:
        if "__main__" in before:  # the program that plans the script; settings that change have to reach its kernels
            put_module("__main__", before["__main__"])
    targets = list(launched.values())
    seen = {id(target.module) for target in targets}
    targets += [Target(m, int(m.options["block_dim"])) for m in defined if id(m) not in seen]
    if block_dim is not None:
        targets = [Target(m, block_dim) for m in {id(t.module): t.module for t in targets}.values()]
    if not targets:
        reason = f"it stopped with {stopped}" if stopped else "it defines none"
        raise ScriptError(f"no kernel was found in {script}: {reason}", remedy="run it by itself first")
    return Discovery(tuple(targets), stopped, substituted, tuple(products), tuple(launches.values()))
