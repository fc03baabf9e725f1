"""The page: one HTML document that needs no script, no other file and no network.

The timeline is inline SVG: one drawing for each row, beside its label. Positions are percentages of the width; heights
and texts are in pixels. So a narrow page scales the times and leaves the texts readable.

All texts and attributes are escaped in :func:`escaped`, and nowhere else. The style has the colours of both themes as
variables, and rules that use only these.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from warp_tiles.reports import descriptions
from warp_tiles.reports.descriptions import Function, Json
from warp_tiles.reports.timeline import ModuleRows, Row, Span, sessions, timeline
from warp_tiles.util.warn import printable

_SHORT = ("state", "LTO-IR", "seconds", "products")


def is_built(module: Json) -> bool:
    """True if the module was built, False if it was only planned or is up to date."""
    return "output" in module and not module.get("up_to_date")


def cards(modules: Sequence[Json]) -> Markup:
    states = [function.state for module in modules for function in descriptions.functions(module)]
    built = [module for module in modules if is_built(module)]
    kept = sum(bool(module.get("up_to_date")) for module in modules)
    names = {module["name"] for module in modules}
    values: list[tuple[str, str]] = [
        (str(len(names)), "module" if len(names) == 1 else "modules"),
        *([(str(len(modules)), "targets of modules")] if len(modules) > len(names) else []),
        *([(str(kept), "up to date")] if kept else []),
        (str(len(states)), "products and solvers" if len(modules) == len(names) else "products and solvers of targets"),
    ]
    counts = ((state, states.count(state), text) for state, (_, text) in descriptions.STATES.items())
    values += [(str(count), text) for state, count, text in counts if count or state == descriptions.SKIPPED]
    if built:
        values += [
            (decimal(sum(module["lto_bytes"] for module in built)), "of LTO-IR"),
            (decimal(sum(module["cubin_bytes"] for module in built)), "of cubins"),
            (f"{_covered_s(built):.1f} s", "in which modules were built"),
        ]
    return element("ul", *(element("li", element("b", value), text) for value, text in values), class_="cards")


def _covered_s(modules: Sequence[Json]) -> float:
    """The seconds in which at least one module was built."""
    covered = end = 0.0
    for start, seconds in sorted((module["started_at_s"], module["seconds"]) for module in modules):
        covered += max(0.0, start + seconds - max(start, end))
        end = max(end, start + seconds)
    return covered


def notes(modules: Sequence[Json]) -> list[str]:
    """Every warning, fallback and link by Warp, once, with the module's name."""
    lines: list[str] = []
    for module in modules:
        texts = [f"{built.title}: {built.fallback}" for built in descriptions.functions(module) if built.fallback]
        texts += [text for build in module.get("builds", ()) for text in build["warnings"]]
        if module.get("linker") == "warp":
            texts.append(f"linked by Warp: {module['linker_reason']}")
        lines += [f"Module {module['name']}: {text}" for text in (*texts, descriptions.loops_note(module)) if text]
    return list(dict.fromkeys(lines))


def module_section(module: Json, is_one_of_many: bool, is_open: bool) -> Markup:
    """One module: what was done with each product, solver and loop, and why.

    It ``is_one_of_many`` with its title if it changed during the run.
    """
    planned = descriptions.functions(module)
    parts: list[Markup] = [_facts(_module_facts(module))]
    if planned:
        headings = ["function", "kernels", "state", "provider, tile", "reason"]
        headings += ["LTO-IR", "seconds"] if (has_builds := any(function.build for function in planned)) else []
        cells = [_function_cells(function, has_builds, module["arch"] is None) for function in planned]
        parts.append(table(headings, cells, "products and solvers", _SHORT))
    if rows := descriptions.loop_rows(module):
        cells = [[element("code", row[0]), element("code", row[1]), *row[2:]] for row in rows]
        parts.append(table(descriptions.LOOP_HEADINGS, cells, "loops of products", _SHORT))
    states = [function.state for function in planned]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no tile functions"
    counts = "up to date" if module.get("up_to_date") else counts
    name = descriptions.module_title(module) + (f", {module.get('output', 'not built')}" if is_one_of_many else "")
    title = element("summary", name, " ", element("span", counts, class_="muted"))
    return element("details", title, *parts, open="" if is_open else None)


