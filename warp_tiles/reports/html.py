"""Elements of a page as text. All texts and attributes are escaped here and nowhere else."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

_VOID = frozenset(("meta", "br", "rect", "line"))


@dataclass(frozen=True)
class Markup:
    """Text that is HTML already."""

    text: str


Content = Markup | str


def element(name: str, /, *content: Content, **attributes: str | None) -> Markup:
    """An element with content. Strings are escaped, markup is not.

    Args:
        name: The element.
        content: Its content.
        attributes: Its attributes. ``_`` in a name becomes ``-``, and one at its end is dropped (``class_``). None
            leaves an attribute out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not content:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{joined(content).text}</{name}>")


def joined(parts: Iterable[Content]) -> Markup:
    """Parts after one another. Strings are escaped."""
    return Markup("".join(part.text if isinstance(part, Markup) else escaped(part) for part in parts))


def escaped(text: str) -> str:
    """A text for an element or an attribute, with a visible form of control characters and lone surrogates."""
    shown = "".join(char if char in "\n\t" or char.isprintable() else _visible(char) for char in text)
    return html.escape(shown, quote=True)


def _visible(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Content]], caption: str, unbroken: Collection[str] = ()
) -> Markup:
    """A table whose cells carry their headings, so that a narrow page can show each row as a list.

    Args:
        headings: A heading for each column.
        rows: The cells of each row.
        caption: The text above the table.
        unbroken: Headings of columns with short texts, which are not broken into lines.
    """
    names = [element("th", name, scope="col", class_="short" if name in unbroken else None) for name in headings]
    body = [
        element("tr", *(_cell(name, cell, name in unbroken) for name, cell in zip(headings, cells, strict=True)))
        for cells in rows
    ]
    head = element("thead", element("tr", *names))
    return element("div", element("table", element("caption", caption), head, element("tbody", *body)), class_="wide")


def _cell(heading: str, cell: Content, is_short: bool) -> Markup:
    is_empty = not (cell.text if isinstance(cell, Markup) else cell)
    classes = " ".join(name for name, applies in (("short", is_short), ("empty", is_empty)) if applies)
    return element("td", cell, data_label=heading, class_=classes or None)
