"""The tutorial, docs/tutorial.ipynb: as a script for tests, and as a Markdown page for the site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.project import ROOT

TUTORIAL = ROOT / "docs" / "tutorial.ipynb"


def cells(notebook: Path = TUTORIAL) -> list[tuple[str, str, str]]:
    """The kind, the source and the printed output of each cell."""
    data = json.loads(notebook.read_text("utf-8"))
    return [(cell["cell_type"], "".join(cell["source"]), "".join(_printed(cell))) for cell in data["cells"]]


def _printed(cell: dict[str, Any]) -> Iterator[str]:
    for output in cell.get("outputs", []):
        if output.get("name") == "stdout":
            yield from output["text"]


def as_script(notebook: Path = TUTORIAL) -> str:
    """The code of all cells, one after another."""
    return "\n\n".join(source for kind, source, _ in cells(notebook) if kind == "code") + "\n"


def as_markdown(notebook: Path = TUTORIAL) -> str:
    """The cells as a page: texts, code blocks, and what the code printed when the notebook was saved."""
    parts = []
    for kind, source, printed in cells(notebook):
        parts.append(source if kind == "markdown" else f"```python\n{source}\n```")
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
