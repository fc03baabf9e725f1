"""The measured tables and values of the pages are those that benchmarks/pages.py writes."""

import re
from pathlib import Path

import pytest

from benchmarks.pages import MARK, ROOT, filled, pages, values
from benchmarks.result_values import RESULTS, table
from warp_tiles.providers.cublasdx import LIBMATHDX

VALUES = values()


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: page.name)
def test_a_page_has_the_measured_values(page: Path) -> None:
    text = page.read_text("utf-8")
    assert filled(text, VALUES) == text, "run: python -m benchmarks.pages"


def test_every_value_is_on_a_page() -> None:
    marked = {mark[1] for page in pages() for mark in MARK.finditer(page.read_text("utf-8"))}
    assert {name for name in marked if "/" not in name} == set(VALUES)


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: page.name)
def test_a_mark_in_a_sentence_begins_no_line(page: Path) -> None:
    found = re.findall(r"^[ >*-]*<!--=.*<!--/-->.*", page.read_text("utf-8"), re.MULTILINE)
    assert found == [], "Markdown would take the line for HTML"


def test_a_value_and_a_table_are_filled_in() -> None:
    page = "It takes <!--=time-->1 s<!--/-->.\n\n<!--=rows-->\n\nold\n\n<!--/-->\n"
    found = {"time": "2 s", "rows": table(["", "s"], [["one", ""], ["two", "2"]])}
    rows = "| | s |\n| --- | --- |\n| one | |\n| two | 2 |"
    assert filled(page, found) == f"It takes <!--=time-->2 s<!--/-->.\n\n<!--=rows-->\n\n{rows}\n\n<!--/-->\n"
    total = "mutations/total"
    for mark, text in {
        "mutations/date:.4": "2026",
        f"{total}:MB": "0.00",
        f"{total} over {total}:ratio": "1.00",
    }.items():
        assert filled(f"<!--={mark}--><!--/-->", {}) == f"<!--={mark}-->{text}<!--/-->"
    for name in ("other", "other/x", "loops/other", "loops/rows/other"):
        with pytest.raises((LookupError, OSError)):
            filled(f"<!--={name}-->1<!--/-->", found)


def test_the_explanation_of_a_slow_build_has_the_measured_values() -> None:
    seconds, megabytes = VALUES["libmathdx seconds"], VALUES["libmathdx megabytes"]
    assert LIBMATHDX.endswith(f"which takes {seconds} s and {megabytes} MB of LTO-IR for each function")


# ---- every result is cited


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_page_a_test_or_the_code_names_each_result(path: Path) -> None:
    sources = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *(ROOT / "warp_tiles").rglob("*.py")]
    assert any(path.name in source.read_text("utf-8") for source in sources if source.name != "CHANGELOG.md")


def test_the_code_names_results_that_exist() -> None:
    sources = (path for folder in ("warp_tiles", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py"))
    named = {
        name for path in sources for name in re.findall(r"benchmarks/results/(\w+\.json)", path.read_text("utf-8"))
    }
    assert {name for name in named if not (RESULTS / name).exists()} == set()
