"""Flattens a header and its includes to one text, for sources that are compiled without an include path to them."""

from __future__ import annotations

import re
from pathlib import Path

_QUOTED = re.compile(r'[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"')
_ONCE = re.compile(r"[ \t]*#[ \t]*pragma[ \t]+once\b")


def flatten(header: Path, root: Path) -> str:
    """The text of a header in which each quoted include is replaced once by its text.

    A quoted include is looked up beside the including file, then in ``root``. Includes outside ``root`` and includes in
    angle brackets stay. ``#pragma once`` is dropped, because the text is not a header any more.

    Args:
        header: The header.
        root: Folder of the headers that are inlined.
    """
    return _text(header.resolve(), root.resolve(), set())


def _text(header: Path, root: Path, seen: set[Path]) -> str:
    seen.add(header)
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
