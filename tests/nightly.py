"""Long series of cases: each run has the first ones, and a nightly run (``nox -s nightly``) has all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], count: int) -> list[Any]:
    """Parameters of a test, of which only the first ``count`` are not marked ``nightly``."""
    return [
        value
        if number < count
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.nightly)
        for number, value in enumerate(values)
    ]
