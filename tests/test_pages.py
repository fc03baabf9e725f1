"""The measured tables and values of the pages are those that benchmarks/pages.py writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.page_values import values
from benchmarks.pages import MARK, filled, pages
from benchmarks.result_values import at, table
from warp_tiles.providers.fallbacks import COSTS, LIBMATHDX_TITLE

VALUES = values()


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: page.name)
def test_a_page_has_the_measured_values(page: Path) -> None:
    text = page.read_text("utf-8")
    assert filled(text, VALUES) == text, "run: python -m benchmarks.pages"


def test_every_value_is_on_a_page() -> None:
    marked = {mark[1] for page in pages() for mark in MARK.finditer(page.read_text("utf-8"))}
    assert marked == set(VALUES)


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: page.name)
def test_a_mark_in_a_sentence_begins_no_line(page: Path) -> None:
    found = re.findall(r"^[ >*-]*<!--=.*<!--/-->.*", page.read_text("utf-8"), re.MULTILINE)
    assert found == [], "Markdown would take the line for HTML"


def test_a_value_and_a_table_are_filled_in() -> None:
    page = "It takes <!--=time-->1 s<!--/-->.\n\n<!--=rows-->\n\nold\n\n<!--/-->\n"
    found = {"time": "2 s", "rows": table(["", "s"], [["one", ""], ["two", "2"]])}
    rows = "| | s |\n| --- | --- |\n| one | |\n| two | 2 |"
    assert filled(page, found) == f"It takes <!--=time-->2 s<!--/-->.\n\n<!--=rows-->\n\n{rows}\n\n<!--/-->\n"
    with pytest.raises(KeyError):
        filled("<!--=other-->1<!--/-->", found)


def test_the_explanation_of_a_slow_build_has_the_measured_values() -> None:
    seconds, megabytes = VALUES["libmathdx seconds"], VALUES["libmathdx megabytes"]
    text = f"which takes {seconds} s and {megabytes} MB of LTO-IR for each function"
    assert COSTS[LIBMATHDX_TITLE] == text


# ---- limits

REMOTE_LIMITS = {"one module": 0.25, "eight modules": 0.2}


def test_a_cold_start_with_a_store_keeps_its_limits() -> None:
    found = {case["modules"]: case["store_to_local"] for case in at("remote", "cases")}
    assert {name for name, ratio in found.items() if ratio > REMOTE_LIMITS[name]} == set()
    assert set(found) == set(REMOTE_LIMITS)


def test_dask_keeps_its_limit_on_workers_that_have_built_before() -> None:
    results = at("cluster", "results")
    assert not [name for name in results if name.endswith("used") and results[name]["ratio"] > at("cluster", "limit")]
