"""The one style of all pictures: their width, fonts and colours, and their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# A page shows a picture about 850 pixels wide, so its smallest text is 10.5 pixels high. The file has twice the pixels.
WIDTH_INCHES, DOTS_PER_INCH = 9.0, 190
PHONE_INCHES = 4.4  # of a picture that is read on a phone, too: half the width for the same text
INK = "#777777"  # legible on white and on a dark page, because the ground is transparent
SMALL, NORMAL, LARGE = 8, 9, 11  # points
WARP, OURS, LIBRARY, MARK = "#8a8a8a", "#5b8c00", "#3b6fb0", "#c0483a"
_INKED = (
    "text.color",
    "axes.labelcolor",
    "axes.edgecolor",
    "axes.titlecolor",
    "xtick.color",
    "ytick.color",
    "grid.color",
)


def subplots(
    rows: int, height_inches: float, columns: int = 1, width_inches: float = WIDTH_INCHES, **options: Any
) -> tuple[Figure, Any]:
    """A figure on a transparent ground, and its axes as a matrix.

    Args:
        rows: Number of axes below each other.
        height_inches: Height of each.
        columns: Number of axes beside each other.
        width_inches: Width of the figure.
        **options: Other arguments of ``Figure.subplots``.
    """
    matplotlib.rcParams.update({**dict.fromkeys(_INKED, INK), "axes.facecolor": "none"})
    figure = Figure(figsize=(width_inches, height_inches * rows + 1), layout="constrained", facecolor="none")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def grid(axes: Any, direction: str) -> None:
    """Thin lines behind the data, and small numbers."""
    axes.grid(axis=direction, linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL)


def legend(figure: Figure, heading: str, columns: int = 4) -> None:
    """Add the picture's title and one legend for all axes, above them, so that they cover nothing."""
    found = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels())}
    given: dict[str, Any] = {"loc": "outside upper center", "fontsize": SMALL, "frameon": False}
    given["ncols"] = min(max(1, len(found)), columns)
    figure.legend(list(found.values()), list(found), title=heading, title_fontsize=LARGE, **given)


def save(figure: Figure, path: Path, facts: dict[str, str]) -> None:
    """Write a picture as PNG, with facts about it as its metadata."""
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None, **facts})
