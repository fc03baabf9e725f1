"""Draws the loops of ``other_gpus.py``: dots of the share of the bound, by type, tile and architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.drawing import style

Row = dict[str, Any]
COLOURS = (style.OURS, style.LIBRARY, style.WARP, style.MARK)


def loops(record: Mapping[str, Any]) -> list[Row]:
    """What the picture shows of the loops that were timed."""
    names = ("arch", "types", "m", "n", "k", "threads", "chosen", "share")
    rows = [row for row in record["rows"] if row.get("form") == "loop" and "share" in row]
    return [{name: row[name] for name in names} for row in rows]


def draw(rows: Sequence[Row], gpu: str) -> Figure:
    """A filled dot for the pipeline of the chooser, and rings for the other pipelines.

    Args:
        rows: See :func:`loops`.
        gpu: The GPU that ran.
    """
    archs = sorted({row["arch"] for row in rows})
    tiles = {types: list(dict.fromkeys(_tile(row) for row in rows if row["types"] == types)) for types in _types(rows)}
    heights = [len(names) + 1 for names in tiles.values()]
    figure, matrix = style.subplots(len(tiles), 0.22 * sum(heights) / len(tiles), sharex=True, height_ratios=heights)
    for axes, (types, names) in zip(matrix[:, 0], tiles.items()):
        for row in (row for row in rows if row["types"] == types):
            number = archs.index(row["arch"])
            place = names.index(_tile(row)) + 0.36 * (number - (len(archs) - 1) / 2)
            label = f"limits of sm_{row['arch']}, " + (
                "pipeline of the chooser" if row["chosen"] else "other pipelines"
            )
            fill = COLOURS[number] if row["chosen"] else "none"
            look = {"markersize": 5 if row["chosen"] else 4, "markerfacecolor": fill, "linestyle": ""}
            axes.plot(row["share"], place, "o", color=COLOURS[number], label=label, **look)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.set_title(types, fontsize=style.NORMAL, loc="left")
        style.grid(axes, "x")
    figure.supxlabel("share of the rate of the same instruction from registers alone", fontsize=style.NORMAL)
    figure.supylabel("M x N x K of the tiles, threads of a block", fontsize=style.NORMAL)
    style.legend(figure, f"Loops over 4096 x 4096 x 4096 by mma.sync or fma on one {gpu}", columns=2)
    return figure


def _types(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["types"] for row in rows))


def _tile(row: Row) -> str:
    return f"{row['m']}x{row['n']}x{row['k']}, {row['threads']}"
