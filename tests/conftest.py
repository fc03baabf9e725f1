"""Every test run has its own kernel and LTO-IR caches, unless the environment names some."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes.sitecustomize import KNOWN_CPU_HEADERS, install

if TYPE_CHECKING:
    from benchmarks.stand_in import StandIn
    from tests.bench import Bench

LIBRARY_BYTES = 1 << 20  # files from this size on are hashed once
_scratch = tempfile.TemporaryDirectory(prefix="warp_tiles_tests_")
os.environ.setdefault("WARP_CACHE_PATH", str(Path(_scratch.name) / "warp"))
os.environ.setdefault("WARP_TILES_CACHE_DIR", str(Path(_scratch.name) / "lto"))

_processes = str(Path(__file__).with_name("processes"))
if _processes not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # for the processes that tests start
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_processes, os.environ.get("PYTHONPATH", "")]))
install()  # in this process too


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let processes share Warp's precompiled headers for the CPU, except those of tests about such headers."""
    if item.path.name == "test_headers.py":
        os.environ.pop(KNOWN_CPU_HEADERS, None)
    else:
        os.environ[KNOWN_CPU_HEADERS] = str(Path(_scratch.name) / "cpu_headers")


# The files that take longest, in the order in which they start, so that no worker of pytest-xdist is left with one of
# them when the others are done. All others follow in their own order.
LONGEST_FIRST = (
    "tests/test_examples.py",
    "tests/aot/test_cmake_build.py",
    "tests/emulator/test_templates.py",
    "tests/emulator/test_stages.py",
    "tests/integration/test_build_providers.py",
    "tests/tuning/test_example.py",
    "tests/integration/test_device_code.py",
    "tests/integration/test_loop_builds.py",
    "tests/integration/test_cli_plan_scripts.py",
    "tests/integration/test_warp_versions.py",
    "tests/integration/test_cli_run.py",
    "tests/remote/test_crowd.py",
    "tests/tuning/test_kernel_processes.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    root = Path(__file__).resolve().parent.parent
    places = {root / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


# cmake and ninja from the test extra are beside the interpreter, also if its environment is not activated
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


@pytest.fixture(scope="session", autouse=True)
def _hash_each_library_once() -> Iterator[None]:
    """Hash the compiler and the linker once in this process, not once for each of the caches that tests begin with."""
    from warp_tiles.cache import _memo

    hash_file, digests = _memo._hash_file, {}

    def hash_once(path: str | os.PathLike[str]) -> str:
        status = os.stat(path)
        if status.st_size < LIBRARY_BYTES:
            return hash_file(path)
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if state not in digests:
            digests[state] = hash_file(path)
        return digests[state]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_memo, "_hash_file", hash_once)
        yield


@pytest.fixture
def enabled() -> Iterator[None]:
    """warp_tiles hooked into Warp for one test."""
    import warp_tiles

    with warp_tiles.enabled():
        yield


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """An engine with every provider and a fake toolchain and compiler."""
    from tests.bench import Bench
    from warp_tiles import settings
    from warp_tiles.build.engine import Engine
    from warp_tiles.tuning.snapshots import TunedSnapshots

    with settings.override(cache_dir=tmp_path / "cache", provider="auto", linker="auto", progress="off"):
        engine = Engine(warp_toolkit=(13, 4), tuned=TunedSnapshots())
        yield Bench(engine, monkeypatch)
        engine.close()


@pytest.fixture
def clean_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No setting from the environment, from code or from another test."""
    from warp_tiles.settings import layers

    for variable in layers.ENVIRONMENT.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(layers, "_configured", {})
    monkeypatch.setattr(layers, "_overrides", [])
    monkeypatch.setattr(layers, "_listeners", [])
    monkeypatch.chdir(tmp_path)  # and none from a project file
    yield
    assert layers._overrides == []  # no test leaves a layer behind


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandIn]:
    """A fake device of compute capability 9.0, and an empty kernel cache."""
    from benchmarks.stand_in import stand_in

    with stand_in(tmp_path / "kernels") as device:
        yield device


@pytest.fixture(scope="session")
def gpu() -> str:
    """Name of a CUDA device. Without one, the test is skipped."""
    import warp as wp

    wp.init()
    devices = wp.get_cuda_devices()
    if not devices:
        pytest.skip("no CUDA device")
    return str(devices[0].alias)
