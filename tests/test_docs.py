"""The documentation: links and paths exist, and the tables of settings, calls and commands match the code."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import warp_tiles
from tests.integration.test_cli_examples import COMMANDS
from tools import settings_table as settings_page
from tools.notebook import TUTORIAL, as_markdown
from warp_tiles import settings
from warp_tiles.store.remote import PATIENCE_S

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


# ---- settings


def settings_table() -> dict[str, tuple[str, str]]:
    """Environment variable and default of each setting in docs/settings.md."""
    rows = re.findall(
        r"^\| `(\w+)` \| `(WARP_TILES_\w+)` \| ([^|]+) \|", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE
    )
    return {name: (variable, default.strip().strip("`")) for name, variable, default in rows}


def test_the_table_of_settings_is_that_of_the_code() -> None:
    text = settings_page.PAGE.read_text("utf-8")
    assert settings_page.page(text) == text, "run python -m tools.settings_table"
    assert all(settings_page.meanings().values())
    assert {name: variable for name, (variable, _) in settings_table().items()} == settings.ENVIRONMENT


def test_the_page_names_what_a_project_file_must_not_set() -> None:
    section = settings_page.PAGE.read_text("utf-8").partition("### Project files")[2].partition("are refused")[0]
    assert set(re.findall(r"`(\w+)`", section)) == {n for n, item in settings.SETTINGS.items() if item.users_own}


@pytest.mark.parametrize("name", settings.SETTINGS)
def test_the_page_has_the_default_of_each_setting(name: str) -> None:
    default, (variable, text) = getattr(settings.Settings, name), settings_table()[name]
    if default in (None, "", ()):
        assert text == settings.SETTINGS[name].unset
    else:
        assert settings.from_environment({variable: text}) == {name: default}


def test_the_page_names_the_settings_that_a_bundle_depends_on() -> None:
    (row,) = re.findall(
        r"^\| other values of (.*?) \|", (ROOT / "docs" / "deployment.md").read_text("utf-8"), re.MULTILINE
    )
    assert set(re.findall(r"`(\w+)`", row)) == set(settings.Settings().affecting_code())


def test_pages_have_the_wait_for_an_unreachable_store() -> None:
    text = f"at most {PATIENCE_S:g} s"
    assert [page.name for page in PAGES if page.name in ("formats.md", "remote.md") and text in prose(page)] == [
        "formats.md", "remote.md",
    ]  # fmt: skip


# ---- calls and commands


def table_of(page: str) -> str:
    """The cells in the first column of the first table of a page."""
    rows = re.findall(r"^\| (`.*?`) \| ", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
    return "\n".join(rows)


# without the groups that only hold others
SINGLE = {path: one for path, one in COMMANDS.items() if not isinstance(one, click.Group) or path == "tune"}


def options(path: str) -> set[str]:
    return {flag for one in COMMANDS[path].params for flag in one.opts}


def test_the_table_has_every_call() -> None:
    calls = {name for name in warp_tiles.__all__ if inspect.isfunction(getattr(warp_tiles, name))}
    assert set(re.findall(r"`(\w+)\(", table_of("api.md"))) == calls


def test_the_table_has_every_command() -> None:
    listed: set[str] = set()
    for text in re.findall(r"`(?:warp-tiles )?([^`]+)`", table_of("commands.md")):
        name, *rest = text.split()
        parts = [f"{name} {part}" for part in rest[0].split("\\|")] if rest and "\\|" in rest[0] else [name]
        listed |= set(parts)
    assert listed == set(SINGLE)


def test_the_commands_have_the_options_that_the_page_names() -> None:
    """Those that the text above the table gives to several commands."""
    assert [path for path in SINGLE if "--json" not in options(path)] == []
    assert [path for path in SINGLE if "--policy" in options(path)] == ["run", "plan", "compile"]


def test_the_options_of_the_table_exist() -> None:
    rows = re.findall(r"warp-tiles ([a-z]+) ([^`]*)`", table_of("commands.md"))
    named = [(path, flag) for path, text in rows for flag in re.findall(r"--?[a-z][a-z-]*", text)]
    assert len(named) > 8
    assert [(path, flag) for path, flag in named if flag not in options(path)] == []
