"""Fixtures of the tests of caches and of stores."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warp_tiles
from tests.store.warp_modules import compiled, enabled, records
from tests.waiting import until
from warp_tiles._warp import installed
from warp_tiles.store import documents, remote
from warp_tiles.store.cache import Cache
from warp_tiles.util import warn
from warp_tiles.util.warn import WarnedTexts


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the record of logged problems, so that each test sees its own warnings."""
    monkeypatch.setattr(documents, "_logged", WarnedTexts())


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


@pytest.fixture
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """warp_tiles is disabled, as on a machine without a GPU."""
    monkeypatch.setattr("warp_tiles._warp.hooks.gpus_here", dict)
    warp_tiles.disable()
    yield
    warp_tiles.disable()


@pytest.fixture
def recorded(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Path]:
    """Returns a function that compiles modules under a start list, by a digest unless the test has ``toolchain``."""
    if "toolchain" not in request.fixturenames:
        request.getfixturevalue("digesting")
    file = tmp_path / "start.json"

    def run(name: str, *modules: Any, wait: bool = False) -> Path:
        cache = tmp_path / name / "cache"
        with enabled(cache, start=file):
            start = installed().program_start
            if wait:
                until(lambda: len(start._compiled) >= len(modules))
            for number, module in enumerate(modules):
                compiled(module, tmp_path / name / str(number))
            run.found = [record["found"] for record in records()]  # type: ignore[attr-defined]
            run.start_keys = [record["start_key"] for record in records()]  # type: ignore[attr-defined]
            run.summary = start.summary()  # type: ignore[attr-defined]
            run.start = warp_tiles.report()["start"]  # type: ignore[attr-defined]
        return file

    run.folder = tmp_path  # type: ignore[attr-defined]
    return run


@pytest.fixture
def disabled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    warp_tiles.disable()
    monkeypatch.setattr(warn, "_once", WarnedTexts())
    yield
    warp_tiles.disable()
