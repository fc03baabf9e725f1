"""A compiler process: reads requests from its standard input and writes answers to its standard output.

A message is an 8-byte little-endian length and a pickled value. Both ends are this package, in one
process tree. No other process can open the pipes between them, and data from disk or from another
user is never unpickled.

    python -m warp_tiles.compile.worker                      serve until the input ends
    python -m warp_tiles.compile.worker --reproduce FILE     compile one source from a BuildError
"""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import select
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from warp_tiles.compile.compiler import Compiled, CompileRequest, compile_to_ltoir, guarded, link_module
from warp_tiles.errors import WarpTilesError
from warp_tiles.toolchain.packages import load_library

FUNCTIONS: dict[str, Callable[[Any], Compiled]] = {"compile": compile_to_ltoir, "link": link_module}
_LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, message: object) -> None:
    """Write one message and flush it."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message.

    Raises:
        EOFError: The other end closed the pipe.
    """
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError("the other end closed the pipe")
    (size,) = _LENGTH.unpack(header)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other end closed the pipe within a message")
    return pickle.loads(data)


def preload() -> None:
    """Load the libraries before the first request arrives: the compiler's first, the linker's if nothing waits."""
    with contextlib.suppress(Exception):  # a request that needs them reports what is missing
        load_library("nvrtc")
        from cuda.bindings import nvjitlink, nvrtc

        nvrtc.nvrtcVersion()
        if not select.select([sys.stdin], [], [], 0)[0]:
            load_library("nvJitLink")
            nvjitlink.version()


def serve() -> None:
    """Answer requests until the input ends."""
    requests = sys.stdin.buffer
    # output of the compiler must not break the protocol, so it goes to standard error
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    preload()
    while True:
        try:
            kind, request = receive(requests)
        except (EOFError, KeyboardInterrupt):
            return
        answer: tuple[bool, object]
        try:
            answer = (True, guarded(FUNCTIONS[kind], request))
        except WarpTilesError as error:
            answer = (False, error)
        send(answers, answer)


def reproduce(path: Path) -> int:
    """Compile a source from a BuildError, with the options of its first line."""
    text = path.read_text("utf-8")
    marker = "// options: "
    first = text.partition("\n")[0]
    if not first.startswith(marker):
        print(f"{path}: the first line must be '{marker}...', as in the error", file=sys.stderr)
        return 2
    options = tuple(ast.literal_eval(first.removeprefix(marker)).items())
    try:
        result = compile_to_ltoir(CompileRequest(path.name, text, options, str(path)))
    except WarpTilesError as error:
        print(error.log or error, file=sys.stderr)
        return 1
    print(f"{path}: {len(result.payload)} bytes of LTO-IR in {result.seconds:.2f} s with {result.compiler}")
    return 0


def main(arguments: list[str]) -> int:
    """Entry point of ``python -m warp_tiles.compile.worker``."""
    if not arguments:
        serve()
        return 0
    if len(arguments) == 2 and arguments[0] == "--reproduce":
        return reproduce(Path(arguments[1]))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
