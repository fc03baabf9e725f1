"""Hooks of MkDocs: pages that are made from the code, and links that work on GitHub and in the site.

The pages in docs/ are written for GitHub, where everything of the repository has a relative link. In the site, a link
to a file outside of docs/ leads to GitHub, and one to the notebook to its page. ``nox -s docs`` builds it strictly.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # MkDocs loads this file by its path

from tools.notebook import as_markdown  # noqa: E402

SOURCES = "https://github.com/warp-tiles/warp-tiles/blob/main/"
HELP_COLUMNS = 80  # fit the text column, see docs/stylesheets/site.css
HELP_OF_COMMANDS = "<!-- the help of every command -->"
DOCSTRINGS = "<!-- the docstring of every name -->"
_HYPHENATED = re.compile(r"(?<!\S)(?=\S*-)\S{1,40}(?!\S)")
ONLY_IN_THE_SITE = re.compile(r"<!-- only in the site\n(.*?)\n-->", re.DOTALL)


def site_links(markdown: str) -> str:
    """Change the links of a page of docs/ for the site."""
    markdown = re.sub(r"\]\(\.\./([^)\s]+)\)", rf"]({SOURCES}\1)", markdown)
    return re.sub(r"\]\(tutorial\.ipynb(#[^)\s]*)?\)", r"](tutorial.md\1)", markdown)


def help_of_commands() -> str:
    """Every command with its help, as Markdown."""
    import click

    from warp_tiles.cli import commands

    def visit(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
        options = {**command.context_settings, "terminal_width": HELP_COLUMNS}
        context = click.Context(command, parent, info_name=name, **options)
        yield f"## `{context.command_path}`\n\n```text\n{command.get_help(context)}\n```"
        if isinstance(command, click.Group):
            for part, inner in sorted(command.commands.items()):
                yield from visit(inner, part, context)

    return "\n\n".join(visit(commands, "warp-tiles"))


def docstrings(page: str) -> str:
    """The directives that show the docstrings of the names in the first columns of a page."""
    cells = "\n".join(re.findall(r"^\| (`.*?`) \| ", page, re.MULTILINE))
    names = ["api.plan" if name == "plan" else name for name in re.findall(r"`(\w+)\b", cells)]
    return "## Docstrings\n\n" + "\n\n".join(f"::: warp_tiles.{name}" for name in names)  # plan is a package, too


def without_roles(html: str) -> str:
    """Remove the roles of docstrings, e.g. of ``:func:`enable```, which Markdown does not know."""
    return re.sub(r":(?:func|class|meth|mod|attr|data):<code>~?([^<]*)</code>", r"<code>\1</code>", html)


def without_escapes(html: str) -> str:
    r"""Remove the backslash of ``\|`` in cells of tables: GitHub does so, Markdown leaves it in code."""
    return re.sub(r"<td[^>]*>.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)


def with_labels(html: str) -> str:
    """Give each cell of a table the head of its column: docs/stylesheets/site.css shows tables as lists on a phone."""

    def labelled(table: re.Match[str]) -> str:
        heads = [re.sub(r"<[^>]+>", "", head) for head in re.findall(r"<th[^>]*>(.*?)</th>", table[0], re.DOTALL)]

        def row(match: re.Match[str]) -> str:
            names = iter(head.replace('"', "&quot;") for head in heads)
            return re.sub(r"<td\b", lambda _: f'<td data-label="{next(names, "")}"', match[0])

        return re.sub(r"<tr>.*?</tr>", row, table[0], flags=re.DOTALL)

    return re.sub(r"<table>.*?</table>", labelled, html, flags=re.DOTALL)


def with_full_size(html: str) -> str:
    """Link each picture that is a paragraph of its own to its file, because the page shows it narrower."""
    return re.sub(r'<p>(<img [^>]*src="([^"]+)"[^>]*>)</p>', r'<p><a href="\2">\1</a></p>', html)


def with_whole_words(html: str) -> str:
    """Keep words of code such as ``--no-start`` in one line, which a browser would break at the hyphens."""

    def code(match: re.Match[str]) -> str:
        if match[1] is None:  # a block, which is never wrapped
            return match[0]
        return "<code>" + _HYPHENATED.sub(r'<span class="word">\g<0></span>', match[1]) + "</code>"

    return re.sub(r"<pre\b.*?</pre>|<code>([^<]*)</code>", code, html, flags=re.DOTALL)


def first_page() -> str:
    """README.md as a page of docs/."""
    readme = (ROOT / "README.md").read_text("utf-8")
    return re.sub(r"\]\((?!docs/|[a-z]+:|#)([^)\s]+)\)", r"](../\1)", readme).replace("](docs/", "](")


def on_files(files: Any, config: Any) -> Any:
    """Add the README as the first page, and the tutorial, which is a notebook in the repository."""
    from mkdocs.structure.files import File

    notebook = files.get_file_from_path("tutorial.ipynb")
    if notebook is not None:
        files.remove(notebook)
    files.append(File.generated(config, "tutorial.md", content=as_markdown()))
    files.append(File.generated(config, "index.md", content=first_page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill what is made from the code, and change the links."""
    if HELP_OF_COMMANDS in markdown:
        markdown = markdown.replace(HELP_OF_COMMANDS, help_of_commands())
    if DOCSTRINGS in markdown:
        markdown = markdown.replace(DOCSTRINGS, docstrings(markdown))
    return site_links(ONLY_IN_THE_SITE.sub(r"\1", markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Clean what docstrings and tables contribute, and link pictures."""
    return with_whole_words(with_full_size(with_labels(without_escapes(without_roles(html)))))
