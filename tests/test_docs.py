"""The documentation: links and paths exist, and the table of settings matches the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.notebook import TUTORIAL, as_markdown
from warp_tiles import settings

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), TUTORIAL]
# folders of files that pages name
PARTS = ("warp_tiles", "kernels", "examples", "benchmarks", "tests", "docs", "tools", "recipe")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """A page without its code blocks."""
    text = as_markdown(page) if page.suffix == ".ipynb" else page.read_text()
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The valid ``#...`` anchors of a page: its headings in GitHub's form."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@every_page
def test_link_targets_exist(page: Path) -> None:
    assert list(broken_links(page)) == []


@every_page
def test_named_paths_exist(page: Path) -> None:
    named = re.findall(rf"`((?:{'|'.join(PARTS)})/[\w./-]*)`", prose(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_broken_link_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`: three\n[a](page.md#one-two-three) [b](#four) [c](gone.md) [d](https://example.org/x)\n"
    )
    assert list(broken_links(page)) == ["#four", "gone.md"]


# ---- settings

# words of docs/settings.md for empty defaults
UNSET = {
    "cache_dir": "the user's cache folder",
    "trusted_projects": "none",
    "record_paths": "none",
    "remote": "none",
    "bundle": "none",
    "signing_key": "none",
    "trusted_keys": "none",
    "record_gpu": "this one",
}


def settings_table() -> dict[str, tuple[str, str]]:
    """Environment variable and default of each setting in docs/settings.md."""
    rows = re.findall(
        r"^\| `(\w+)` \| `(WARP_TILES_\w+)` \| ([^|]+) \|", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE
    )
    return {name: (variable, default.strip().strip("`")) for name, variable, default in rows}


def test_the_page_lists_every_setting_with_its_variable() -> None:
    assert {name: variable for name, (variable, _) in settings_table().items()} == settings.ENVIRONMENT


@pytest.mark.parametrize(("name", "default"), settings.defaults().items(), ids=list(settings.defaults()))
def test_the_page_has_the_default_of_each_setting(name: str, default: object) -> None:
    variable, text = settings_table()[name]
    if name in UNSET:
        assert (text, bool(default)) == (UNSET[name], False)
    else:
        assert settings.from_environment({variable: text}) == {name: default}
