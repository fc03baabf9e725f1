"""Every exception that warp_tiles raises, and which one a broad ``except`` may keep: not those of a signal's handler.

docs/troubleshooting.md draws the tree.

A mistake in a kernel itself (unknown dtype, mismatched shapes) raises the same exception as in Warp:
``TypeError`` or ``ValueError``.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from itertools import pairwise
from traceback import walk_tb
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)


class WarpTilesError(Exception):
    """Base of all errors of this package.

    Args:
        message: The failure and the received value.
        remedy: The user's way to solve it, printed on its own line.
        log: The compiler's or linker's own output, printed last.

    The three parts survive pickling, so an error from a worker process arrives complete.
    """

    def __init__(self, message: str, remedy: str = "", log: str = "") -> None:
        # all three are arguments of the exception, so that pickling and Warp's replay keep them
        super().__init__(message, remedy, log)
        self.message = message
        self.remedy = remedy
        self.log = log

    def __str__(self) -> str:
        parts = [self.message]
        if self.remedy:
            parts.append(f"Remedy: {self.remedy}")
        if self.log:
            parts.append(f"Log:\n{self.log.rstrip()}")
        return "\n".join(parts)


class SettingError(WarpTilesError, ValueError):
    """A setting or environment variable has an unknown name or value."""


class UnsupportedWarpError(WarpTilesError, RuntimeError):
    """The installed Warp lacks something that warp_tiles hooks into."""


class ToolchainError(WarpTilesError, RuntimeError):
    """NVRTC, headers or the linker are missing or do not fit together."""


class WorkerError(ToolchainError):
    """A compiler process or a foreign executor failed; trying again may help."""


class RefusedWorkerError(WorkerError):
    """A worker has another compiler, other headers or other sources. It is not asked again."""


class PlanError(WarpTilesError, RuntimeError):
    """A kernel cannot be planned."""


class BuildError(WarpTilesError, RuntimeError):
    """A function could not be compiled."""


class UnsupportedProblem(BuildError):  # noqa: N818  a name like StopIteration, without "Error"
    """A provider cannot serve a problem; the message names the field and its value."""


class MatmulError(WarpTilesError, ValueError):
    """An argument of matmul, cholesky or solve does not fit, or a captured graph has no memory."""


class RecordingError(WarpTilesError, ValueError):
    """A launch cannot be recorded, or an argument does not fit the recording."""


class LinkError(WarpTilesError, RuntimeError):
    """A module could not be compiled or linked."""


class CacheError(WarpTilesError):
    """The cache refuses a request, or does not hold the requested entry."""


class BundleError(CacheError, ValueError):
    """A bundle is malformed or names a path outside the cache."""


class RemoteError(WarpTilesError):
    """A remote store, a signing key or a trusted key cannot be used."""


class RecordError(WarpTilesError, ValueError):
    """The store of tuning records refuses a request, or does not hold the requested record."""


class TuningError(WarpTilesError, RuntimeError):
    """A search cannot begin, or all of its candidates failed; the message gives the reasons."""


class LockedError(WarpTilesError):
    """The policy is locked, and a cached function, a tuning record or the toolchain is missing."""


class OutputError(WarpTilesError):
    """A file or folder that a command writes cannot be written."""


class ScriptError(WarpTilesError, RuntimeError):
    """A script given to the command line could not be run."""


def shown(value: object, most: int = 80) -> str:
    """The beginning of a value of somebody else, for a message. Not every value has a ``repr``."""
    try:
        return f"{value!r:.{most}}"
    except (ValueError, RecursionError):  # an integer of thousands of digits, or deeply nested lists
        return f"a value of the type {type(value).__name__} that Python does not print"


# ---- errors of a signal's handler, such as a time limit, which appear wherever the main thread is


def raise_if_signalled(error: BaseException) -> None:
    """Raise an error, or its cause, again if a signal's handler has raised it: it is not about the interrupted work.

    Python calls a handler with a signal and the interrupted frame, so its frame holds the one before it.
    """
    cause: BaseException | None = error
    while cause is not None:
        if _is_of_a_handler(cause):
            raise cause
        cause = cause.__cause__


def unless_signalled(*kinds: type[E]) -> tuple[type[E], ...]:
    """The classes of an except clause that passes on what a signal's handler has raised."""
    error = sys.exc_info()[1]
    if isinstance(error, kinds):
        raise_if_signalled(error)
    return kinds


class suppressed(suppress):  # noqa: N801  as contextlib names it
    """``contextlib.suppress``, which passes on what a signal's handler raises, such as TimeoutError."""

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        if error is not None:
            raise_if_signalled(error)
        return super().__exit__(kind, error, traceback)


def _is_of_a_handler(error: BaseException) -> bool:
    for (interrupted, _), (frame, _) in pairwise(walk_tb(error.__traceback__)):
        code = frame.f_code
        takes_any = bool(code.co_flags & inspect.CO_VARARGS)
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + takes_any]:
            value = frame.f_locals.get(name)
            if any(argument is interrupted for argument in (value if isinstance(value, tuple) else (value,))):
                return True
    return False
