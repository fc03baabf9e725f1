"""Fixtures of the tuner's tests."""

from pathlib import Path

import pytest

from tests.tuning.fake_stores import MemoryStore
from warp_tiles.tuning import store as store_module
from warp_tiles.tuning.store import RecordStore
from warp_tiles.util import warn
from warp_tiles.util.warn import WarnedTexts


@pytest.fixture(autouse=True)
def no_earlier_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget earlier warnings and unwritten records, so that each test sees only its own."""
    monkeypatch.setattr(warn, "_once", WarnedTexts())
    monkeypatch.setattr(store_module, "_unwritten", {})


@pytest.fixture
def store() -> MemoryStore:
    """An empty store in memory."""
    return MemoryStore()


@pytest.fixture
def records(tmp_path: Path) -> RecordStore:
    """An empty store."""
    return RecordStore(tmp_path / "tuning")
