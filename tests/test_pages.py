"""The measured tables and values of the pages are those that benchmarks/pages.py writes."""

import re
from pathlib import Path

import pytest

from benchmarks import result_values
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


def test_a_pattern_of_rows_shows_the_least_and_the_greatest_value(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": name, "us": {"tiles": us}} for name, us in (("a 1", 2.0), ("a 2", 25.0), ("b 1", 100.0))]
    monkeypatch.setattr(result_values, "result", {"times": {"rows": rows}}.__getitem__)
    assert result_values.shown("times/a */us/tiles:ratio") == "2.0 to 25"
    with pytest.raises(LookupError, match="no row"):
        result_values.shown("times/c */us/tiles")


def test_the_explanation_of_a_slow_build_has_the_measured_values() -> None:
    seconds, megabytes = VALUES["libmathdx seconds"], VALUES["libmathdx megabytes"]
    assert LIBMATHDX.endswith(f"which takes {seconds} s and {megabytes} MB of LTO-IR for each function")


# ---- every measured figure is marked

_UNITS = (
    r"times\s+(?:as|the|that|slower|faster|longer)|(?:m?s|us|µs|seconds|MB|GB|TFLOP/s)\b|%\s+(?:slower|faster|longer)"
)
_FIGURE = re.compile(
    rf"(?<![\w.])\d(?:[\d.,]*\d)?\s+(?:{_UNITS}|(?:of|over)\s+(?:cuBLAS|cuSOLVER|Warp|torch)\b)"
    r"|(?<![\w.])0\.\d+(?![\d.]*\d)"
)
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
_NOT_MEASURED = {  # the text that begins with the number
    "docs/cache.md": {
        "120 s)": "a default", "5 s, a waiting": "a limit", "600 s, or": "a limit", "2 s for a worker": "a limit",
        "0.2 s is asked": "a limit", "450 MB, and": "what the pool reserves", "80 MB each": "what the pool reserves",
    },
    "docs/cluster.md": {"5 s, with the address": "a limit"},
    "docs/faq.md": {"1.1 GB with": "sizes of packages", "556 MB are": "sizes of packages"},
    "docs/remote.md": {"0.02 s. If": "a limit", "0.2 s or more": "a limit"},
    "docs/report.md": {"10 s, the later": "a limit"},
    "docs/templates.md": {
        "0.2 for fp64": "a weight of the chooser", "0.5 for fp32": "a weight of the chooser",
        "1.25 times the fewest": "checked by tests/emulator/test_wavefronts.py",
    },
    "docs/tuning.md": {
        "0.99 of the default's time": "a rule of searches", "1.5 times the leader's median": "a rule of searches",
    },
}  # fmt: skip


def _user_pages() -> list[str]:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1].split("For developers:")[0]
    pages = [f"docs/{name}" for name in re.findall(r"\w+\.md", navigation)]
    return ["README.md", "docs/tables.md", "docs/templates.md", *(page for page in pages if (ROOT / page).exists())]


def _unmarked(text: str) -> list[str]:
    """The measured figures of a page without a mark, with what follows them."""
    prose = _CODE.sub("", MARK.sub("", text))
    return [prose[match.start() : match.end() + 25] for match in _FIGURE.finditer(prose)]


@pytest.mark.parametrize("page", _user_pages())
def test_a_measured_figure_has_a_mark(page: str) -> None:
    exceptions = _NOT_MEASURED.get(page, {})
    found = [" ".join(figure.split()) for figure in _unmarked((ROOT / page).read_text("utf-8"))]
    assert [figure for figure in found if not figure.startswith(tuple(exceptions))] == []
    assert [text for text in exceptions if not any(figure.startswith(text) for figure in found)] == [], "is not needed"


@pytest.mark.parametrize(
    "figure",
    ["13 times as fast", "1.5 times\nas fast", "2 us a call", "4,096 ms", "0.9 of it", "1.02 of torch", "5 %\nslower"],
)
def test_a_figure_without_a_mark_is_found(figure: str) -> None:
    text = f"The loop has {figure} there, and `3 s`, <!--=loops-->5 to 6<!--/--> s of 4096 rows with Python 3.10.\n"
    assert [" ".join(found.split())[:5] for found in _unmarked(text)] == [" ".join(figure.split())[:5]]


def test_the_changes_of_the_next_release_state_no_figure() -> None:
    unreleased = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")[1]
    limits = ("0.2 s or more)", "0.2 s; it ended")
    assert [figure for figure in _unmarked(unreleased) if not figure.startswith(limits)] == [], "link the page instead"


def test_an_experiment_with_a_file_has_marks() -> None:
    rows = (ROOT / "docs" / "experiments.md").read_text("utf-8").splitlines()
    linked = [row for row in rows if "](../benchmarks/results/" in row]
    assert [row[:80] for row in linked if not MARK.search(row) and "tune_matmul.py --fit" not in row] == []


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