def _module_facts(module: Json) -> list[tuple[str, str]]:
    if module.get("up_to_date"):
        file = _file(module, "up to date")
        return [("file", file), ("build", "none in this run: the folder holds the files of an earlier one")]
    facts: list[tuple[str, str]] = [("kernels", _codes(module["kernels"]))]
    if is_built(module):
        made = f"{module['lto_builds']} built, {module['lto_hits']} from the cache or shared"
        facts.append(("functions", f"{made}, {decimal(module['lto_bytes'])} of LTO-IR"))
        facts.append(("file", _file(module, "found linked" if module["found"] else f"linked by {module['linker']}")))
        facts.append(("time", f"{module['seconds']:.2f} s from the end of code generation to the file"))
    elif "builds" in module:
        facts.append(("build", "none in this run: Warp loaded the module from its own cache, or it was only planned"))
    return facts + [("note", text) for text in descriptions.module_notes(module)]


def _file(module: Json, state: str) -> Markup:
    return joined((element("code", module["output"]), f": {decimal(module['cubin_bytes'])}, {state}"))


def _facts(facts: Iterable[tuple[str, str]]) -> Markup:
    pairs = [part for name, value in facts for part in (element("dt", name), element("dd", value))]
    return element("dl", *pairs, class_="facts")


def _codes(names: Iterable[str]) -> Markup:
    return Markup(", ".join(element("code", name) for name in names))


def _function_cells(function: Function, has_builds: bool, on_cpu: bool) -> list[str]:
    build, state = function.build, function.state
    kind = "wait" if on_cpu else descriptions.STATES[state][0]
    cells: list[str] = [
        _with_more(function.title, function.planned["dtypes"]),
        _codes(function.planned["kernels"]),
        element("span", state, class_=f"state {kind}"),
        _with_more(function.provider, function.choice),
        function.reason,
    ]
    if has_builds:
        cells += [decimal(build["lto_bytes"]), f"{build['seconds']:.2f}"] if build else ["", ""]
    return cells


def _with_more(text: str, more: str) -> str:
    """A text, and more in a line below it. Both are one cell of the narrow page's grid."""
    if not text:
        return more
    return element("span", text, *([element("span", more, class_="muted more")] if more else []))


_MOST_OPEN = 6  # with more modules, each is closed at first


def page(document: Mapping[str, Any], title: str, facts: Mapping[str, str]) -> str:
    """The page of a plan or of a run.

    Args:
        document: ``modules``, as :func:`warp_tiles.report` and ``warp-tiles plan --json`` give them, ``start`` and
            ``not_in_kernel_packages``, as the former gives them, and ``matmul``, as the latter gives it.
        facts: Facts about the run, by name: script, time, versions.

    Returns:
        The HTML text. Each text of the document is escaped.
    """
    modules, others = descriptions.with_tiles(document["modules"])
    body = [
        element("h1", title),
        _facts([*facts.items(), *_start_facts(document.get("start")), *_package_facts(document)]),
        cards(modules),
        *_warnings([*descriptions.compiled_again(document["modules"]), *notes(modules)], any(map(is_built, modules))),
    ]
    if rows := timeline(modules):
        body += [
            element("h2", "Timeline of the builds"),
            element("p", "Thick bars work, thin bars wait. Each bar has its text as a tooltip.", class_="muted"),
            chart(rows),
        ]
    if products := document.get("matmul"):
        cells = descriptions.product_rows(products)
        body.append(element("h2", "Products of warp_tiles.matmul"))
        body.append(table(descriptions.PRODUCT_HEADINGS, cells, "products of warp_tiles.matmul", _SHORT))
    if solves := document.get("solves"):
        body.append(element("h2", descriptions.SOLVES.capitalize()))
        body.append(table(descriptions.SOLVE_HEADINGS, descriptions.solve_rows(solves), descriptions.SOLVES, _SHORT))
    body.append(element("h2", "Modules"))
    titles = Counter(map(descriptions.module_title, modules))
    body += [module_section(m, titles[descriptions.module_title(m)] > 1, len(modules) <= _MOST_OPEN) for m in modules]
    if others or not modules:
        body.append(element("p", others or "No module with products or solvers was planned or built.", class_="muted"))
    return _document(title, body)


