"""A header and what it includes as one text, for sources that are compiled where the headers are not found."""

from __future__ import annotations

import re
from pathlib import Path

_QUOTED = re.compile(r'[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"')
_ONCE = re.compile(r"[ \t]*#[ \t]*pragma[ \t]+once\b")


def flattened(header: Path, root: Path) -> str:
    """The text of a header with its quoted includes in place, each once.

    A quoted include is looked up beside the file that has it, then in ``root``; one that lies outside ``root`` stays,
    as do those in angle brackets. ``#pragma once`` is dropped, because the text is no header any more.

    Args:
        header: The header.
        root: Folder of the headers that are put in place.
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
