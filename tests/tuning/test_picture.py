"""The picture of a search: its lines, and a PNG for any record."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from tests.tuning.tuning_records import failure, key, timing
from warp_tiles.errors import RecordError
from warp_tiles.tuning.picture import BEST_ROWS, MAX_ROWS, REASON_ROWS, draw, layout
from warp_tiles.tuning.record import Record, Timing


def record(*timings: Timing) -> Record:
    return Record(key(), timings)


def search(measured: int, dropped: int = 0, failed: int = 0) -> Record:
    """A record with these numbers of candidates, the slowest first."""
    return record(
        *(timing({"x": number, "y": 1}, 100.0 + number) for number in reversed(range(measured))),
        *(timing({"x": -number, "y": 1}, 900.0, status="dropped") for number in range(1, dropped + 1)),
        *(failure({"x": number + 0.5, "y": 1}, f"reason {number}") for number in range(failed)),
    )


def test_a_few_configurations_have_a_line_each_sorted_by_kind_and_time() -> None:
    plan = layout(search(3, 2, 2))
    assert [row.kind for row in plan.rows] == ["ok"] * 3 + ["dropped"] * 2 + ["failed"] * 2
    assert [row.text.strip() for row in plan.rows[:3]] == ["x=0", "x=1", "x=2"]
    assert [row.reason for row in plan.rows if row.kind == "failed"] == ["reason 0", "reason 1"]
    assert plan.ranked == ()
    assert "7 configurations: 3 measured, 2 dropped, 2 failed" in plan.heading[1]
    assert plan.heading[2] == "all with y=1"


def test_many_configurations_are_ranked_and_the_best_named() -> None:
    plan = layout(search(MAX_ROWS, 40, 20))
    assert len(plan.ranked) == MAX_ROWS + 40
    assert [item.status for item in plan.ranked] == ["ok"] * MAX_ROWS + ["dropped"] * 40
    assert [item.median_us for item in plan.ranked[:3]] == [100.0, 101.0, 102.0]
    assert len(plan.rows) == BEST_ROWS + REASON_ROWS + 1
    assert "12 other reasons" in plan.rows[-1].reason


@pytest.mark.parametrize("count", [3, MAX_ROWS, MAX_ROWS + 1, 200])
def test_the_winner_has_one_line(count: int) -> None:
    plan = layout(search(count))
    (row,) = [row for row in plan.rows if row.wins]
    assert row.timing is plan.winner


def test_a_winner_by_shared_memory_has_a_line_however_many_are_as_fast() -> None:
    equal = [timing({"x": number}, 10.0 + number / 1000, shared_bytes=4096) for number in range(100)]
    plan = layout(record(*equal, timing({"x": "small"}, 10.4)))
    assert [row.text for row in plan.rows if row.wins] == ["x=small"]
    assert len(plan.rows) == BEST_ROWS


def test_a_candidate_dropped_without_a_time_says_why() -> None:
    plan = layout(record(timing({"x": 1}), timing({"x": 2}, math.nan, status="dropped", reason="no time was left")))
    assert plan.rows[1].reason == "no time was left"


@pytest.mark.parametrize(
    "drawn",
    [
        search(1),
        search(3, 1, 1),
        search(0, 0, 4),
        search(0, 3),
        search(20, 2, 2),
        search(150, 30, 20),
        record(timing({"x": 1}, 1.0, low_us=math.nan, high_us=math.nan), timing({"x": 2}, 5000.0)),
        record(timing({"x": 1}, 0.0), timing({"x": 2}, 0.0)),
        record(timing({"name": "$x^2_{$", "text": "l" * 300}, 3.0), failure({"x": "$\\frac$"}, "costs $5\nlog [/x]")),
        record(timing({"x": 1}, math.nan, status="dropped"), timing({"x": 2}, 9.0)),
    ],
    ids=lambda drawn: f"{len(drawn.timings)} configurations",
)
def test_any_record_becomes_a_png(drawn: Record, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # matplotlib's own
        draw(drawn, tmp_path / "search.png")
    data = (tmp_path / "search.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = (int.from_bytes(data[start : start + 4], "big") for start in (16, 20))
    assert 1000 < width < 1500
    assert 100 < height < 2000


def test_a_missing_matplotlib_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RecordError, match="needs matplotlib") as raised:
        draw(search(3), tmp_path / "search.png")
    assert "warp-tiles[plot]" in raised.value.remedy


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be written"):
        draw(search(3), tmp_path / "missing" / "search.png")
    with pytest.raises(RecordError, match="no configuration"):
        draw(record(), tmp_path / "search.png")


def drawn_axes(made: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of a picture, after they were drawn."""
    figures: list[Any] = []
    save = Figure.savefig

    def keep(figure: Any, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    draw(made, tmp_path / "search.png")
    return list(figures[0].get_axes())


def test_the_legend_covers_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, rows = drawn_axes(search(MAX_ROWS + 20, 5), tmp_path, monkeypatch)
    legend = ranks.get_legend().get_window_extent()
    assert [text.get_text() for text in ranks.get_legend().get_texts()] == ["winner", "80 measured", "5 dropped"]
    assert not legend.overlaps(ranks.get_window_extent())
    assert not legend.overlaps(rows.get_tightbbox())
    assert legend.y1 <= ranks.figure.get_window_extent().y1


@pytest.mark.parametrize(("slowest", "text"), [(100.0, "interval"), (9000.0, "interval (logarithmic)")])
def test_a_logarithmic_axis_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slowest: float, text: str) -> None:
    (axes,) = drawn_axes(record(timing({"x": 1}, 50.0), timing({"x": 2}, slowest)), tmp_path, monkeypatch)
    assert axes.get_xlabel().endswith(text)
    assert (axes.get_xscale() == "log") == text.endswith("(logarithmic)")
