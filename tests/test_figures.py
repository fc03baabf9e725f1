"""The figures of the pages are those of benchmarks/results, within rounding."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.design_figures import CLUSTER, DESIGN_FIGURES
from tests.figures import FIGURES, README, Figures
from tests.measured_values import ROOT, at
from tests.unmeasured import MOSTLY_NOT_ON_RECORD, OTHERS

ALL = [*FIGURES, *DESIGN_FIGURES]

NUMBER = r"(\d[\d,]*(?:\.\d+)?)"


def read(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def pattern(figures: Figures) -> re.Pattern[str]:
    fixed = (re.sub(r"(?:\\\s)+", r"\\s+", re.escape(part)) for part in figures.text.split("{}"))
    return re.compile(NUMBER.join(fixed))  # a line may end at any space


def half_a_digit(text: str) -> float:
    """Half of a unit of the last digit of a number, e.g. 0.05 for ``1.4``, and slightly more for binary fractions."""
    decimals = len(text.partition(".")[2])
    return 0.5000001 * 10.0**-decimals


def stated(page: str, figures: Figures) -> tuple[str, ...]:
    """The figures in a page, which must have the text once."""
    found = list(pattern(figures).finditer(page))
    assert len(found) == 1, f"{figures.page} has the text {figures.text!r} {len(found)} times"
    return found[0].groups()


def wrong(page: str, figures: Figures) -> list[tuple[str, float]]:
    """The figures that differ from their measurement, each with the measured value."""
    texts, values = stated(page, figures), figures.values()
    assert len(texts) == len(values), f"{len(texts)} figures and {len(values)} values"
    pairs = zip(texts, values)
    return [(text, value) for text, value in pairs if abs(float(text.replace(",", "")) - value) > half_a_digit(text)]


@pytest.mark.parametrize("figures", ALL, ids=lambda figures: f"{figures.page} {figures.text[:40]}")
def test_the_page_has_the_measured_figures(figures: Figures) -> None:
    assert wrong(read(figures.page), figures) == []


def test_a_wrong_figure_is_found() -> None:
    figures = Figures("page.md", "it takes {} s or {} ms", lambda: [1.45, 20.4])
    assert wrong("it takes 1.4 s or 20 ms", figures) == []
    assert wrong("it takes 1.5 s or 21 ms", figures) == [("21", 20.4)]
    assert wrong("it takes 1.46 s or 20.4 ms", figures) == [("1.46", 1.45)]


def test_a_text_that_is_gone_or_repeated_is_found() -> None:
    figures = Figures("page.md", "it takes {} s", lambda: [1.0])
    for page in ("it took 1 s", "it takes 1 s. Now it takes 2 s."):
        with pytest.raises(AssertionError, match="times"):
            stated(page, figures)


# ---- no figure without a measurement

A_FIGURE = (
    r"(?<![\w.x-])\d[\d,]*(?:\.\d+)?(?= (?:s|ms|µs|us|MB|KB|%|seconds|times|TFLOP/s)\b)|(?<![\w.-])\d+\.\d+(?![\w.-])"
)


def unlisted(name: str, page: str) -> Iterator[str]:
    """The figures of a page that no entry of :data:`ALL` covers."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    for figures in ALL:
        if figures.page == name:
            page = pattern(figures).sub("", page)
    for text in OTHERS[name]:
        page = pattern(Figures(name, text, list)).sub("", page)
    for match in re.finditer(A_FIGURE, page):
        yield page[max(match.start() - 30, 0) : match.end() + 20]


@pytest.mark.parametrize("name", OTHERS)
def test_every_figure_is_listed(name: str) -> None:
    assert list(unlisted(name, read(name))) == []


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_texts_occur(name: str) -> None:
    page = " ".join(read(name).split())
    assert [text for text in OTHERS[name] if text not in page] == []


def test_an_unlisted_figure_is_found() -> None:
    assert len(list(unlisted(README, "It takes 3 s, or 0.5 of that."))) == 2


@pytest.mark.parametrize("name", MOSTLY_NOT_ON_RECORD)
def test_a_page_of_old_figures_says_so(name: str) -> None:
    assert MOSTLY_NOT_ON_RECORD[name] in read(name)


# ---- limits

REMOTE_LIMITS = {"one module": 0.25, "eight modules": 0.2}


def test_a_cold_start_with_a_store_keeps_its_limits() -> None:
    found = {case["modules"]: case["store_to_local"] for case in at("remote", "cases")}
    assert {name for name, ratio in found.items() if ratio > REMOTE_LIMITS[name]} == set()
    assert set(found) == set(REMOTE_LIMITS)


def test_dask_keeps_its_limit_and_the_page_names_each_miss() -> None:
    limit, results = at("cluster", "limit"), at("cluster", "results")
    missed = {name for name, row in results.items() if row["ratio"] > limit}
    assert not {name for name in missed if name.endswith("used")}
    named = re.findall(r"\| ([\d.]+), above the limit \|", read(CLUSTER))
    assert sorted(named) == sorted(f"{results[name]['ratio']:.2f}" for name in missed)
