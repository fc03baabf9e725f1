"""Long series of cases: a run has the first ones, and a longer run has all, with marks ``slow`` or ``nightly``."""

from collections.abc import Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], count: int, mark: str = "nightly") -> list[Any]:
    """Parameters of a test, of which all but the first ``count`` have a mark."""
    return [
        value
        if number < count
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=getattr(pytest.mark, mark))
        for number, value in enumerate(values)
    ]
