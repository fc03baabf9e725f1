"""The environment of the fresh processes that benchmarks measure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.machine import ROOT


def environment(inherited: Mapping[str, str] = os.environ, /, **changes: str | Path) -> dict[str, str]:
    """The environment of a process that imports this checkout, as an installed package is imported: with bytecode.

    Args:
        inherited: The variables to start from.
        **changes: Other values of variables.
    """
    given = {**inherited, **changes}
    given.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each process would compile all that it imports
    given["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), str(given.get("PYTHONPATH", "")))))
    return {name: str(value) for name, value in given.items()}
