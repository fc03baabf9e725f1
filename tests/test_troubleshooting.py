"""Each message that docs/troubleshooting.md quotes is one that the code can issue."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.bench import variant_of
from warp_tiles import errors
from warp_tiles.build.functions import variant_text
from warp_tiles.errors import BuildError, ToolchainError
from warp_tiles.providers.fallbacks import IN_SOURCE_TITLE, LIBMATHDX_TITLE, SCALAR_TITLE
from warp_tiles.store.documents import Problems

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
PREFIXES = ("RuntimeWarning: warp_tiles: ", "log: ")  # others are names of errors
LEAST_LETTERS = 12  # of the fixed text of a message


def rows() -> list[tuple[str, str, str]]:
    """The tables of the page: message, reason and remedy."""
    return re.findall(r"^\| (`.+?`) \| (.+?) \| (.+?) \|$", PAGE.read_text("utf-8"), re.MULTILINE)


def quoted() -> list[str]:
    """The messages of the page."""
    return [message.strip("`").strip() for message, _, _ in rows()]


def docstrings(tree: ast.AST) -> set[int]:
    """The identities of the texts that stand alone, which are no messages."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def parts(node: ast.AST) -> list[str | None] | None:
    """A text of the code as its fixed parts, with None for each value; None if the node is no text."""
    if isinstance(node, ast.JoinedStr):
        return [str(item.value) if isinstance(item, ast.Constant) else None for item in node.values]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        fixed: list[str | None] = []
        for text in re.split(r"%(?:\.\d)?[sdgf]", node.value):  # the values of a log line
            fixed += [text, None]
        return fixed[:-1]
    return None


@cache
def templates() -> tuple[tuple[re.Pattern[str], int], ...]:
    """Each text of the code as a pattern, with the number of its fixed characters."""
    found = []
    for path in sorted((ROOT / "warp_tiles").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        alone = docstrings(tree)
        for node in ast.walk(tree):
            given = None if id(node) in alone else parts(node)
            if given is not None:
                fixed = "".join(text for text in given if text)
                if sum(map(str.isalpha, fixed)) >= LEAST_LETTERS:
                    pattern = "".join(".*?" if text is None else re.escape(text.replace("\n", " ")) for text in given)
                    found.append((re.compile(pattern, re.DOTALL), len(fixed)))
    return tuple(found)


def composed() -> list[str]:
    """Messages that the code puts together from several texts."""
    problems = Problems()
    problems.add("folder", Path("<folder>"), OSError(None, "<reason>"))
    problems.add("damage", Path("<file>"), "<reason>")
    variant, lacks = variant_of(64, "float16", 128), ToolchainError("<missing part>", "<remedy>")
    missing = [variant_text(variant, lacks, title) for title in (IN_SOURCE_TITLE, LIBMATHDX_TITLE)]
    refused = variant_text(variant, BuildError("<reason>"), SCALAR_TITLE)
    return [*missing, refused, *(str(problem) for problem in problems.all())]


def is_issued(message: str) -> bool:
    """True if a text of the code gives this message, and most of the message is fixed in it."""
    if message in composed():
        return True
    own = len(re.sub(r"<[\w .]+>", "", message))
    return any(fixed >= own / 2 and pattern.fullmatch(message) for pattern, fixed in templates())


def split(quote: str) -> tuple[str, str]:
    """The class of a message, or the prefix of a warning or a log line, and its text."""
    prefix = next((prefix for prefix in PREFIXES if quote.startswith(prefix)), "")
    if prefix:
        return prefix, quote[len(prefix) :]
    name, _, text = quote.partition(": ")
    return name, text


@pytest.mark.parametrize("quote", quoted())
def test_the_message_occurs_in_the_code_and_has_a_known_kind(quote: str) -> None:
    kind, text = split(quote)
    assert is_issued(text)
    assert kind in PREFIXES or issubclass(getattr(errors, kind), errors.WarpTilesError)


def test_every_row_has_a_message_a_reason_and_a_remedy() -> None:
    page = PAGE.read_text("utf-8")
    assert len(rows()) == len(re.findall(r"^\| `", page, re.MULTILINE))
    assert [row for row in rows() if not all(cell.strip() for cell in row)] == []


def every_error() -> Iterator[str]:
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.WarpTilesError) and value is not errors.WarpTilesError:
            yield name


def test_the_page_has_every_error_class() -> None:
    assert set(every_error()) <= {split(quote)[0] for quote in quoted()}


@pytest.mark.parametrize(
    "message",
    [
        "<part> was found neither where Python imports packages from nor below CUDA_HOME",
        "module 'train' has no Warp kernel",
        "anything at all",
        "<reason>; and whoever can write to it chooses the code",
    ],
)
def test_a_message_that_the_code_does_not_have_is_found(message: str) -> None:
    assert not is_issued(message)
