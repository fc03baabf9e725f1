"""Fixtures of the integration tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import warp as wp

import warp_tiles
from benchmarks.stand_in import StandIn
from tests.integration.ahead_modules import warp_module
from tests.integration.commands import MAIN, WITHOUT_GUARD, command, json_of
from warp_tiles._warp.internals import find
from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import ToolchainError
from warp_tiles.providers.base import Recipe
from warp_tiles.providers.own import SolverProvider


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with scripts. The scripts write their results there too."""
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "plain.py").write_text(WITHOUT_GUARD)
    return tmp_path


@pytest.fixture(scope="session")
def filled_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache of three functions, and with their build outputs. Tests copy it before they change it."""
    top = tmp_path_factory.mktemp("filled")
    (top / "main.py").write_text(MAIN.replace("(16, 16)", "(8, 8)"))
    done = command("compile", "-o", top / "out", top / "main.py", top, cache=top / "lto")
    (module,) = json_of(done)["modules"]
    assert (module["lto_builds"], module["lto_hits"]) == (3, 0)
    return top


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Path]:
    """An empty LTO-IR cache for one test."""
    folder = tmp_path / "lto"
    with warp_tiles.override(cache_dir=folder, jobs=2):
        yield folder


@pytest.fixture
def device(stand_in: StandIn, tmp_path: Path) -> Iterator[StandIn]:
    """A fake GPU, whose modules all pass through an empty cache."""
    warp_tiles.disable()
    settings = {"cache_dir": tmp_path / "tiles", "progress": "off", "jobs": 2, "modules": "all"}
    with warp_tiles.override(**settings), warp_tiles.enabled():
        yield stand_in


@pytest.fixture
def libmathdx_solvers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The solver functions that Warp's libmathdx is asked for; nothing is built."""
    requests: list[str] = []

    def build(m: int, n: int, columns: int, solver: str, *args: Any, **kwargs: Any) -> tuple[str, bytes]:
        requests.append(solver)
        return f"{solver}_{len(requests)}", b""

    monkeypatch.setattr(find("build"), "build_lto_solver", build)
    return requests


@pytest.fixture
def no_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without NVRTC."""

    def missing(store: ToolchainFacts) -> None:
        raise ToolchainError("NVRTC was not found", remedy="install it")

    monkeypatch.setattr(ToolchainFacts, "toolchain", missing)


@pytest.fixture
def refuse_solver(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the compiler refuse the source of a solver function."""
    text = SolverProvider.text

    def refuse(function: str) -> None:
        def broken(provider: SolverProvider, recipe: Recipe) -> str:
            return "#error refused\n" * (recipe.problem.to_json()["solver"] == function) + text(provider, recipe)

        monkeypatch.setattr(SolverProvider, "text", broken)

    return refuse


@pytest.fixture
def warp_warnings() -> Iterator[list[str]]:
    """Warnings of Warp's own logger."""
    messages: list[str] = []

    def warning(message: str, category: object = None, stacklevel: int = 1) -> None:
        messages.append(message)

    silent = dict.fromkeys(("debug", "info", "error"), lambda message: None)
    wp.set_logger(SimpleNamespace(warning=warning, **silent))
    yield messages
    wp.set_logger(None)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the modules that exist."""

    def exist(*modules: ModuleType) -> None:
        monkeypatch.setattr("warp_tiles._warp.reload.users_own_modules", lambda: [*map(warp_module, modules)])

    return exist
