"""Errors that a signal's handler raises, such as a time limit. Python raises them wherever the main thread is."""

from __future__ import annotations

import inspect
from itertools import pairwise
from traceback import walk_tb


def raise_if_signalled(error: BaseException) -> None:
    """Raise an error, or its cause, again if a signal's handler has raised it: it is not about the interrupted work.

    Python calls a handler with a signal and the interrupted frame, so its frame holds the one before it.
    """
    cause: BaseException | None = error
    while cause is not None:
        if _is_of_a_handler(cause):
            raise cause
        cause = cause.__cause__


def _is_of_a_handler(error: BaseException) -> bool:
    for (interrupted, _), (frame, _) in pairwise(walk_tb(error.__traceback__)):
        code = frame.f_code
        takes_any = bool(code.co_flags & inspect.CO_VARARGS)
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + takes_any]:
            value = frame.f_locals.get(name)
            if any(one is interrupted for one in (value if isinstance(value, tuple) else (value,))):
                return True
    return False
