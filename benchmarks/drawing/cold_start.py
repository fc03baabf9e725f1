"""Draws the first steps of ``client_speed.py``: seconds with Warp and with warp_tiles, by client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.figure import Figure

from benchmarks.client_speed import medians
from benchmarks.drawing import style

FIRST_STEPS = {  # rows of client_speed.json, by title
    "MuJoCo Warp, humanoid": "starts humanoid",
    "MuJoCo Warp, n_humanoid": "starts n_humanoid",
    "MuJoCo Warp, aloha_pot": "starts aloha_pot",
    "Newton, inverse kinematics (LM)": "starts ik",
}
SIDES = (  # with the words behind the first bar, its colour and its place
    ("warp", "with Warp", style.WARP, -0.22),
    ("tiles", "with warp_tiles", style.OURS, 0.02),
    ("wheel", "with a wheel of its kernels", style.OURS, 0.26),
)


def cold_seconds(row: Mapping[str, Any]) -> dict[str, float]:
    """Seconds until the first step with empty caches, by side."""
    return medians((run for run in row["runs"] if run["phase"] == "cold"), "jit_s")


def first_steps(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Seconds until the first step with empty caches, by client and side. Rows "wheel" are newer than the others."""
    seconds = {row["name"]: cold_seconds(row) for row in rows}
    wheels = {name: seconds.get(name.replace("starts", "wheel"), {}) for name in FIRST_STEPS.values()}
    return {
        title: seconds[name] | {side: value for side, value in wheels[name].items() if side == "wheel"}
        for title, name in FIRST_STEPS.items()
    }


def draw(clients: Mapping[str, Mapping[str, float]], where: str) -> Figure:
    """Bars of seconds until the first step, by client.

    Args:
        clients: See :func:`first_steps`.
        where: The machine.
    """
    figure, matrix = style.subplots(1, 0.75 * len(clients), width_inches=style.PHONE_INCHES)
    axes = matrix[0, 0]
    ordered = sorted(clients.items(), key=lambda client: -client[1]["warp"])
    for place, (title, seconds) in enumerate(ordered):
        axes.text(0, place - 0.38, title, va="bottom", fontsize=style.NORMAL)
        for side, words, colour, offset in SIDES:
            axes.barh(place + offset, seconds[side], 0.22, color=colour)
            value = seconds[side]
            text = f"{value:.{int(value < 10)}f} s" + f" {words}" * (place == 0)
            inside = side != "wheel" and place == 0
            given = {"va": "center", "fontsize": style.NORMAL, "textcoords": "offset points"}
            given |= {"ha": "right", "color": "white"} if inside else {}
            axes.annotate(text, (value, place + offset), (-4 if inside else 4, 0), **given)
    axes.set_ylim(len(ordered) - 0.5, -0.75)
    axes.set_axis_off()
    figure.suptitle(f"Seconds until the first step, caches empty\n{where}", fontsize=style.NORMAL)
    return figure
