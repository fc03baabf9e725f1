"""Elements and style of a page as text. All texts and attributes are escaped here and nowhere else.

The style has the colours of both themes as variables, and rules that use only these.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from warp_tiles.reports.descriptions import filled
from warp_tiles.util.warn import printable

_VOID = frozenset(("meta", "br", "rect", "line"))


@dataclass(frozen=True)
class Markup:
    """Text that is HTML already."""

    text: str


Content = Markup | str


def element(name: str, /, *content: Content, **attributes: str | None) -> Markup:
    """An element with content. Strings are escaped, markup is not.

    Args:
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
    return html.escape(printable(text, lines=True), quote=True)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Content]], caption: str, unbroken: Collection[str] = ()
) -> Markup:
    """A table whose cells carry their headings, so that a narrow page can show each row as a list.

    Args:
        unbroken: Headings of columns with short texts, which are not broken into lines.
    """
    headings, rows = filled(headings, list(rows))
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


# texts and marks have a contrast of at least 4.5 (WCAG 2.2) to both backgrounds, page and panel
_COLOURS = {  # of the light theme, and of the dark one
    "page": ("#ffffff", "#0f1318"),
    "panel": ("#f3f5f8", "#181d24"),
    "text": ("#1b1f24", "#e6eaef"),
    "muted": ("#545b64", "#a0a8b3"),
    "compile": ("#0a58a8", "#6cb2ff"),
    "cache": ("#17692f", "#4cc265"),
    "link": ("#7440c8", "#c09bff"),
    "shared": ("#8a5300", "#e0a33a"),
    "wait": ("#5f6771", "#98a1ad"),
    "bad": ("#b3202a", "#ff8078"),
    "edge": ("#cfd6de", "#363e49"),
}
LIGHT, DARK = ({name: pair[theme] for name, pair in _COLOURS.items()} for theme in (0, 1))


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


_RULES = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 20px 24px 60px; }
h1 { font-size: 26px; line-height: 1.25; margin: 8px 0 4px; }
h2 { font-size: 19px; margin: 36px 0 8px; }
p { margin: 6px 0 12px; max-width: 80ch; }
h1, h2, h3, p, td, th, dd, summary, li { overflow-wrap: anywhere; }
.muted, caption, dt { color: var(--muted); }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 8px 0; }
.facts dd { margin: 0; min-width: 0; }
.cards { display: flex; flex-wrap: wrap; gap: 10px; padding: 0; }
.cards li { flex: 1 1 136px; list-style: none;
  background: var(--panel); border: 1px solid var(--edge); border-radius: 8px;
  padding: 10px 12px; }
.cards b { display: block; white-space: nowrap; font-size: 22px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.notes { margin: 0; padding: 0; }
.notes li { list-style: none; margin: 8px 0; padding: 8px 12px; background: var(--panel);
  border-left: 4px solid var(--bad); white-space: pre-wrap; }
details { margin: 14px 0; border: 1px solid var(--edge); border-radius: 8px; padding: 0 14px; }
summary { cursor: pointer; font-weight: 600; padding: 10px 0; }
summary .muted { font-weight: 400; }
summary:focus-visible { outline: 2px solid var(--compile); outline-offset: 2px; }
table { width: 100%; border-collapse: collapse; margin: 8px 0 16px; font-size: 14px; }
caption { text-align: left; padding: 4px 0; }
th, td { text-align: left; vertical-align: top; padding: 5px 10px 5px 0; border-top: 1px solid var(--edge); }
th { color: var(--muted); font-weight: 600; border-top: 0; }
code { font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
.short { white-space: nowrap; }
.more { display: block; }
td:not(.short) { min-width: 9em; }
.state { white-space: nowrap; font-weight: 600; }
.state.compile { color: var(--compile); } .state.cache { color: var(--cache); } .state.shared { color: var(--shared); }
.state.wait { color: var(--muted); } .state.bad { color: var(--bad); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0; padding: 0; }
.legend li { list-style: none; display: flex; align-items: center; gap: 6px; }
.legend svg { width: 22px; height: 16px; flex: none; }
.lanes { background: var(--panel); border: 1px solid var(--edge); border-radius: 8px;
  padding: 8px 14px 12px; margin: 10px 0; }
.lane { display: grid; grid-template-columns: minmax(0, 30em) minmax(0, 1fr); gap: 0 16px; align-items: center;
  padding: 2px 0; font-size: 13px; line-height: 1.35; }
.lane.module { font-weight: 600; padding-top: 10px; }
.lane svg { display: block; width: 100%; height: 18px; overflow: visible; }
.lane .label { min-width: 0; overflow-wrap: anywhere; }
.lane .label span { color: var(--muted); }
svg text { fill: var(--muted); font-size: 12px; }
svg .tick { stroke: var(--edge); stroke-width: 1; }
svg rect { stroke-width: 1; }
svg .compile { fill: var(--compile); stroke: var(--compile); } svg .link { fill: var(--link); stroke: var(--link); }
svg .cache { fill: var(--cache); stroke: var(--cache); } svg .wait { fill: var(--wait); stroke: var(--wait); }
svg .shared { fill: var(--shared); stroke: var(--shared); }
@media (max-width: 720px) {
  main { padding: 12px 14px 40px; }
  .lane { grid-template-columns: minmax(0, 1fr); padding: 5px 0; }
  .facts { grid-template-columns: minmax(0, 1fr); gap: 0; } .facts dd { margin: 0 0 6px; }
  .cards li { flex-basis: calc(50% - 35px); }
  table, caption, tbody, tr, td { display: block; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  tr { border-top: 1px solid var(--edge); padding: 8px 0; }
  td, td:not(.short) { border: 0; padding: 1px 0; min-width: 0; white-space: normal;
    display: grid; grid-template-columns: 7.5em minmax(0, 1fr); gap: 8px; }
  td::before { content: attr(data-label); color: var(--muted); }
  td.empty { display: none; }
}
@media print { details { border: 0; padding: 0; } .lanes, .cards li { break-inside: avoid; } }
"""

STYLE = (
    f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}{_RULES}"
)


def content_security_policy(style: str) -> str:
    """A policy that allows one inline style by its digest, and nothing else: no script, no image, no request."""
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
