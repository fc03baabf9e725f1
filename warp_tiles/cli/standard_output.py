"""Standard output of the commands, which may be full, or a pipe whose reader has ended."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Callable, Iterator
from typing import Any


class StandardOutputError(Exception):
    """Standard output cannot be written."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"standard output cannot be written: {cause.strerror or cause}")
        self.is_closed_pipe = cause.errno == errno.EPIPE


@contextlib.contextmanager
def watched_standard_output() -> Iterator[None]:
    """Tell failed writes to standard output from other errors in the block. Click and Warp write to it too.

    Raises:
        StandardOutputError: A write failed, and the block raised its error or another one that it caused.
    """
    stream, failed = sys.stdout, list[OSError]()

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            try:
                return call(*arguments)
            except OSError as error:
                failed[:] = [error]  # one alone: each keeps the frames of its call
                raise

        return wrapper

    vars(stream).update(write=watched(stream.write), flush=watched(stream.flush))
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if any(cause is known for known in failed):
                raise StandardOutputError(failed[-1]) from error
            cause = cause.__cause__ or cause.__context__
        raise
    finally:
        for name in ("write", "flush"):
            vars(stream).pop(name, None)
