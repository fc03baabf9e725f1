"""The site of the documentation: its navigation, what is made from the code, and the tutorial."""

import importlib.util
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import warp_tiles
from tests.interpreter import python
from tests.test_docs import anchors
from tools import notebook, site
from tools.project import ROOT
from warp_tiles import errors
from warp_tiles.cli import EXAMPLES

DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """YAML with Python's tags, whose objects are not created."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
CONFIG: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)


def pages(nav: Any) -> Iterator[str]:
    """The files of a navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(part)


def test_the_navigation_has_every_page_once() -> None:
    written = [path.name for path in DOCS.glob("*.md")] + ["tutorial.md", "index.md"]  # the notebook and the README
    assert sorted(pages(CONFIG["nav"])) == sorted(written)


def documented() -> list[str]:
    """The names whose docstrings the reference shows."""
    page = site.on_page_markdown((DOCS / "api.md").read_text("utf-8"))
    return re.findall(r"^::: warp_tiles\.(?:api\.)?(\w+)$", page, re.MULTILINE)


def test_the_reference_has_every_exported_name_once() -> None:
    exported = {
        name
        for name in warp_tiles.__all__
        if name != "__version__" and not issubclass_of_error(getattr(warp_tiles, name))
    }
    assert sorted(documented()) == sorted(exported)


def issubclass_of_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, errors.WarpTilesError)


def test_the_help_of_every_command_is_in_the_site() -> None:
    page = site.on_page_markdown((DOCS / "commands.md").read_text("utf-8"))
    assert site.HELP_OF_COMMANDS not in page
    assert {name for name in EXAMPLES if f"## `{f'warp-tiles {name}'.strip()}`" not in page} == set()
    assert "--block-dim" in page
    assert page.count("-h, --help") == len(EXAMPLES)


def test_the_page_draws_the_tree_of_errors() -> None:
    """Each class below its base, with the first sentence of its docstring."""
    drawn, path = [], ["Exception"]
    line = re.compile(r"^((?:[\u2502\u251c\u2514\u2500 ]{4})*)(\w+(?:Error|Problem))\b *(.*)$", re.MULTILINE)
    for inner, name, text in line.findall((DOCS / "troubleshooting.md").read_text("utf-8")):
        path[len(inner) // 4 + 1 :] = [name]
        drawn.append((name, path[-2], text[:1].upper() + text[1:]))
    classes = [cls for cls in vars(errors).values() if issubclass_of_error(cls)]
    assert [row[:2] for row in drawn] == [(cls.__name__, cls.__bases__[0].__name__) for cls in classes]
    assert [cls for cls, row in zip(classes, drawn) if not str(cls.__doc__).startswith(row[2])] == []


@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        ("[a](../benchmarks/results/gemm.json)", f"[a]({site.SOURCES}benchmarks/results/gemm.json)"),
        ("[a](../README.md#try-it)", f"[a]({site.SOURCES}README.md#try-it)"),
        ("[a](tutorial.ipynb)", "[a](tutorial.md)"),
        ("[a](cache.md#trust)", "[a](cache.md#trust)"),
        ("![a](gemm_loop.png)", "![a](gemm_loop.png)"),
        ("[a](https://example.org/../x)", "[a](https://example.org/../x)"),
    ],
)
def test_links_that_leave_the_pages_lead_to_github(link: str, wanted: str) -> None:
    assert site.site_links(link) == wanted


def test_the_first_page_is_the_readme_with_one_picture() -> None:
    page = site.first_page()
    assert re.findall(r"^!\[[^\]]+\]\((.*?)\)", page, re.MULTILINE) == ["cold_start.png"]
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert [link for link in links if not (DOCS / link.partition("#")[0]).exists()] == []


# ---- the tutorial


def test_the_notebook_is_one_and_names_no_place_of_a_machine() -> None:
    data = json.loads(notebook.TUTORIAL.read_text("utf-8"))
    assert data["nbformat"] == 4
    assert {cell["cell_type"] for cell in data["cells"]} == {"markdown", "code"}
    assert not re.search(r"/(?:tmp|root|home|work)/", json.dumps(data))
    assert all(cell["execution_count"] is None for cell in data["cells"] if cell["cell_type"] == "code")


def test_the_page_of_the_tutorial_has_its_cells() -> None:
    page = notebook.as_markdown()
    assert page.startswith("# From a kernel to a deployed bundle")
    assert page.count("```python") == sum(kind == "code" for kind, _, _ in notebook.cells())
    assert "plan-it" in anchors(notebook.TUTORIAL)


@pytest.mark.slow
def test_the_cells_run_without_a_gpu_and_print_what_the_notebook_shows(tmp_path: Path) -> None:
    (tmp_path / "tutorial.py").write_text(notebook.as_script())
    environment = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path)}
    environment |= {"WARP_CACHE_PATH": str(tmp_path / "kernels"), "WARP_TILES_CACHE_DIR": str(tmp_path / "cache")}
    done = python("tutorial.py", folder=tmp_path, **environment)
    assert "RuntimeWarning" not in done.stderr
    shown = "".join(printed for _, _, printed in notebook.cells()).splitlines()
    hashes_differ = [line for line in shown if ".cubin:" in line]  # between versions of Warp and of the compiler
    assert len(hashes_differ) == 1
    assert [line for line in shown if line not in done.stdout.splitlines()] in ([], hashes_differ)
    assert re.search(r"^wp___main___\w+\.sm90\.cubin: \d+ bytes for sm_90a$", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    missing = [name for name in ("mkdocs", "material", "mkdocstrings") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (extra 'docs'); `nox -s docs` builds the site")
    python("-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site", NO_MKDOCS_2_WARNING="1")
    reference = (tmp_path / "site" / "api.html").read_text("utf-8")
    assert [name for name in documented() if not re.search(rf'id="warp_tiles\.(api\.)?{name}"', reference)] == []
    assert "Plan a Warp module without building anything" in reference, "the function, not the package of its name"
    assert "only in the site" not in reference
    assert (tmp_path / "site" / "tutorial.html").exists()
    assert "</span> cache info|list|verify" in (tmp_path / "site" / "commands.html").read_text("utf-8")
    assert '<a href="cold_start.png"><img' in (tmp_path / "site" / "index.html").read_text("utf-8")
