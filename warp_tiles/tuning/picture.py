"""Draws the results of a search: times by configuration, the winner marked. Needs matplotlib, the extra ``plot``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warp_tiles.errors import RecordError
from warp_tiles.tuning.labels import aligned, common, microseconds, shortened
from warp_tiles.tuning.record import Record, Timing

MAX_ROWS = 60  # with more configurations, all are drawn by rank and the best ones by name
BEST_ROWS = 30
REASON_ROWS = 8
ROW_INCHES = 0.21
LOG_ABOVE = 6.0  # ratio of the largest to the smallest time above which the axis is logarithmic
MEASURED, DROPPED, FAILED, WINNER = "#34608f", "#a0a0a0", "#b03a2e", "#4c7a00"


@dataclass(frozen=True)
class Row:
    """One line of the picture.

    Attributes:
        text: The configuration without the values that all share, or the number of failures with one reason.
        kind: ``ok``, ``dropped`` or ``failed``.
        timing: The timing to draw; None if several failures share the line.
        reason: Reason that is written in place of a time.
        wins: True for the winner's line.
    """

    text: str
    kind: str
    timing: Timing | None
    reason: str = ""
    wins: bool = False


@dataclass(frozen=True)
class Layout:
    """The lines of the picture and their order.

    Attributes:
        heading: Lines above the picture.
        ranked: All timings that have a time, measured ones before dropped ones, fastest first; empty if every
            configuration has its own line.
        rows: Lines from top to bottom.
    """

    heading: tuple[str, ...]
    ranked: tuple[Timing, ...]
    rows: tuple[Row, ...]
    winner: Timing | None


def layout(record: Record) -> Layout:
    """Sort a record's timings into lines."""
    winner = record.winner()
    by_kind = {
        kind: sorted((timing for timing in record.timings if timing.status == kind), key=_time)
        for kind in ("ok", "dropped", "failed")
    }
    shared = common(timing.config for timing in record.timings)

    def rows_of(timings: Sequence[Timing]) -> list[Row]:
        texts = aligned([timing.config for timing in timings], shared)
        return [
            Row(
                shortened(text, 84), timing.status, timing, "" if _is_timed(timing) else timing.reason, timing is winner
            )
            for text, timing in zip(texts, timings)
        ]

    if len(record.timings) <= MAX_ROWS:
        rows = rows_of([timing for kind in by_kind.values() for timing in kind])
        return Layout(_heading(record, by_kind, shared), (), tuple(rows), winner)
    best = by_kind["ok"][:BEST_ROWS]
    if winner is not None and winner not in best:
        best = [*best[:-1], winner]
    reasons = Counter(timing.reason for timing in by_kind["failed"]).most_common()
    failures = [Row(f"{count} failed", "failed", None, reason) for reason, count in reasons[:REASON_ROWS]]
    if len(reasons) > REASON_ROWS:
        rest = sum(count for _, count in reasons[REASON_ROWS:])
        failures.append(Row(f"{rest} failed", "failed", None, f"for {len(reasons) - REASON_ROWS} other reasons"))
    ranked = [timing for kind in ("ok", "dropped") for timing in by_kind[kind] if _is_timed(timing)]
    rows = rows_of(best) + failures
    return Layout(_heading(record, by_kind, shared), tuple(ranked), tuple(rows), winner)


def _is_timed(timing: Timing) -> bool:
    return math.isfinite(timing.median_us)


def _time(timing: Timing) -> tuple[float, str]:
    return (timing.median_us if _is_timed(timing) else math.inf, timing.identity)


