"""Flattens a header and its includes to one text, for sources that are compiled without an include path to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_QUOTED = re.compile(r'[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"')
_ONCE = re.compile(r"[ \t]*#[ \t]*pragma[ \t]+once\b")
_State = tuple[int, int, int, int]  # times of the last changes, size and number of a file


@dataclass(frozen=True)
class _Flattened:
    """The text of a header, and the states of the files that it was made of."""

    text: str
    states: Mapping[Path, _State]

    @property
    def is_current(self) -> bool:
        """True if no file has changed."""
        try:
            return all(_state(path) == state for path, state in self.states.items())
        except OSError:
            return False


_known: dict[tuple[Path, Path], _Flattened] = {}


def flatten(header: Path, root: Path) -> str:
    """The text of a header in which each quoted include is replaced once by its text.

    A quoted include is looked up beside the including file, then in ``root``. Includes outside ``root`` and includes in
    angle brackets stay. ``#pragma once`` is dropped, because the text is not a header any more. The text is kept until
    one of its files changes. A new file that an include would find first changes nothing.

    Args:
        header: The header.
        root: Folder of the headers that are inlined.
    """
    header, root = header.resolve(), root.resolve()
    known = _known.get((header, root))
    if known is None or not known.is_current:
        states: dict[Path, _State] = {}
        known = _known[header, root] = _Flattened(_text(header, root, states), states)
    return known.text


def _state(path: Path) -> _State:
    found = path.stat()
    return found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino


def _text(header: Path, root: Path, seen: dict[Path, _State]) -> str:
    seen[header] = _state(header)
    lines: list[str] = []
    for line in header.read_text(encoding="utf-8").splitlines(keepends=True):
        found = _found(match[1], header, root) if (match := _QUOTED.match(line)) else None
        if found is not None:
            lines.append("" if found in seen else _text(found, root, seen))
        elif not _ONCE.match(line):
            lines.append(line)
    return "".join(lines)


def _found(name: str, includer: Path, root: Path) -> Path | None:
    places = ((folder / name).resolve() for folder in (includer.parent, root))
    return next((place for place in places if place.is_file() and place.is_relative_to(root)), None)
