"""Each message that docs/troubleshooting.md quotes is one that the code can issue."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from warp_tiles import errors

ROOT = Path(__file__).resolve().parent.parent
QUOTED = re.findall(
    r"^\| `+ ?(.+?) ?`+ \| .+? \| .+? \|$", (ROOT / "docs" / "troubleshooting.md").read_text("utf-8"), re.M
)
PREFIXES = ("RuntimeWarning", "log")  # others are names of errors


@cache
def templates() -> tuple[tuple[re.Pattern[str], int], ...]:
    """Each text of the package as a pattern, in which values are open, with the number of its fixed letters."""
    found = []
    for path in sorted((ROOT / "warp_tiles").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [str(part.value) if isinstance(part, ast.Constant) else None for part in parts]
            fixed = "".join(filter(None, texts)).replace("\n", " ")
            pattern = "".join(".*?" if text is None else re.escape(text.replace("\n", " ")) for text in texts)
            pattern = re.sub(r"%(?:\\\.\d)?[sdgf]", ".*?", pattern)  # the values of a log line
            if sum(map(str.isalpha, fixed)) >= 12:
                found.append((re.compile(pattern, re.DOTALL), len(fixed)))
    return tuple(found)


@pytest.mark.parametrize("quote", QUOTED)
def test_the_code_has_the_message_and_its_kind(quote: str) -> None:
    kind, _, text = quote.partition(": ")
    text = text.removeprefix("warp_tiles: ")
    least = min(24, len(re.sub(r"<[\w .]+>", "", text)) / 3)  # several texts of the code may be one message
    assert any(fixed >= least and pattern.search(text) for pattern, fixed in templates())
    assert kind in PREFIXES or issubclass(getattr(errors, kind), errors.WarpTilesError)


def test_the_page_has_every_error_class() -> None:
    classes = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value is not errors.WarpTilesError
    }
    assert {name for name in classes if issubclass(getattr(errors, name), errors.WarpTilesError)} <= {
        quote.partition(":")[0] for quote in QUOTED
    }
