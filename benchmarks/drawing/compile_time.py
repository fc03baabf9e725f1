"""Draws the results of ``compile_time.py``: dots of seconds and of sizes by group and builder."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from benchmarks.compile_time import ARCH, BUILDERS, GROUPS
from benchmarks.drawing import style

COLOURS = dict(zip(BUILDERS, (style.WARP, style.SCALAR, style.OURS, style.LIBRARY, style.LIBRARY_LIGHT, style.MARK)))
MARKERS = dict(zip(BUILDERS, "soD^vP"))
LABELS = {"warp": "unmodified Warp", "scalar": "Warp's scalar path", "triton": "Triton"}


def groups(record: dict[str, Any]) -> list[dict[str, Any]]:
    """What the picture shows of the groups."""
    shown = {row["name"]: row for row in record["rows"] if not row["name"].startswith("nvrtc")}
    names = ("title", "sides")
    return [
        {name: shown[one][name] for name in names} | {"cores": record["runs"][shown[one]["run"]]["cores"]}
        for one in GROUPS if one in shown
    ]  # fmt: skip


def draw(shown: list[dict[str, Any]]) -> Figure:
    """Dots of seconds and of bytes. The axes are logarithmic, on which bars would have no meaning."""
    figure, matrix = style.subplots(1, 0.72 * len(shown), 2, sharey=True, width_ratios=(3, 2))
    seconds, sizes = matrix[0]
    for position, group in enumerate(shown):
        rows = [(builder, group["sides"][builder]) for builder in BUILDERS if builder in group["sides"]]
        for offset, (builder, row) in enumerate(rows):
            y = position + 0.19 * (offset - (len(rows) - 1) / 2)
            _dot(seconds, builder, row["seconds"], y, f"{row['seconds']:.1f} s")
            _dot(sizes, builder, row["cubin_bytes"] / 1e6, y, f"{row['cubin_bytes'] / 1e6:.2f} MB")
    seconds.set_yticks(range(len(shown)), [",\n".join(group["title"].rsplit(", ", 1)) for group in shown])
    seconds.set_ylim(len(shown) - 0.5, -0.5)
    cores = sorted({group["cores"] for group in shown})
    seconds.set_xlabel(f"seconds on {' or '.join(map(str, cores))} cores (logarithmic)", fontsize=style.NORMAL)
    sizes.set_xlabel("MB of cubins (logarithmic)", fontsize=style.NORMAL)
    for axes, room in ((seconds, 2.5), (sizes, 12)):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(0.8 * axes.get_xlim()[0], room * axes.get_xlim()[1])  # for the numbers
        style.grid(axes, "x")
        for position in range(1, len(shown)):
            axes.axhline(position - 0.5, color=style.INK, linewidth=0.6)
    style.legend(
        figure, f"Seconds until a script's modules are built, and size of their cubins; sm_{ARCH}, no GPU", columns=3
    )
    return figure


def _dot(axes: Any, builder: str, value: float, y: float, text: str) -> None:
    label = LABELS.get(builder, f"warp_tiles, {builder}")
    axes.plot(value, y, MARKERS[builder], color=COLOURS[builder], markersize=6, linestyle="", label=label)
    axes.annotate(text, (value, y), (7, 0), textcoords="offset points", va="center", fontsize=style.SMALL)
