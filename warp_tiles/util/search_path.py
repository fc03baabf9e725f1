"""The folders from which Python imports."""

from __future__ import annotations

import os
import sys


def search_path() -> list[str]:
    """The entries of ``sys.path`` that Python uses, without the empty one.

    Python ignores entries of other types than text. The empty entry stands for the working folder, whose files may
    belong to anyone.
    """
    return [entry for entry in sys.path if isinstance(entry, str) and entry]


def absolute(path: str) -> str:
    """The absolute path, or the path as it is if the working folder was removed."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        return path
