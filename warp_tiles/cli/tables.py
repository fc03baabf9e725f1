"""The layout of tables in a given width. Words are never broken and values never cut.

A table that fits has one column for each heading, and its long texts wrap between words. In a table that does not fit,
each row begins with a line of the columns that fit; its other cells follow below it as ``heading: value``. A word that
is longer than the width, such as a path, stands whole on a line of its own, so that it can be copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

NARROWEST = 24  # columns of text that wraps; shorter lines are hard to read
BORDERS = 3  # columns beside each cell: a space, a line and a space
GAP, INDENT = "  ", "  "  # between the cells of a line, and before the cells below it


def wrap(text: str, width: int) -> list[str]:
    """The lines of a text in a width, broken between words only."""
    lines: list[str] = []
    for paragraph in text.expandtabs().splitlines() or [""]:
        line, *words = paragraph.split(" ")
        for word in words:
            longer = f"{line} {word}"
            if line.strip() and cell_len(longer) > width:
                lines.append(line.rstrip())
                line = word
            else:
                line = longer
        lines.append(line.rstrip())
    return lines


def column_widths(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """The widths in which columns fit side by side with borders, or None if text would have to be broken or squeezed.

    Args:
        columns: The cells of each column, its heading among them.
        width: The columns of the screen.
    """
    available = width - BORDERS * len(columns) - 1
    natural = [_widest(cells) for cells in columns]
    least = [max(_longest_word(cells), min(full, NARROWEST)) for cells, full in zip(columns, natural)]
    if sum(least) > available:
        return None
    widths = least
    for limit in range(NARROWEST, max(natural, default=0) + 1):  # columns of long texts become equally wide
        wider = [max(low, min(full, limit)) for low, full in zip(least, natural)]
        if sum(wider) > available:
            break
        widths = wider
    return widths


def stacked(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, rule: str = "─") -> Iterator[Text]:
    """The lines of a table whose columns do not fit side by side.

    Args:
        headings: The name of each column; it may be empty.
        rows: The cells of each row, one for each heading.
        width: The columns of the screen.
        rule: The character of the line below the headings.
    """
    chosen = _columns_that_fit([[heading, *cells] for heading, *cells in zip(headings, *rows)], width)
    if chosen:
        yield Text(_side_by_side(headings, chosen), "bold")
        yield Text(_side_by_side([rule * chosen.get(number, 0) for number in range(len(headings))], chosen))
    for row in rows:
        if chosen:
            yield Text(_side_by_side(row, chosen))
        others = [(heading, cell) for number, (heading, cell) in enumerate(zip(headings, row)) if number not in chosen]
        yield from _below(others, width, INDENT if chosen else "")


def _columns_that_fit(columns: Sequence[Sequence[str]], width: int) -> dict[int, int]:
    """The columns in the first line of each row, with their widths: the first one and each that fits beside it."""
    chosen: dict[int, int] = {}
    for number, cells in enumerate(columns):
        if number and not chosen:
            break
        needed = _widest(cells)
        if sum(chosen.values()) + len(GAP) * len(chosen) + needed <= width and not any("\n" in cell for cell in cells):
            chosen[number] = needed
    return chosen


def _side_by_side(cells: Sequence[str], widths: dict[int, int]) -> str:
    padded = [cells[number] + " " * (size - cell_len(cells[number])) for number, size in widths.items()]
    return GAP.join(padded).rstrip()


def _below(cells: Iterable[tuple[str, str]], width: int, indent: str) -> Iterator[Text]:
    """Lines of ``heading: value``, several on a line if they fit. A value that wraps has lines of its own."""
    line = Text(indent)
    for heading, cell in cells:
        if not cell.strip():
            continue
        label = f"{heading}: " if heading else ""
        first, *more = wrap(label + cell, width - len(indent + INDENT))
        pair = Text(first)
        pair.stylize("bold", 0, len(label))
        if line.plain != indent and (more or line.cell_len + len(GAP) + pair.cell_len > width):
            yield line
            line = Text(indent)
        line.append("" if line.plain == indent else GAP).append_text(pair)
        if more:
            yield line
            yield from (Text(indent + INDENT + part) for part in more[:-1])
            line = Text(indent + INDENT + more[-1])
    if line.plain != indent:
        yield line


def _widest(cells: Iterable[str]) -> int:
    return max((cell_len(line) for cell in cells for line in cell.splitlines()), default=0)


def _longest_word(cells: Iterable[str]) -> int:
    return max((cell_len(word) for cell in cells for word in cell.split()), default=0)
