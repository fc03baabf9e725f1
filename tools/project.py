"""Facts of this repository: its root, its pyproject.toml, its version."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
VERSION_FILE = Path("warp_tiles/util/version.py")


def pyproject(root: Path = ROOT) -> dict[str, Any]:
    """The content of pyproject.toml."""
    data: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    return data


def version(root: Path = ROOT) -> str:
    """The version of the package, from the only file that states it."""
    found = re.search(r'^__version__ = "([^"]+)"$', (root / VERSION_FILE).read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f"{VERSION_FILE} has no line __version__ = ...")
    return found.group(1)
