"""Draws shares of a bound as dots, by types and tile: of ``gemm.py`` beside cuBLAS, and of ``other_gpus.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.drawing import style

Row = dict[str, Any]
_COLOURS = (style.OURS, style.LIBRARY, style.WARP, style.MARK)


def tile(row: Row) -> str:
    return f"{row['m']}x{row['n']}x{row['k']}, {row['threads']}"


def beside_cublas(rows: Sequence[Row]) -> list[Row]:
    """Two dots for each row of ``gemm.py`` that has cuBLAS: its time over that of Warp, and over ours."""
    dots = []
    for row in rows:
        if "to_cublas" in row:
            warp, ours = row["cublas"]["median_us"] / row["warp"]["median_us"], row["to_cublas"]
            dot = {"types": row["types"], "tile": tile(row), "text": f"{ours:.2f}, {row['ratio']:.1f}x Warp"}
            dots += [dot | {"share": warp, "label": "unmodified Warp", "colour": 2}]
            dots += [dot | {"share": ours, "label": "warp_tiles", "colour": 0}]
    return dots


def of_other_gpus(rows: Sequence[Row]) -> list[Row]:
    """A filled dot for the pipeline of the chooser, and rings for the other pipelines."""
    rows = [row for row in rows if row.get("form") == "loop" and "share" in row]
    archs = sorted({row["arch"] for row in rows})
    dots = []
    for row in rows:
        number = archs.index(row["arch"])
        words = "pipeline of the chooser" if row["chosen"] else "other pipelines"
        dot = {"types": row["types"], "tile": tile(row), "share": row["share"], "colour": number}
        dot |= {"label": f"limits of sm_{row['arch']}, {words}", "ring": not row["chosen"]}
        dots.append(dot | {"below": 0.36 * (number - (len(archs) - 1) / 2)})
    return dots


def draw(dots: Sequence[Row], heading: str, bound: str) -> Figure:
    """Axes for each type.

    Args:
        dots: See the functions above.
        heading: What was measured, and on which GPU.
        bound: What a share of 1 is.
    """
    kinds = list(dict.fromkeys(dot["types"] for dot in dots))
    tiles = {kind: list(dict.fromkeys(dot["tile"] for dot in dots if dot["types"] == kind)) for kind in kinds}
    heights = [len(names) + 1 for names in tiles.values()]
    figure, matrix = style.subplots(len(tiles), 0.21 * sum(heights) / len(tiles), sharex=True, height_ratios=heights)
    for axes, (kind, names) in zip(matrix[:, 0], tiles.items()):
        for dot in (dot for dot in dots if dot["types"] == kind):
            place, colour = names.index(dot["tile"]) + dot.get("below", 0.0), _COLOURS[dot["colour"]]
            fill = "none" if dot.get("ring") else colour
            axes.plot(
                dot["share"], place, "o", color=colour, markersize=5, markerfacecolor=fill, linestyle="",
                label=dot["label"],
            )  # fmt: skip
        texts = {dot["tile"]: dot["text"] for dot in dots if dot["types"] == kind and "text" in dot}
        for name, text in texts.items():
            axes.text(1.02, names.index(name), text, va="center", fontsize=style.SMALL)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, 1.2 if texts else 1)
        axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
        axes.set_title(kind, fontsize=style.NORMAL, loc="left")
        style.grid(axes, "x")
    figure.supxlabel(f"share of {bound}", fontsize=style.NORMAL)
    figure.supylabel("M x N x K of the tiles, threads of a block", fontsize=style.NORMAL)
    style.legend(figure, heading, columns=2)
    return figure
