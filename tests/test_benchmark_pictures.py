"""The pictures and means of the benchmarks: outliers are named, lines explained, and no text is covered."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from benchmarks import compile_time, gemm
from benchmarks.speed import ratios
from benchmarks.speed.cells import PARTS
from benchmarks.speed.draw import LIMIT, LOADS, draw
from benchmarks.speed.draw import title as title_of


def rows_with(*values: float) -> list[dict[str, Any]]:
    shape = {"m": 8, "n": 4, "k": 2, "threads": 64}
    return [{"name": f"fp32 {number}", "types": "fp32", "ratio": ratio, **shape} for number, ratio in enumerate(values)]


def test_a_mean_names_the_row_on_which_it_hangs() -> None:
    row, rest = ratios.outlier(rows_with(3.0, 2.0, 60.0, 4.0)) or ({}, 0.0)
    assert (row["ratio"], rest) == (60.0, ratios.geometric_mean([3.0, 2.0, 4.0]))
    slow = ratios.outlier(rows_with(3.0, 0.1, 3.0, 3.0))
    assert slow is not None
    assert slow[0]["ratio"] == 0.1, "also one that is far below the others"
    assert ratios.outlier(rows_with(3.0, 2.0, 5.0, 4.0)) is None
    assert ratios.outlier(rows_with(1.0, 60.0)) is None, "one of two says nothing"
    assert ratios.outlier([{"wrong": "c"}]) is None


def test_titles_and_summaries_name_it_too() -> None:
    found = rows_with(3.0, 2.0, 60.0, 4.0)
    assert title_of("fp32", found) == (
        "fp32: 6.2x as fast as Warp, geometric mean; 2.9x without 8x4x2 with 64 threads (60.0x)"
    )
    assert title_of("fp32", rows_with(3.0, 3.0, 3.0)) == "fp32: 3.0x as fast as Warp, geometric mean"
    assert title_of("fp32", []) == "fp32"
    summary = gemm.summary([row | {"tiles": {}, "warp": {}} for row in found], loop=False)
    assert summary["fp32"]["outlier"] == {"name": "fp32 2", "ratio": 60.0, "mean_without": 2.884}
    assert "outlier" not in summary["all"]


def test_the_recorded_summaries_are_those_of_their_rows() -> None:
    data = json.loads((gemm.ROOT / "benchmarks" / "results" / "gemm.json").read_text())
    for name, part in data["parts"].items():
        assert gemm.summary(part["rows"], PARTS[name].whole) == part["summary"], name
    assert data["parts"]["backward_resident"]["summary"]["fp32"]["outlier"]["name"] == "fp32 128x128x32 128"


def test_pictures_of_the_record_explain_their_lines_and_cover_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = json.loads((gemm.ROOT / "benchmarks" / "results" / "gemm.json").read_text())
    figures: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(pyplot, "close", figures.append)
        draw(data, tmp_path)
    for name, figure in zip(data["parts"], figures):
        (legend,) = figure.legends
        labels = {text.get_text() for text in legend.get_texts()}
        assert (LIMIT in labels) == (name in ("resident", "deep", "backward_resident"))
        assert (LOADS in labels) == (name == "loop")
        assert not {label for label in labels if "bound" in label}
        area = legend.get_window_extent()
        for axes in figure.axes:
            assert axes.get_yscale() == "linear"
            assert not area.overlaps(axes.get_tightbbox())
            boxes = [text.get_window_extent() for text in (*axes.texts, *axes.get_xticklabels()) if text.get_text()]
            assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)], name
        pyplot.close(figure)


def test_compile_times_are_dots_because_their_axis_is_logarithmic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads((gemm.ROOT / "benchmarks" / "results" / "compile_time.json").read_text())
    figures: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, path, **_: figures.append(figure))
        compile_time.draw(record["groups"], tmp_path / "x.png")
    (axes,) = figures[0].axes
    figures[0].canvas.draw()
    assert axes.get_xscale() == "log"
    assert not axes.patches
    measured = sum(len(group["rows"]) for group in record["groups"].values())
    assert len([line for line in axes.lines if line.get_linestyle() == "None"]) == measured
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]
    assert all(box.x1 <= axes.get_window_extent().x1 for box in boxes)
