"""What several of these tests are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import warp as wp

import warp_tiles
from tests.integration.commands import MAIN, WITHOUT_GUARD, command, parsed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with scripts, where the script's own results go too."""
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "plain.py").write_text(WITHOUT_GUARD)
    return tmp_path


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of three variants, and where they were compiled to; tests copy it before they change it."""
    top = tmp_path_factory.mktemp("filled")
    (top / "main.py").write_text(MAIN.replace("(16, 16)", "(8, 8)"))
    done = command("compile", top / "main.py", top, "-o", top / "out", cache=top / "lto")
    (module,) = parsed(done)["modules"]
    assert (module["lto_builds"], module["lto_hits"]) == (3, 0)
    return top


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Path]:
    """An empty LTO-IR cache for one test."""
    folder = tmp_path / "lto"
    with warp_tiles.override(cache_dir=folder, jobs=2):
        yield folder


@pytest.fixture
def warp_says() -> Iterator[list[str]]:
    """Warnings of Warp's own logger."""
    said: list[str] = []

    class Logger:
        def debug(self, message: str) -> None: ...

        def info(self, message: str) -> None: ...

        def error(self, message: str) -> None: ...

        def warning(self, message: str, category: object = None, stacklevel: int = 1) -> None:
            said.append(message)

    wp.set_logger(Logger())
    yield said
    wp.set_logger(None)
