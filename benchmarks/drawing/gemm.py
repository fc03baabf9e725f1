"""Draws the results of ``gemm.py``: bars by shape, shares of cuBLAS's speed, or ratios."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.drawing import style
from benchmarks.gemm import outlier
from benchmarks.runner import geometric_mean

Row = dict[str, Any]
COLOURS = {"warp": style.WARP, "scalar": style.SCALAR, "tiles": style.OURS}
LABELS = {"warp": "unmodified Warp", "scalar": "Warp's scalar path", "tiles": "warp_tiles"}
_MARKERS = {32: "o", 64: "s", 128: "^"}  # by threads
_FLAT = 0.015
_GAP = 0.5  # between the bars of two shapes
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


def _bars(axes: Any, rows: list[Row], types: str) -> None:
    sides = [side for side in COLOURS if any("tflops" in row.get(side, {}) for row in rows)]
    width = 0.8 / max(1, len(sides))
    offsets = {side: width * (number - (len(sides) - 1) / 2) for number, side in enumerate(sides)}
    places = _places(rows)
    for side in sides:
        heights = [float(row.get(side, {}).get("tflops", 0.0)) for row in rows]
        axes.bar([at + offsets[side] for at in places], heights, width, color=COLOURS[side], label=LABELS[side])
    axes.set_ylim(0, axes.get_ylim()[1] * 1.15)
    for place, row in zip(places, rows):
        if "ratio" in row:
            at = place + offsets["tiles"], row["tiles"]["tflops"]
            axes.text(*at, f"{row['ratio']:.1f}x", ha="center", va="bottom", fontsize=style.SMALL)
        low = row.get("warp", {}).get("tflops")
        if low is not None and low < _FLAT * axes.get_ylim()[1]:  # the bar can hardly be seen
            axes.text(place + offsets["warp"], low, f"{low:.1f}", ha="center", va="bottom", fontsize=style.SMALL)
    _name_bars(axes, rows, places)
    axes.set_title(title(types, rows), fontsize=style.NORMAL, loc="left")
    axes.set_ylabel("TFLOP/s", fontsize=style.NORMAL)
    axes.tick_params(labelsize=style.SMALL)  # lines of a grid would cross the ratios


def _places(rows: list[Row]) -> list[float]:
    """The places of rows along the axis, with a gap between shapes."""
    groups = [number for number, (_, members) in enumerate(itertools.groupby(rows, _shape)) for _ in members]
    return [row + _GAP * group for row, group in enumerate(groups)]


def _name_bars(axes: Any, rows: list[Row], places: list[float]) -> None:
    """Name each row by its threads, and neighbours of one shape by the shape below them."""
    axes.set_xticks(places, [str(row["threads"]) for row in rows])
    axes.set_xlim(-0.5 - _GAP / 2, places[-1] + 0.5 + _GAP / 2)
    end = 0
    for shape, members in itertools.groupby(rows, _shape):
        start, end = end, end + len(list(members))
        place = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "ha": "center", "va": "top"}
        axes.annotate(shape, ((places[start] + places[end - 1]) / 2, 0), (0, -17), fontsize=style.SMALL, **place)
        if start:
            axes.axvline(places[start] - (1 + _GAP) / 2, color=style.INK, linewidth=0.6)


def _subplots(kinds: Sequence[str], height: float) -> tuple[Figure, Any]:
    figure, axes = style.subplots(max(1, len(kinds)), height)
    return figure, axes[:, 0]


def _grid(found: Sequence[Row]) -> Figure:
    rows = [row for row in found if "tiles" in row]
    kinds = list(dict.fromkeys(row["types"] for row in rows))
    figure, all_axes = _subplots(kinds, 2.0)
    for axes, types in zip(all_axes, kinds):
        _bars(axes, [row for row in rows if row["types"] == types], types)
    figure.supxlabel("below the bars: threads of a block, and M x N x K of the tiles", fontsize=style.NORMAL)
    return figure


def _shares(found: Sequence[Row]) -> Figure:
    """Draw the speed of each loop as a share of cuBLAS's: its time over that of Warp, and over ours."""
    rows = [row for row in found if "to_cublas" in row]
    kinds = {types: [row for row in rows if row["types"] == types] for types in dict.fromkeys(r["types"] for r in rows)}
    heights = [len(members) + 1 for members in kinds.values()]
    figure, matrix = style.subplots(len(kinds), 0.2 * sum(heights) / len(kinds), sharex=True, height_ratios=heights)
    for axes, (types, members) in zip(matrix[:, 0], kinds.items()):
        for place, row in enumerate(members):
            warp, ours = row["cublas"]["median_us"] / row["warp"]["median_us"], row["to_cublas"]
            axes.plot([warp, ours], [place, place], color=style.INK, linewidth=0.8, zorder=1)
            axes.plot(warp, place, "o", color=style.WARP, markersize=5, label=LABELS["warp"])
            axes.plot(ours, place, "o", color=style.OURS, markersize=6, label=LABELS["tiles"])
            text = f"{ours:.2f}, {row['ratio']:.1f}x Warp"
            axes.text(1.02, place, text, va="center", fontsize=style.SMALL)
        axes.axvline(1, color=style.LIBRARY, linewidth=1.5, label="cuBLAS")
        axes.set_yticks(range(len(members)), [f"{_shape(row)}, {row['threads']}" for row in members])
        axes.set_ylim(len(members) - 0.4, -0.6)
        axes.set_xlim(0, 1.2)
        axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
        axes.set_title(title(types, members), fontsize=style.NORMAL, loc="left")
        style.grid(axes, "x")
    figure.supxlabel("speed as a share of cuBLAS's (its time over ours)", fontsize=style.NORMAL)
    figure.supylabel("M x N x K of the tiles, threads of a block", fontsize=style.NORMAL)
    return figure


def _small(found: Sequence[Row]) -> Figure:
    """Draw ratios by shape, one mark for each number of threads."""
    rows = [row for row in found if "ratio" in row]
    kinds = list(dict.fromkeys(row["types"] for row in rows))
    figure, all_axes = _subplots(kinds, 2.4)
    for axes, types in zip(all_axes, kinds):
        selected = [row for row in rows if row["types"] == types]
        shapes = list(dict.fromkeys(map(_shape, selected)))
        for number, (threads, marker) in enumerate(_MARKERS.items()):
            points = [row for row in selected if row["threads"] == threads]
            places = [shapes.index(_shape(row)) + 0.2 * (number - 1) for row in points]  # beside each other
            ratios = [row["ratio"] for row in points]
            axes.plot(places, ratios, marker, label=f"{threads} threads", color=COLOURS["tiles"], markersize=5)
        axes.axhline(1, color=style.MARK, linewidth=0.8, label="as fast as Warp")
        axes.set_xticks(range(len(shapes)), shapes)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
        axes.set_title(title(types, selected), fontsize=style.NORMAL, loc="left")
        axes.set_ylabel(_PEER, fontsize=style.NORMAL)
        style.grid(axes, "y")
    return figure


def draw(name: str, heading: str, rows: Sequence[Row], run: Row) -> Figure:
    """The picture of a part.

    Args:
        name: The part's name.
        heading: What it measures.
        rows: Its rows.
        run: The run of its rows, with the GPU and Warp's version.
    """
    if name.endswith("small"):
        figure = _small(rows)
    elif any("to_cublas" in row for row in rows):
        figure = _shares(rows)
    else:
        figure = _grid(rows)
    style.legend(figure, f"{heading}; {run['gpu']}, Warp {run['warp']}")
    return figure