def _start_facts(start: Json | None) -> Iterator[tuple[str, str]]:
    if start is not None:
        waste = f", {start['unused']} for no launch ({start['unused_seconds']:.1f} s)" if start["unused"] else ""
        text = f": {start['compiled']} modules compiled ahead, {start['used']} used{waste}"
        yield "start list", joined((element("code", start["file"]), text))


def _package_facts(document: Json) -> Iterator[tuple[str, str]]:
    """What came from which installed kernel package, and what did not."""
    served = Counter(module.get("kernel_package", "") for module in document["modules"] if is_built(module))
    for package, count in served.items():
        if package:
            yield "kernel package", f"{package}: {count} module{'s' * (count != 1)}"
    missed = Counter(module["reason"] for module in document.get("not_in_kernel_packages", ()))
    for reason, count in missed.items():
        yield "not from kernel packages", f"{count} module{'s' * (count != 1)}: {reason}"
    generated = Counter(module.get("start_key", "") for module in document["modules"] if module.get("found"))
    for outcome, count in generated.items():
        if outcome not in ("", "found"):
            yield "generated, and then found", f"{count} module{'s' * (count != 1)}, whose start key was {outcome}"


def _warnings(texts: list[str], built: bool) -> list[Markup]:
    if not texts:
        text = "No warning and no fallback." if built else "No warning."
        return [element("h2", "Warnings"), element("p", text, class_="muted")]
    items = [element("li", text) for text in texts]
    return [element("h2", f"Warnings and fallbacks ({len(texts)})"), element("ul", *items, class_="notes")]


