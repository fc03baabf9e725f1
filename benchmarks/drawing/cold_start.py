"""Draws the first steps of ``client_speed.py``: seconds with Warp and with warp_tiles, by client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.figure import Figure

from benchmarks.client_speed import medians
from benchmarks.drawing import style

FIRST_STEPS = {  # worlds or problems, and the row with the cold runs
    "MuJoCo Warp, humanoid": (8192, "cold humanoid"),
    "MuJoCo Warp, n_humanoid": (1024, "cold n_humanoid"),
    "Newton, Featherstone": (4096, "speed featherstone"),
    "Newton, inverse kinematics (LM)": (4096, "speed ik"),
}


def first_steps(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Median seconds until the first step with empty caches, by client and side (``warp``, ``tiles``)."""
    runs = {row["name"]: [run for run in row["runs"] if run["phase"] == "cold"] for row in rows}
    return {title: medians(runs[row], "jit_s") for title, (_, row) in FIRST_STEPS.items()}


def draw(clients: Mapping[str, Mapping[str, float]], where: str) -> Figure:
    """Bars of seconds until the first step, by client.

    Args:
        clients: See :func:`first_steps`.
        where: The machine.
    """
    figure, matrix = style.subplots(1, 0.62 * len(clients), width_inches=style.PHONE_INCHES)
    axes = matrix[0, 0]
    ordered = sorted(clients.items(), key=lambda client: -client[1]["warp"])
    for place, (title, seconds) in enumerate(ordered):
        axes.text(0, place - 0.38, title, va="bottom", fontsize=style.NORMAL)
        for side, colour, offset in (("warp", style.WARP, -0.17), ("tiles", style.OURS, 0.17)):
            axes.barh(place + offset, seconds[side], 0.32, color=colour)
            text = f"{seconds[side]:.0f} s" + (" with warp_tiles" if side == "tiles" else " with Warp") * (place == 0)
            inside = side == "warp" and place == 0
            given = {"va": "center", "fontsize": style.NORMAL, "textcoords": "offset points"}
            given |= {"ha": "right", "color": "white"} if inside else {}
            axes.annotate(text, (seconds[side], place + offset), (-4 if inside else 4, 0), **given)
    axes.set_ylim(len(ordered) - 0.5, -0.75)
    axes.set_axis_off()
    figure.suptitle(f"Seconds until the first step, caches empty\n{where}", fontsize=style.NORMAL)
    return figure
