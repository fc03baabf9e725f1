"""Fixtures of the tests of caches and of stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import warp_tiles
from warp_tiles.store import remote, report
from warp_tiles.store.cache import Cache
from warp_tiles.util.warn import WarnedTexts


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the record of logged problems, so that each test sees its own warnings."""
    monkeypatch.setattr(report, "_logged", WarnedTexts())


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Connections to this machine take no proxy, and no key of the user is trusted."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits of the waits for remote stores, in seconds."""
    limits: list[float] = []
    wait = remote.wait_all
    monkeypatch.setattr(remote, "wait_all", lambda work, limit_s: (limits.append(limit_s), wait(work, limit_s))[1])
    return limits


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(root: Path) -> Cache:
    return Cache(root)


@pytest.fixture
def everything(tmp_path: Path) -> Iterator[Path]:
    """warp_tiles with an empty cache, through which every module passes."""
    warp_tiles.disable()
    with warp_tiles.override(cache_dir=tmp_path / "cache", modules="all", jobs=2), warp_tiles.enabled():
        yield tmp_path
