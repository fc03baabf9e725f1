"""Fixtures of the cache's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from warp_tiles.cache import Cache, _report


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the process has logged, so that each test sees its own warnings."""
    monkeypatch.setattr(_report, "_said", set())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(root: Path) -> Cache:
    return Cache(root)
