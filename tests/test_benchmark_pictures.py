"""The pictures and means of the benchmarks: their values, and that they are those of the results."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures, gemm
from benchmarks.figures import DOCS
from benchmarks.result_values import RESULTS, at

PICTURES = list(figures.pictures())


def test_the_recorded_summaries_are_those_of_their_rows() -> None:
    data = json.loads((RESULTS / "gemm.json").read_text())
    assert gemm.parts(data["rows"]) == {"parts": data["parts"]}


# ---- the pictures of docs/


def test_the_pictures_are_drawn_from_the_results() -> None:
    names = [picture.name for picture in PICTURES if picture.is_outdated]
    assert names == [], "`python -m benchmarks.figures` draws them"


def test_every_picture_of_the_pages_is_one_of_them_and_shown() -> None:
    names = {picture.name for picture in PICTURES}
    assert len(names) == len(PICTURES)
    assert {path.name for path in DOCS.glob("*.png")} == names
    pages = "".join(path.read_text("utf-8") for path in [DOCS.parent / "README.md", *DOCS.glob("*.md")])
    assert set(re.findall(r"\((?:docs/)?(\w+\.png)\)", pages)) == names


def test_other_results_make_a_picture_outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("*.md"))
    picture = next(picture for picture in PICTURES if picture.name == "other_gpus.png")
    dots, *words = picture.data
    changed = replace(picture, data=([{**dots[0], "share": 0.5}, *dots[1:]], *words))
    monkeypatch.setattr(figures, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(figures, "pictures", lambda: [*(one for one in PICTURES if one is not picture), changed])
    monkeypatch.setattr("sys.argv", ["figures", "--check"])
    assert figures.main() == 1
    assert capsys.readouterr().out == "docs/other_gpus.png differs from the results\n"
    monkeypatch.setattr("sys.argv", ["figures"])
    assert figures.main() == 0
    assert (changed.is_outdated, picture.is_outdated) == (False, True)


@pytest.mark.parametrize("part", ["loop", "backward_loop"])
def test_pictures_of_loops_show_shares_of_cublas(part: str) -> None:
    """``docs/measured.md`` states the least and the greatest of those of gradients. None is above cuBLAS."""
    (picture,) = (picture for picture in PICTURES if picture.name == f"gemm_{part}.png")
    figure = picture.draw(*picture.data)
    for axes, kind in zip(figure.axes, ("fp16", "bf16", "tf32", "fp32", "fp64")):
        shown = [text.get_text().partition(",")[0] for text in axes.texts]
        found = at(f"gemm/parts/{part}/summary/{kind}/to_cublas")
        assert [min(shown), max(shown)] == [f"{found[edge]:.2f}" for edge in ("least", "greatest")]
        dots = [x for line in axes.lines if line.get_marker() == "o" for x in line.get_xdata()]
        assert len(dots) == 2 * len(shown)
        assert 0 < min(dots) < max(dots) < 1
