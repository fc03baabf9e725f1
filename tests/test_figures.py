"""The figures of the pages are those of benchmarks/results, within rounding."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.figures import API, COMMANDS, FIGURES, MEASURED, README, ROOT, Figures

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


@pytest.mark.parametrize("figures", FIGURES, ids=lambda figures: f"{figures.page} {figures.text[:40]}")
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
# texts with numbers that are versions, sizes or facts, and figures whose runs are not on record
OTHERS = {
    README: ["Warp 1.19", "warp-lang 1.17, 1.18 or 1.19", "Python 3.10 to 3.14", "Python 3.10 or newer"],
    API: [],
    COMMANDS: [],
    MEASURED: [
        "unmodified Warp 1.19", "at most 38 KB of 1,060 drawn functions, not on record", "driver 580.159, CUDA 13.0",
        "torch 2.11",
        "one is slower by more than 3 %", "for a form that varies by 13 % from run to run", "With 100 repeats",
        "that form has 0.993", "have 0.981 and 0.982",
    ],
}  # fmt: skip


def unlisted(name: str, page: str) -> Iterator[str]:
    """The figures of a page that no entry of FIGURES covers."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    for figures in FIGURES:
        if figures.page == name:
            page = pattern(figures).sub("", page)
    for text in OTHERS[name]:
        page = page.replace(text, "")
    for match in re.finditer(A_FIGURE, page):
        yield page[max(match.start() - 30, 0) : match.end() + 20]


@pytest.mark.parametrize("name", OTHERS)
def test_every_figure_is_listed(name: str) -> None:
    assert list(unlisted(name, read(name))) == []


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_texts_occur(name: str) -> None:
    assert [text for text in OTHERS[name] if text not in read(name)] == []


def test_an_unlisted_figure_is_found() -> None:
    assert len(list(unlisted(README, "It takes 3 s, or 0.5 of that."))) == 2