def _heading(record: Record, by_kind: dict[str, list[Timing]], shared: dict[str, str]) -> tuple[str, ...]:
    key = record.key
    values = ", ".join(f"{name}={value}" for name, value in key.values)
    counts = ", ".join(
        f"{len(timings)} {name}"
        for name, timings in zip(("measured", "dropped", "failed"), by_kind.values())
        if timings or name == "measured"
    )
    lines = [f"{key.subject}  {values}", f"{key.environment.device}, {len(record.timings)} configurations: {counts}"]
    if shared:
        lines.append("all with " + " ".join(f"{name}={value}" for name, value in shared.items()))
    return tuple(shortened(line, 130) for line in lines)


def draw(record: Record, path: Path) -> None:
    """Draw a record as PNG.

    Raises:
        RecordError: matplotlib is missing, the record holds no configuration, or the file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RecordError(
            f"the picture {path} needs matplotlib, which is not installed", remedy="pip install 'warp-tiles[plot]'"
        ) from error
    if not record.timings:
        raise RecordError(f"the record {record.key.digest[:12]} holds no configuration", remedy="tune it first")
    with rc_context({"text.parse_math": False}):  # a reason may hold dollar signs
        _draw(Figure, layout(record), path)


def _draw(figure_class: Any, plan: Layout, path: Path) -> None:
    heights = [3.2] * bool(plan.ranked) + [ROW_INCHES * len(plan.rows) + 0.6]
    figure = figure_class(figsize=(11, sum(heights) + 0.25 * len(plan.heading) + 0.6), layout="constrained")
    figure.suptitle("\n".join(plan.heading), fontsize=9, x=0.01, ha="left")
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if plan.ranked:
        _draw_ranks(parts[0].subplots(), plan)
    _draw_rows(parts[-1].subplots(), plan)
    try:
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise RecordError(
            f"the picture cannot be written to {path}: {error.strerror or error}",
            remedy="name a file in an existing folder that you may write",
        ) from error


def _ends(timing: Timing) -> tuple[float, float]:
    """The interval around a median. The median replaces an unknown end."""
    low, high = (end if math.isfinite(end) else timing.median_us for end in (timing.low_us, timing.high_us))
    return min(low, timing.median_us), max(high, timing.median_us)


def _bars(timings: Sequence[Timing]) -> list[list[float]]:
    """The lengths of error bars below and above the medians."""
    ends = [(timing.median_us, *_ends(timing)) for timing in timings]
    return [[median - low for median, low, _ in ends], [high - median for median, _, high in ends]]


def _scale(axis: Any, limit: Callable[[float, float], object], timings: Sequence[Timing]) -> None:
    """Format an axis of microseconds: plain numbers, logarithmic if times differ much, with room for texts."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if not timings:
        return
    low, high = min(_ends(timing)[0] for timing in timings), max(_ends(timing)[1] for timing in timings)
    if low > 0 and high > LOG_ABOVE * low:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
        limit(low / (high / low) ** 0.08, high * (high / low) ** 0.08)
    else:
        axis.set_major_locator(MaxNLocator(8))
        room = max(0.08 * (high - low), 0.05 * high) or 1.0
        limit(low - room, high + room)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _scale_text(axis: Any) -> str:
    return " (logarithmic)" if axis.get_scale() == "log" else ""


def _draw_ranks(axes: Any, plan: Layout) -> None:
    """Draw every time by rank. A line separates the dropped candidates."""
    kinds = {
        "ok": ("measured", {"fmt": "o", "color": MEASURED}),
        "dropped": ("dropped", {"fmt": "o", "color": DROPPED, "markerfacecolor": "white"}),
    }
    place = 1
    for kind, (name, style) in kinds.items():
        timings = [timing for timing in plan.ranked if timing.status == kind]
        if not timings:
            continue
        if place > 1:
            axes.axvline(place - 0.5, color=DROPPED, linewidth=0.8, linestyle=":")
        places = list(range(place, place + len(timings)))
        medians = [timing.median_us for timing in timings]
        axes.errorbar(
            places,
            medians,
            yerr=_bars(timings),
            markersize=3.5,
            elinewidth=0.8,
            label=f"{len(timings)} {name}",
            **style,
        )
        place += len(timings)
    if plan.winner is not None:
        rank = plan.ranked.index(plan.winner) + 1
        axes.plot([rank], [plan.winner.median_us], "*", color=WINNER, markersize=14, label="winner", zorder=5)
    _scale(axes.yaxis, axes.set_ylim, plan.ranked)
    axes.set_xlim(0, place)
    axes.set_xlabel("rank of the configuration", fontsize=8)
    axes.set_ylabel("µs per launch" + _scale_text(axes.yaxis), fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    # above the axes, where it covers no time
    axes.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)


