"""Every test run has its own kernel and LTO-IR caches, unless the environment names some."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.processes.sitecustomize import KNOWN_CPU_HEADERS, KNOWN_DIGESTS, install

if TYPE_CHECKING:
    from benchmarks.stand_in import StandIn
    from tests.bench import Bench

_scratch = tempfile.TemporaryDirectory(prefix="warp_tiles_tests_")
# for temporary files of processes that are killed: NVRTC writes precompiled headers of 80 MB for each block size
os.environ["TMPDIR"] = os.environ.setdefault("TESTS_TMPDIR", _scratch.name)
os.environ.setdefault("WARP_CACHE_PATH", str(Path(_scratch.name) / "warp"))
os.environ.setdefault("WARP_TILES_CACHE_DIR", str(Path(_scratch.name) / "lto"))

_processes = str(Path(__file__).with_name("processes"))
if _processes not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # for the processes that tests start
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_processes, os.environ.get("PYTHONPATH", "")]))
install()  # in this process too
os.environ[KNOWN_CPU_HEADERS] = str(Path(_scratch.name) / "cpu_headers")
os.environ[KNOWN_DIGESTS] = tempfile.mkdtemp(prefix="digests_", dir=_scratch.name)

hypothesis.settings.register_profile("tests", deadline=None)  # a loaded machine is no error
hypothesis.settings.load_profile("tests")


@pytest.fixture(scope="session")
def toolchain() -> None:
    """The toolchain of this environment. Without one, the test is skipped."""
    from warp_tiles.compile.find import find_toolchain
    from warp_tiles.errors import ToolchainError

    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(f"no toolchain: {error.message}")


# The files that take longest, in the order in which they start, so that no worker of pytest-xdist is left with one of
# them when the others are done. All others follow in their own order.
LONGEST_FIRST = (
    "tests/test_checks.py",
    "tests/emulator/test_loads.py",
    "tests/emulator/test_tensor_matmul.py",
    "tests/integration/test_cmake_build.py",
    "tests/emulator/test_staged_loops.py",
    "tests/test_examples.py",
    "tests/integration/test_build_providers.py",
    "tests/emulator/test_templates.py",
    "tests/integration/test_cli_plan_scripts.py",
    "tests/test_printed_commands.py",
    "tests/integration/test_device_code.py",
    "tests/integration/test_loop_targets.py",
    "tests/integration/test_cli_plan.py",
    "tests/emulator/test_store_adjoints.py",
    "tests/integration/test_warp_versions.py",
    "tests/integration/test_loop_forms.py",
    "tests/emulator/test_solvers.py",
    "tests/integration/test_solver_builds.py",
    "tests/integration/test_build.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and leave nightly tests out of the quick run."""
    root = Path(__file__).resolve().parent.parent
    places = {root / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")


# cmake and ninja from the test extra are beside the interpreter, also if its environment is not activated
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


HOOKS = Path("warp_tiles", "_warp")


def _state() -> dict[str, object]:
    """What a test could leave behind for the next one of its process."""
    found: dict[str, object] = {"folder": Path.cwd(), "sys.argv": list(sys.argv)}
    found |= {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TEST_"))}
    if "warp_tiles.settings" in sys.modules:
        import warp_tiles
        from warp_tiles import settings as layers

        found["warp_tiles is enabled"] = warp_tiles.is_enabled()
        found["settings"] = (dict(layers._configured), list(layers._overrides))
    if "warp.config" in sys.modules:
        config = vars(sys.modules["warp.config"])
        names = ("mode", "enable_backward", "verify_fp", "cache_kernels", "log_level", "print_launches")
        found |= {f"wp.config.{name}": config.get(name) for name in names}
    if "warp_tiles._warp.hooks" in sys.modules:
        from warp_tiles._warp.internals import find

        places = (
            "build", "codegen", "codegen.Adjoint", "context.Module", "context.ModuleBuilder", "context.ModuleHasher",
        )  # fmt: skip
        members = [(f"{place}.{name}", value) for place in places for name, value in vars(find(place)).items()]
        # a patch that is undone after disable() puts the hook back
        found["hooks"] = {name for name, value in members if _is_hook(value)}
    return found


def _is_hook(value: object) -> bool:
    code = getattr(value, "__code__", None)
    return code is not None and str(HOOKS) in code.co_filename


@pytest.fixture(autouse=True)
def _leaves_no_state() -> Iterator[None]:
    """Fail a test that leaves state behind, and forget the kernels of scripts, which all belong to ``__main__``."""
    before, stack = _state(), resource.getrlimit(resource.RLIMIT_STACK)
    yield
    resource.setrlimit(
        resource.RLIMIT_STACK, stack
    )  # NVRTC raises it, and Linux lays out memory of new processes by it
    after = _state()
    if "warp" in sys.modules:
        from warp_tiles._warp.internals import find

        find("context").user_modules.pop("__main__", None)
    assert {name: value for name, value in after.items() if name in before and value != before[name]} == {}
    assert before.keys() - after.keys() == set(), "environment variables that the test has removed"


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
def digesting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toolchain: None) -> None:
    """Compilers that answer at once with a digest of all that they would read: equal binaries mean equal inputs."""
    from warp_tiles.compile.compiler import Compiled, CompileRequest, LinkRequest
    from warp_tiles.compile.find import dotted
    from warp_tiles.compile.pool import CompilerPool
    from warp_tiles.compile.toolchain import ToolchainFacts

    version = f"NVRTC {dotted(ToolchainFacts(tmp_path / 'facts').toolchain().nvrtc_version)}"

    def submit(pool: CompilerPool, request: Any, prefix: int = 0, **_: object) -> Future[Compiled]:
        done: Future[Compiled] = Future()
        by = version if isinstance(request, CompileRequest | LinkRequest) else "Warp"
        if by == version:  # the keys of linked modules and of functions leave the names of their sources out
            subject = {"subject": ""} if isinstance(request, CompileRequest) else {}
            request = dataclasses.replace(request, name="", **subject)
        done.set_result(Compiled(hashlib.sha256(repr(request).encode()).digest(), 0.01, by))
        return done

    monkeypatch.setattr(CompilerPool, "submit", submit)
    monkeypatch.setattr(CompilerPool, "start_processes", lambda *_: None)


@pytest.fixture
def clean_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No setting from the environment, from code or from another test."""
    from warp_tiles import settings as layers

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