def _document(title: str, body: list[Markup]) -> str:
    policy = {"http_equiv": "Content-Security-Policy", "content": content_security_policy(STYLE)}
    head = [
        element("meta", charset="utf-8"),
        element("meta", **policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Markup(STYLE)),
    ]
    whole = element("html", element("head", *head), element("body", element("main", *body)), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


# ---- the timeline

HEIGHT = 18
_SHAPES = {"wait": (7, 4), "shared": (7, 4)}  # top and height in pixels of waits
_WORK = 3, 12
_LEAST = 0.15  # percent; anything shorter could not be seen
_TICKS = 6
LEGEND = (
    ("compile", "compiles or builds"),
    ("link", "links"),
    ("cache", "looks up in the cache or the remote store"),
    ("shared", "waits for another module's build"),
    ("wait", "waits, or reads and writes files"),
)


def chart(rows: Sequence[ModuleRows]) -> Markup:
    """The timelines of all modules: one for each period of builds."""
    items = [element("li", _drawing([_rect(kind, 0, 100, None)]), text) for kind, text in LEGEND]
    return element("div", element("ul", *items, class_="legend"), *map(_session, sessions(rows)))


def _session(group: Sequence[ModuleRows]) -> Markup:
    drawn: list[ModuleRows | Span] = [*group, *(span for item in group for row in item.rows for span in row.spans)]
    scale = _Scale(min(part.start_s for part in drawn), max(part.end_s for part in drawn))
    lanes = [_lane("seconds since warp_tiles was enabled", "muted", scale.axis())]
    for item in group:
        took = f"{item.end_s - item.start_s:.2f} s"
        lanes.append(element("div", element("span", f"{item.name}: {took}", class_="label"), class_="lane module"))
        lanes += [_lane(joined([row.label, " ", element("span", row.note)]), None, scale.row(row)) for row in item.rows]
    return element("div", *lanes, class_="lanes")


def _lane(label: str, kind: str | None, drawing: Markup) -> Markup:
    classes = "label" if kind is None else f"label {kind}"
    return element("div", element("span", label, class_=classes), drawing, class_="lane")


class _Scale:
    """Places times on the width of a drawing."""

    def __init__(self, start_s: float, end_s: float) -> None:
        self._start = start_s
        self._length = max(end_s - start_s, 1e-6)
        self._ticks = ticks(start_s, start_s + self._length)

    def _percent(self, time_s: float) -> float:
        return min(100.0, max(0.0, 100 * (time_s - self._start) / self._length))

    def _lines(self) -> list[Markup]:
        positions = [f"{self._percent(tick):.2f}%" for tick in self._ticks]
        return [element("line", x1=x, x2=x, y1="0", y2=str(HEIGHT), class_="tick") for x in positions]

    def axis(self) -> Markup:
        """The times of the ticks. A text near an edge stays inside."""
        step = self._ticks[1] - self._ticks[0] if len(self._ticks) > 1 else 1.0
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        texts = []
        for tick in self._ticks:
            at = self._percent(tick)
            anchor = "start" if at < 4 else "end" if at > 96 else "middle"
            texts.append(element("text", f"{tick:.{digits}f}", x=f"{at:.2f}%", y="12", text_anchor=anchor))
        return _drawing(texts)

    def row(self, row: Row) -> Markup:
        """The spans of a row. Their texts are tooltips, and the row's description for screen readers."""
        spans = sorted(row.spans, key=lambda span: span.kind not in _SHAPES)  # work over waiting
        rects = [_rect(span.kind, *self._place(span), f"{span.text}: {span.seconds:.3f} s") for span in spans]
        return _drawing([*self._lines(), *rects], f"{row.label}: {row.note}")

    def _place(self, span: Span) -> tuple[float, float]:
        left = min(self._percent(span.start_s), 100 - _LEAST)
        return left, max(self._percent(span.end_s) - left, _LEAST)


def _rect(kind: str, left: float, width: float, title: str | None) -> Markup:
    top, height = _SHAPES.get(kind, _WORK)
    inner = () if title is None else (element("title", title),)
    position = {"x": f"{left:.2f}%", "y": str(top), "width": f"{width:.2f}%", "height": str(height)}
    return element("rect", *inner, class_=kind, **position)


def _drawing(parts: Sequence[Markup], label: str | None = None) -> Markup:
    described = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
    return element("svg", *parts, width="100%", height=str(HEIGHT), **described)


def ticks(low: float, high: float) -> list[float]:
    """Round times between two times, at most seven, with steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


# ---- elements and style

_VOID = frozenset(("meta", "br", "rect", "line"))


class Markup(str):
    """Text that is HTML already. What is made of it by operators of texts is not."""


def element(name: str, /, *content: str, **attributes: str | None) -> Markup:
    """An element with content. Strings are escaped, markup is not.

    In names of attributes ``_`` becomes ``-``, and one at the end is dropped (``class_``). None leaves one out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not content:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{joined(content)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escaped(part) for part in parts))


def escaped(text: str) -> str:
    """A text for an element or an attribute, with a visible form of control characters and lone surrogates."""
    return html.escape(printable(text, lines=True), quote=True)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], caption: str, unbroken: Collection[str] = ()
) -> Markup:
    """A table whose cells carry their headings, so that a narrow page can show each row as a list.

    Short texts, in columns with ``unbroken`` headings, are not broken into lines.
    """
    headings, rows = descriptions.filled(headings, list(rows))
    names = [element("th", name, scope="col", class_="short" if name in unbroken else None) for name in headings]
    body = [
        element("tr", *(_cell(name, cell, name in unbroken) for name, cell in zip(headings, cells, strict=True)))
        for cells in rows
    ]
    head = element("thead", element("tr", *names))
    return element("div", element("table", element("caption", caption), head, element("tbody", *body)), class_="wide")


def _cell(heading: str, cell: str, is_short: bool) -> Markup:
    classes = " ".join(name for name, applies in (("short", is_short), ("empty", not cell)) if applies)
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
_LIGHT, _DARK = (" ".join(f"--{name}: {pair[theme]};" for name, pair in _COLOURS.items()) for theme in (0, 1))
_RULES = Path(__file__).with_name("page.css").read_text("utf-8")

STYLE = (
    f":root {{ color-scheme: light dark; {_LIGHT} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}\n{_RULES}"
)


def content_security_policy(style: str) -> str:
    """A policy that allows one inline style by its digest, and nothing else: no script, no image, no request."""
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
