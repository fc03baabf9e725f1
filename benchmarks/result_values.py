"""Reads values of ``benchmarks/results``, and shows them as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


@cache
def result(name: str) -> Any:
    """The content of ``benchmarks/results/<name>.json``."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def at(name: str, path: str) -> Any:
    """A value of a result, by its names with dots between."""
    value = result(name)
    for part in path.split("."):
        value = value[part]
    return value


def row(name: str, start: str, rows: str = "rows") -> Any:
    """The first row of a result whose name starts with a text."""
    return next(found for found in at(name, rows) if found["name"].startswith(start))


def ratio(value: float) -> str:
    """A ratio with two decimals below 2, one below 20, and none above."""
    return f"{value:.{2 if value < 2 else 1 if value < 20 else 0}f}"


def span(numbers: Iterable[float], form: str = "") -> str:
    """The least and the greatest of some numbers."""
    shown = list(numbers)
    return f"{format(min(shown), form)} to {format(max(shown), form)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, with an empty line before and after it."""
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n\n" + "\n".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|" for cells in lines) + "\n\n"
    )
