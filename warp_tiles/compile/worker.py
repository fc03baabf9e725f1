"""A compiler process: reads requests from its standard input and writes replies to its standard output.

python -m warp_tiles.compile.worker [PARENT [FOLDER [NVRTC [NVJITLINK]]]]
                                                         serve until the input or the process PARENT ends
python -m warp_tiles.compile.worker --reproduce FILE     compile one source from a BuildError
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from warp_tiles.compile.compiler import (
    Compiled,
    CompileRequest,
    LinkRequest,
    compile_to_ltoir,
    link_module,
    open_nvjitlink,
    open_nvrtc,
    receive,
    send,
)
from warp_tiles.compile.find import find_toolchain
from warp_tiles.errors import ToolchainError, WarpTilesError, WorkerError, suppressed

_WATCH_S = 0.5
#: Files of precompiled headers that a process keeps, of 80 MB each: one for each block size that its modules have.
_PRECOMPILED = 4


@contextlib.contextmanager
def limited(most_bytes: int) -> Iterator[None]:
    """Let this process take only so much memory in the block. Address space that it merely reserves does not count."""
    try:
        import resource
    except ImportError:  # not on Windows
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = min([most_bytes, *(value for value in before if value != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def preload(libraries: Sequence[str]) -> None:
    """Load the libraries before the first request arrives: the compiler's first, the linker's if nothing waits."""
    for load, path in zip((open_nvrtc, open_nvjitlink), libraries):
        if select.select([sys.stdin], [], [], 0)[0]:  # it loads what it needs, which may be Warp's library
            return
        with contextlib.suppress(Exception):  # a request that needs it reports the missing file
            load(path)


def end_with(parent: int, folder: str | None) -> None:
    """End this process, and remove a folder, within a second of its parent, whoever still holds the pipe open."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _bound_precompiled_headers(folder: str) -> None:
    """Remove all but the newest precompiled headers. NVRTC finds no use for the others and deletes none."""
    with suppressed(OSError):
        files = sorted(Path(folder).glob("*/*.pch"), key=lambda file: file.stat().st_mtime_ns)
        for file in files[:-_PRECOMPILED]:
            file.unlink()


def serve(parent: int | None = None, folder: str = "", *libraries: str) -> None:
    """Answer requests until the input ends.

    Args:
        parent: The process that this one ends with; None to watch only the input.
        folder: Where temporary files go, which belongs to this process. It goes with it; the parent removes it if this
            process was killed. Empty if there is none.
        libraries: Paths of the compiler and of the linker; without them, this process searches.
    """
    if folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
    if parent is not None:
        end_with(parent, folder or None)
    requests = sys.stdin.buffer
    # output of the compiler must not break the protocol, so it goes to standard error
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    preload(libraries)
    while True:
        try:
            request, most_bytes = receive(requests)
        except (EOFError, KeyboardInterrupt):
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
            return
        reply: tuple[bool, object]
        try:
            with limited(most_bytes) if most_bytes else contextlib.nullcontext():
                reply = (True, run(request, libraries))
        except WarpTilesError as error:
            reply = (False, error)
        except Exception as error:
            # unexpected, as the death of a process is: no other provider or linker is chosen under the module's hash
            kind = ToolchainError if isinstance(error, ImportError) else WorkerError
            reason = f"the compiler process failed: {type(error).__name__}: {error}"
            reply = (False, kind(reason, remedy="`warp-tiles doctor` names what is missing"))
        if folder:
            _bound_precompiled_headers(folder)
        try:
            send(replies, reply)
        except OSError:  # the parent no longer waits for the reply
            os._exit(0)  # the interpreter would try to flush the stream again


def run(request: Any, libraries: Sequence[str] = ()) -> Compiled:
    """Compile or link, in this process, which searches libraries that are not given.

    Raises what the compiler or the linker raises, and a ToolchainError if there is no library for the request.
    """
    if isinstance(request, (CompileRequest, LinkRequest)):
        libraries = libraries or tuple(map(os.fspath, find_toolchain().paths))
        if isinstance(request, CompileRequest):
            return compile_to_ltoir(request, open_nvrtc(libraries[0]))
        if len(libraries) < 2:
            raise ToolchainError("there is no nvJitLink to link with", remedy="pip install nvidia-nvjitlink")
        return link_module(request, open_nvjitlink(libraries[1]))
    from warp_tiles.compile.module import compile_with_warp

    return compile_with_warp(request)


def reproduce(path: Path) -> int:
    """Compile a source from a BuildError, with the flags of its first line."""
    try:
        result = run(CompileRequest.from_text(path.read_text("utf-8"), path.name))
    except ValueError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    except WarpTilesError as error:
        print(error.log or error, file=sys.stderr)
        return 1
    print(f"{path}: {len(result.payload)} bytes of LTO-IR in {result.seconds:.2f} s with {result.compiler}")
    return 0


def main(arguments: list[str]) -> int:
    """Entry point of ``python -m warp_tiles.compile.worker``."""
    if not arguments or (len(arguments) <= 4 and arguments[0].isdecimal()):
        serve(int(arguments[0]) if arguments else None, *arguments[1:])
        return 0
    if len(arguments) == 2 and arguments[0] == "--reproduce":
        return reproduce(Path(arguments[1]))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
