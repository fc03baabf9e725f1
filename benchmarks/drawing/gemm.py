"""Draws the results of ``gemm.py``: bars of all sides by shape, with a mark at a limit, or dots of ratios."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib import patheffects
from matplotlib.figure import Figure

from benchmarks.drawing import style
from benchmarks.speed.ratios import geometric_mean, outlier

Row = dict[str, Any]
COLOURS = {"warp": style.WARP, "scalar": style.SCALAR, "tiles": style.OURS, "cublas": style.LIBRARY}
LABELS = {"warp": "unmodified Warp", "scalar": "Warp's scalar path", "tiles": "warp_tiles", "cublas": "cuBLAS"}
COUNTED = ", with three products counted as for the others"  # it computes two; Warp's adjoint replays the product
LIMIT = "limit if each product moved A, B and C through shared memory; sums in registers can exceed it"
LOADS = "Warp's tile_load alone, without products; loading ahead can exceed it"
_THREADS = {32: ("o", "-"), 64: ("s", "--"), 128: ("^", ":")}  # markers of dots, styles of lines
_TYPES = {"fp32": style.LIBRARY, "fp64": style.OURS}
_FLAT = 0.015
_OUTLINE = [patheffects.withStroke(linewidth=2.5, foreground="white")]
_PEER = "times the faster of\nWarp's two paths"


def _shape(row: Row) -> str:
    return f"{row['m']}x{row['n']}x{row['k']}"


def title(types: str, rows: Sequence[Row]) -> str:
    """Dtypes and the geometric mean of the ratios. It names a row on which the mean hangs."""
    mean = geometric_mean(row["ratio"] for row in rows if "ratio" in row)
    if mean is None:
        return types
    text = f"{types}: {mean:.1f}x as fast as Warp, geometric mean"
    found = outlier(rows)
    if found is None:
        return text
    row, rest = found
    return f"{text}; {rest:.1f}x without {_shape(row)} with {row['threads']} threads ({row['ratio']:.1f}x)"


def _rate(row: Row, side: str) -> float:
    """Height of a bar. That of cuBLAS counts as many products as ours."""
    if side == "cublas":
        return _as_fast_as(row, side) or 0.0
    return float(row.get(side, {}).get("tflops", 0.0))


def _bars(axes: Any, rows: list[Row], types: str, mark: Callable[[Row], float | None], marked: str) -> None:
    sides = [side for side in COLOURS if any("tflops" in row.get(side, {}) for row in rows)]
    width = 0.8 / max(1, len(sides))
    offsets = {side: width * (number - (len(sides) - 1) / 2) for number, side in enumerate(sides)}
    for side in sides:
        places = [place + offsets[side] for place in range(len(rows))]
        # heights compare times: a rate of two products beside one of three would look faster than it is
        counted = COUNTED if side == "cublas" and rows[0]["backward"] else ""
        heights = [_rate(row, side) for row in rows]
        axes.bar(places, heights, width, color=COLOURS[side], label=LABELS[side] + counted)
    marks = {place: value for place, row in enumerate(rows) if (value := mark(row)) is not None}
    if marks:
        left, right = [place - 0.45 for place in marks], [place + 0.45 for place in marks]
        axes.hlines(list(marks.values()), left, right, color=style.MARK, label=marked)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.15)
    for place, row in enumerate(rows):
        if "ratio" in row:
            height = _above(row["tiles"]["tflops"], marks.get(place), 0.09 * axes.get_ylim()[1])
            text = axes.text(place + offsets["tiles"], height, f"{row['ratio']:.1f}x", ha="center", va="bottom")
            text.set(fontsize=style.SMALL, path_effects=_OUTLINE)
        low = row.get("warp", {}).get("tflops")
        if low is not None and low < _FLAT * axes.get_ylim()[1]:  # the bar can hardly be seen
            axes.text(place + offsets["warp"], low, f"{low:.1f}", ha="center", va="bottom", fontsize=style.SMALL)
    _name_bars(axes, rows)
    _finish(axes, title(types, rows), "TFLOP/s")


def _name_bars(axes: Any, rows: list[Row]) -> None:
    """Name each row by its threads, and neighbours of one shape by the shape below them."""
    beside = any("to_cublas" in row for row in rows)
    names = [str(row["threads"]) for row in rows]
    if beside:
        names = [f"{name}\n{row['to_cublas']:.2f}" if "to_cublas" in row else name for name, row in zip(names, rows)]
    axes.set_xticks(range(len(rows)), names)
    axes.set_xlim(-0.5, len(rows) - 0.5)
    end = 0
    for shape, members in itertools.groupby(rows, _shape):
        start, end = end, end + len(list(members))
        place = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "ha": "center", "va": "top"}
        axes.annotate(shape, ((start + end - 1) / 2, 0), (0, -28 if beside else -17), fontsize=style.SMALL, **place)
        if start:
            axes.axvline(start - 0.5, color="#cccccc", linewidth=0.6)


def _above(height: float, mark: float | None, room: float) -> float:
    """The height of a text over a bar. It goes over the mark if the mark would cross it."""
    return mark if mark is not None and height <= mark < height + room else height


def _finish(axes: Any, text: str, label: str) -> None:
    axes.set_title(text, fontsize=style.NORMAL, loc="left")
    axes.set_ylabel(label, fontsize=style.NORMAL)
    style.grid(axes, "y")


def _subplots(kinds: Sequence[str], height: float) -> tuple[Figure, Any]:
    figure, axes = style.subplots(max(1, len(kinds)), height)
    return figure, axes[:, 0]


def _grid(part: Row, mark: Callable[[Row], float | None], marked: str) -> Figure:
    rows = [row for row in part["rows"] if "tiles" in row]
    kinds = list(dict.fromkeys(row["types"] for row in rows))
    beside = any("to_cublas" in row for row in rows)
    figure, all_axes = _subplots(kinds, 2.2 if beside else 2.0)
    for axes, types in zip(all_axes, kinds):
        _bars(axes, [row for row in rows if row["types"] == types], types, mark, marked)
    ratio = ", speed as a ratio to cuBLAS's (its time over ours)" if beside else ""
    figure.supxlabel(f"below the bars: threads of a block{ratio}, and M x N x K of the tiles", fontsize=style.NORMAL)
    return figure


def _small(part: Row) -> Figure:
    """Draw ratios by shape, one mark for each number of threads."""
    rows = [row for row in part["rows"] if "ratio" in row]
    kinds = list(dict.fromkeys(row["types"] for row in rows))
    figure, all_axes = _subplots(kinds, 2.4)
    for axes, types in zip(all_axes, kinds):
        selected = [row for row in rows if row["types"] == types]
        shapes = list(dict.fromkeys(map(_shape, selected)))
        for number, (threads, (marker, _)) in enumerate(_THREADS.items()):
            points = [row for row in selected if row["threads"] == threads]
            places = [shapes.index(_shape(row)) + 0.2 * (number - 1) for row in points]  # beside each other
            ratios = [row["ratio"] for row in points]
            axes.plot(places, ratios, marker, label=f"{threads} threads", color=COLOURS["tiles"], markersize=5)
        axes.axhline(1, color=style.MARK, linewidth=0.8, label="as fast as Warp")
        axes.set_xticks(range(len(shapes)), shapes)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
        _finish(axes, title(types, selected), _PEER)
    return figure


def _every_small(part: Row) -> Figure:
    """Draw ratios in rising order, one line for each dtype and number of threads."""
    rows = [row for row in part["rows"] if "ratio" in row]
    figure, (axes,) = _subplots(["all"], 3.2)
    for types, threads in itertools.product(dict.fromkeys(row["types"] for row in rows), _THREADS):
        selected = [row for row in rows if row["types"] == types and row["name"].endswith(f" {threads}")]
        ratios = sorted(row["ratio"] for row in selected)
        places = [(place + 0.5) / len(ratios) for place in range(len(ratios))]
        look = {"color": _TYPES.get(types), "linestyle": _THREADS[threads][1]}
        axes.plot(places, ratios, label=f"{types}, {threads} threads", **look)
    axes.axhline(1, color=style.MARK, linewidth=0.8, label="as fast as Warp")
    axes.set_xlabel("share of the sizes, the least ratio first", fontsize=style.NORMAL)
    axes.margins(x=0.01)
    axes.set_ylim(bottom=0)
    _finish(axes, "", _PEER)
    return figure


def _as_fast_as(row: Row, side: str) -> float | None:
    """The rate of our loop if it took as long as another side: cuBLAS, or the loads alone."""
    if "median_us" not in row.get(side, {}) or "tflops" not in row["tiles"]:
        return None
    return float(row["tiles"]["tflops"] * row["tiles"]["median_us"] / row[side]["median_us"])


def draw(name: str, part: Row, run: Row) -> Figure:
    """The picture of a part.

    Args:
        name: The part's name.
        part: Its results.
        run: The run of its rows, with the GPU and Warp's version.
    """
    if name == "every_small":
        figure = _every_small(part)
    elif name.endswith("small"):
        figure = _small(part)
    elif "loop" in name:
        figure = _grid(part, lambda row: _as_fast_as(row, "loads"), LOADS)
    else:
        figure = _grid(part, lambda row: row.get("bound", {}).get("tflops"), LIMIT)
    style.legend(figure, f"{part['title']}; {run['gpu']}, Warp {run['warp']}")
    return figure
