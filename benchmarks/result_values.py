"""Reads values of ``benchmarks/results``, and shows them as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


@cache
def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def at(path: str) -> Any:
    """A value of a result: the file, and the keys of objects or names of rows, with slashes between.

    Raises:
        LookupError: There is none.
    """
    name, *keys = path.split("/")
    value = result(name)
    for key in keys:
        if isinstance(value, dict) and key not in value and "rows" in value:
            value = value["rows"]
        value = value[key] if isinstance(value, dict) else _member(value, key)
    return value


def _member(rows: Sequence[Any], key: str) -> Any:
    found = [row for row in rows if isinstance(row, dict) and row.get("name") == key]
    if not found and not key.isdigit():
        raise LookupError(f"there is no row {key!r}")
    return found[0] if found else rows[int(key)]


def ratio(value: float) -> str:
    """A ratio with two decimals below 2, one below 20, and none above."""
    return f"{value:.{2 if value < 2 else 1 if value < 20 else 0}f}"


FORMS: dict[str, Callable[[float], str]] = {"ratio": ratio, "MB": lambda size_bytes: f"{size_bytes / 1e6:.2f}"}


def shown(mark: str) -> str:
    """A value, or one ``over`` another, in the format behind a colon: that of Python, or a name of :data:`FORMS`.

    A path with ``*`` in the name of a row shows the least and the greatest value of the rows that it matches.
    """
    paths, _, form = mark.partition(":")
    path, _, divisor = paths.partition(" over ")
    if "*" in path:
        return span(_of_rows(path), form)
    return _text(at(path) / at(divisor) if divisor else at(path), form)


def _of_rows(path: str) -> list[float]:
    name, pattern, *keys = path.split("/")
    rows = [row["name"] for row in at(f"{name}/rows") if fnmatchcase(row["name"], pattern)]
    if not rows:
        raise LookupError(f"no row of {name} is named as {pattern!r}")
    return [at("/".join((name, row, *keys))) for row in rows]


def _text(value: Any, form: str) -> str:
    return FORMS[form](value) if form in FORMS else format(value, form)


def span(numbers: Iterable[float], form: str = "") -> str:
    """The least and the greatest of some numbers."""
    found = list(numbers)
    return f"{_text(min(found), form)} to {_text(max(found), form)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, with an empty line before and after it."""
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n\n" + "\n".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|" for cells in lines) + "\n\n"
    )
