"""The timeline as inline SVG: one drawing for each row, beside its label.

Positions are percentages of the width; heights and texts are in pixels. So a narrow page scales the times and leaves
the texts readable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from warp_tiles.reports.html import Content, Markup, element, joined
from warp_tiles.reports.timeline import ModuleRows, Row, Span, sessions

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
    scale = _Scale(min(each.start_s for each in drawn), max(each.end_s for each in drawn))
    lanes = [_lane("seconds since warp_tiles was enabled", "muted", scale.axis())]
    for item in group:
        took = f"{item.end_s - item.start_s:.2f} s"
        lanes.append(element("div", element("span", f"{item.name}: {took}", class_="label"), class_="lane module"))
        lanes += [_lane(joined([row.label, " ", element("span", row.note)]), None, scale.row(row)) for row in item.rows]
    return element("div", *lanes, class_="lanes")


def _lane(label: Content, kind: str | None, drawing: Markup) -> Markup:
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
        places = [f"{self._percent(tick):.2f}%" for tick in self._ticks]
        return [element("line", x1=x, x2=x, y1="0", y2=str(HEIGHT), class_="tick") for x in places]

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
    place = {"x": f"{left:.2f}%", "y": str(top), "width": f"{width:.2f}%", "height": str(height)}
    return element("rect", *inner, class_=kind, **place)


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
