"""Fixtures of the cache's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from warp_tiles.cache import report
from warp_tiles.cache.store import Cache


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the record of logged problems, so that each test sees its own warnings."""
    monkeypatch.setattr(report, "_logged", set())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(root: Path) -> Cache:
    return Cache(root)
