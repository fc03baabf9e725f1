"""Writes the table of docs/settings.md from ``warp_tiles/settings/table.py``: ``python -m tools.settings_table``."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from warp_tiles import settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
_TABLE = re.compile(r"^\| setting \|.*?\n(?=\n)", re.MULTILINE | re.DOTALL)


def meanings() -> dict[str, str]:
    """The text below each field of the table."""
    (cls,) = ast.parse(inspect.getsource(settings.Settings)).body
    assert isinstance(cls, ast.ClassDef)
    found = {}
    for field, text in zip(cls.body, cls.body[1:]):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return found


def _default(name: str) -> str:
    value = getattr(settings.Settings, name)
    if isinstance(value, bool):
        return f"`{value:d}`"
    if value in (None, "", ()):
        return settings.SETTINGS[name].unset
    if name == "cache_max_bytes":
        return f"`{value // 1024**3}GiB`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def table() -> str:
    """The table as Markdown."""
    texts = meanings()
    rows = [
        f"| `{name}` | `{settings.ENVIRONMENT[name]}` | {_default(name)} | {texts[name]} |\n"
        for name in settings.SETTINGS
    ]
    return "".join(["| setting | environment | default | meaning |\n|---|---|---|---|\n", *rows])


def page(text: str) -> str:
    """The page with the table of today."""
    return _TABLE.sub(lambda _: table(), text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
