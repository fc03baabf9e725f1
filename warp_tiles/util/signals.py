"""Errors that a signal's handler raises, such as a time limit. Python raises them wherever the main thread is."""

from __future__ import annotations

import inspect
from itertools import pairwise
from traceback import walk_tb


def raise_if_signalled(error: BaseException) -> None:
    """Raise an error again if a signal's handler has raised it, because it says nothing about the interrupted work.

    Python calls a handler with a signal and the interrupted frame, so its frame holds the one before it.
    """
    for (interrupted, _), (frame, _) in pairwise(walk_tb(error.__traceback__)):
        code = frame.f_code
        takes_any = bool(code.co_flags & inspect.CO_VARARGS)
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + takes_any]:
            value = frame.f_locals.get(name)
            if interrupted in (value if isinstance(value, tuple) else (value,)):
                raise error
