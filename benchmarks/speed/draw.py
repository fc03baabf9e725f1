"""Draws the results of ``gemm.py``: bars of all sides by shape, with a mark at the bound or the floor."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import patheffects, pyplot

Row = dict[str, Any]
COLOURS = {"warp": "#999999", "scalar": "#d5d5d5", "tiles": "#5b8c00", "cublas": "#3b6fb0"}
LABELS = {"warp": "unmodified Warp", "scalar": "Warp's scalar path", "tiles": "warp_tiles", "cublas": "cuBLAS"}
_BOUND = "#b03a2e"


def _label(row: Row) -> str:
    beside = f"\n{row['to_cublas']:.2f} of cuBLAS" if "to_cublas" in row else ""
    return f"{row['m']}x{row['n']}x{row['k']}\n{row['threads']} threads{beside}"


def _rate(row: Row, side: str) -> float:
    """Height of a bar. That of cuBLAS counts as many products as ours."""
    if side == "cublas":
        return _as_fast_as(row, side) or 0.0
    return float(row.get(side, {}).get("tflops", 0.0))


def _bars(axes: Any, rows: list[Row], types: str, mark: Callable[[Row], float | None], marked: str) -> None:
    sides = [side for side in COLOURS if any("tflops" in row.get(side, {}) for row in rows)]
    width = 0.8 / max(1, len(sides))
    for number, side in enumerate(sides):
        places = [place + width * (number - (len(sides) - 1) / 2) for place in range(len(rows))]
        heights = [_rate(row, side) for row in rows]
        # heights compare times, so cuBLAS's two gradients count as the three products of our adjoint
        counted = ", counted as three products" if side == "cublas" and rows[0]["backward"] else ""
        axes.bar(places, heights, width, color=COLOURS[side], label=LABELS[side] + counted)
    marks = [(place, mark(row)) for place, row in enumerate(rows)]
    known = [(place, value) for place, value in marks if value is not None]
    if known:
        left, right = [place - 0.45 for place, _ in known], [place + 0.45 for place, _ in known]
        axes.hlines([value for _, value in known], left, right, color=_BOUND, label=marked)
    outline = [patheffects.withStroke(linewidth=2, foreground="white")] if "cublas" in sides else []
    for place, row in enumerate(rows):
        if "ratio" in row:
            text = axes.text(place, row["tiles"]["tflops"], f"{row['ratio']:.1f}x", ha="center", va="bottom")
            text.set(fontsize=7, path_effects=outline)
    axes.set_xticks(range(len(rows)), [_label(row) for row in rows], fontsize=7)
    axes.set_title(types, fontsize=9)
    axes.set_ylabel("TFLOP/s", fontsize=8)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.15)


def _grid(part: Row, mark: Callable[[Row], float | None], marked: str) -> Any:
    rows = [row for row in part["rows"] if "tiles" in row]
    kinds = list(dict.fromkeys(row["types"] for row in rows))
    most = max((sum(row["types"] == types for row in rows) for types in kinds), default=0)
    beside = any("to_cublas" in row for row in rows)
    width, height = (1.15, 2.5) if beside else (0.75, 2.3)  # the column needs wider groups and longer labels
    size = max(9.0, width * most), height * len(kinds) + 0.6
    figure, all_axes = pyplot.subplots(max(1, len(kinds)), 1, figsize=size, squeeze=False)
    for axes, types in zip(all_axes[:, 0], kinds):
        _bars(axes, [row for row in rows if row["types"] == types], types, mark, marked)
    if beside:  # its bars reach the top, so the legend is above them
        all_axes[0, 0].legend(fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.16))
    elif kinds:
        all_axes[0, 0].legend(fontsize=7, ncols=4, loc="upper left")
    return figure


def _small(part: Row) -> Any:
    """Draw ratios by shape, one mark for each number of threads."""
    rows = [row for row in part["rows"] if "ratio" in row]
    kinds = list(dict.fromkeys(row["types"] for row in rows))
    figure, all_axes = pyplot.subplots(max(1, len(kinds)), 1, figsize=(9, 2.6 * len(kinds) + 0.6), squeeze=False)
    for axes, types in zip(all_axes[:, 0], kinds):
        selected = [row for row in rows if row["types"] == types]
        shapes = list(dict.fromkeys(f"{row['m']}x{row['n']}x{row['k']}" for row in selected))
        for threads, marker in ((32, "o"), (64, "s"), (128, "^")):
            points = [row for row in selected if row["threads"] == threads]
            places = [shapes.index(f"{row['m']}x{row['n']}x{row['k']}") for row in points]
            axes.plot(
                places, [row["ratio"] for row in points], marker, label=f"{threads} threads", color=COLOURS["tiles"]
            )
        axes.axhline(1, color=_BOUND, linewidth=0.8)
        axes.set_xticks(range(len(shapes)), shapes, fontsize=7)
        axes.set_ylabel("times the faster of\nWarp's two paths", fontsize=8)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.15)
        axes.set_title(types, fontsize=9)
    if kinds:
        all_axes[0, 0].legend(fontsize=7, ncols=4, loc="upper left")
    return figure


def _every_small(part: Row) -> Any:
    """Draw ratios in rising order, one line for each dtype and number of threads."""
    rows = [row for row in part["rows"] if "ratio" in row]
    figure, axes = pyplot.subplots(figsize=(9, 3.6))
    for types, threads in itertools.product(dict.fromkeys(row["types"] for row in rows), (32, 64, 128)):
        selected = [row for row in rows if row["types"] == types and row["name"].endswith(f" {threads}")]
        ratios = sorted(row["ratio"] for row in selected)
        places = [(place + 0.5) / len(ratios) for place in range(len(ratios))]
        axes.plot(places, ratios, label=f"{types}, {threads} threads")
    axes.axhline(1, color=_BOUND, linewidth=0.8)
    axes.set_xlabel("share of the sizes", fontsize=8)
    axes.set_ylabel("times the faster of\nWarp's two paths", fontsize=8)
    axes.legend(fontsize=7)
    return figure


def _as_fast_as(row: Row, side: str) -> float | None:
    """The rate of our loop if it took as long as another side: cuBLAS, or the loads alone."""
    if "median_us" not in row.get(side, {}) or "tflops" not in row["tiles"]:
        return None
    return float(row["tiles"]["tflops"] * row["tiles"]["median_us"] / row[side]["median_us"])


def draw(data: Row, folder: Path) -> None:
    """Write one picture for each part into a folder."""
    for name, part in data["parts"].items():
        if name.endswith("small") and name != "every_small":
            figure = _small(part)
        elif name == "every_small":
            figure = _every_small(part)
        elif "loop" in name:
            figure = _grid(part, lambda row: _as_fast_as(row, "loads"), "loads alone")
        else:
            figure = _grid(
                part, lambda row: row.get("bound", {}).get("tflops"), "bound of shared memory and arithmetic"
            )
        run = data["runs"][part["rows"][-1]["run"]]
        figure.suptitle(f"{part['title']}; {run['gpu']}, Warp {run['warp']}", fontsize=10)
        figure.tight_layout()
        figure.savefig(folder / f"gemm_{name}.png", dpi=110)
        pyplot.close(figure)