def _draw_rows(axes: Any, plan: Layout) -> None:
    """Draw one line per configuration: a point with its interval, or the reason why there is none."""
    timed = [(place, row.timing) for place, row in enumerate(plan.rows) if row.timing and _is_timed(row.timing)]
    timings = [timing for _, timing in timed]
    for kind, style in (("ok", {"color": MEASURED}), ("dropped", {"color": DROPPED, "markerfacecolor": "white"})):
        selected = [(place, timing) for place, timing in timed if timing.status == kind]
        if selected:
            medians = [timing.median_us for _, timing in selected]
            places = [place for place, _ in selected]
            errors = _bars([timing for _, timing in selected])
            axes.errorbar(medians, places, xerr=errors, fmt="o", markersize=4.5, elinewidth=1, capsize=2, **style)
    _scale(axes.xaxis, axes.set_xlim, timings)
    for place, row in enumerate(plan.rows):
        colour = {"ok": "black", "dropped": "#707070", "failed": FAILED}[row.kind]
        if row.wins and row.timing is not None:
            axes.axhspan(place - 0.5, place + 0.5, color=WINNER, alpha=0.13, linewidth=0)
            axes.plot([row.timing.median_us], [place], "*", color=WINNER, markersize=13, zorder=5)
        _write_note(axes, place, _note(row, plan), row.timing, WINNER if row.wins else colour)
        if place and row.kind != plan.rows[place - 1].kind:
            axes.axhline(place - 0.5, color=DROPPED, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(plan.rows)), [row.text for row in plan.rows], fontsize=7, family="monospace")
    for text, row in zip(axes.get_yticklabels(), plan.rows):
        text.set_color(WINNER if row.wins else FAILED if row.kind == "failed" else "black")
    axes.set_ylim(len(plan.rows) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=7)
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)
    if timings:
        axes.set_xlabel("µs per launch: median, and its 95 % interval" + _scale_text(axes.xaxis), fontsize=8)
    else:
        axes.set_xticks([])


def _write_note(axes: Any, place: int, note: str, timing: Timing | None, colour: str) -> None:
    """Write a text beside a line's point, on the side with room, or at the left edge if there is no point."""
    x, offset, side, transform = 0.01, 0, "left", axes.get_yaxis_transform()
    if timing is not None and _is_timed(timing):
        low, high = _ends(timing)
        middle = (axes.transScale + axes.transLimits).transform((timing.median_us, place))[0]
        x, offset, side = (high, 8, "left") if middle < 0.6 else (low, -8, "right")
        transform = axes.transData
    axes.annotate(
        note, (x, place), xycoords=transform, xytext=(offset, 0), textcoords="offset points", fontsize=7,
        va="center", ha=side, color=colour,
    )  # fmt: skip


def _note(row: Row, plan: Layout) -> str:
    if row.wins and row.timing is not None:
        first = next(other.timing for other in plan.rows if other.kind == "ok")
        tie = "" if first is row.timing else ", as fast as the fastest but with less shared memory"
        return f"winner, {microseconds(row.timing.median_us)}{tie}"
    if row.kind == "failed":
        return f"✕ {shortened(row.reason or 'failed', 110)}"
    if row.kind == "dropped":
        return f"dropped: {shortened(row.reason, 60)}" if row.reason else "dropped"
    return ""
