"""The log, and the warnings of this package: one prefix, one category, the line of the user's program behind each."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from pathlib import Path


def printable(text: str, *, lines: bool = False) -> str:
    """The text, with escapes for control sequences of terminals and for characters that a stream cannot encode.

    A part of it may come from a file or from another machine. With ``lines``, ends of lines and tabs stay.
    """
    kept = "\n\t" if lines else ""
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape").decode("ascii") for char in text
    )


log = logging.getLogger("warp_tiles")
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


class WarnedTexts:
    """The texts of past warnings, so that each is issued once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: set[str] = set()

    def add(self, text: str) -> bool:
        """Add a text. Returns True if it is new."""
        with self._lock:
            new = text not in self._texts
            self._texts.add(text)
        return new


def warn(text: str, once: WarnedTexts | None = None) -> None:
    """Issue a RuntimeWarning about an event and its cost, behind the prefix ``warp_tiles:``.

    What a terminal would obey, e.g. in the name of a file, is escaped. Texts in ``once`` are not repeated, and the new
    one is added; None always warns.
    """
    if once is None or once.add(text):
        warnings.warn(f"warp_tiles: {printable(text, lines=True)}", RuntimeWarning, stacklevel=_stacklevel())


_once = WarnedTexts()


def warn_once(text: str) -> None:
    """Issue a RuntimeWarning as :func:`warn` does, unless this process has issued it before."""
    warn(text, _once)


def _stacklevel() -> int:
    """The level, as :func:`warn` counts it, of the innermost frame outside this package.

    On a thread of this package only ``threading`` has such frames. The level is then that of the caller of
    :func:`warn`.
    """
    frame, level = sys._getframe(1).f_back, 2
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return 2 if frame is None or frame.f_code.co_filename == threading.__file__ else level
