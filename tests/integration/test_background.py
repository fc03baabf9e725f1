"""Modules that run on the fast path while a slow build goes on; loaded for a GPU that is not there."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from benchmarks.stand_in import StandIn
from tests.integration.helpers import compile_module, gemm, load
from tests.integration.test_hash import warp_hash
from tests.integration.test_policy import engine, providers
from warp_tiles import settings
from warp_tiles._warp.installed import installed
from warp_tiles.errors import BuildError
from warp_tiles.providers import CublasdxProvider

ODD = 48  # threads, which mma does not serve


class Gate:
    """Holds builds of cuBLASDx functions until a test opens it; then they succeed or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.failure: Exception | None = None
        self.builds = 0
        original = CublasdxProvider.build

        def build(provider: Any, recipe: Any, context: Any) -> Any:
            self.builds += 1
            assert self.open.wait(60)
            if self.failure is not None:
                raise self.failure
            return original(provider, recipe, context)

        monkeypatch.setattr(CublasdxProvider, "build", build)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found = Gate(monkeypatch)
    yield found
    found.open.set()


@pytest.fixture
def hurried(stand_in: StandIn, tmp_path: Path) -> Iterator[StandIn]:
    """warp_tiles with an empty cache and the setting background."""
    warp_tiles.disable()
    with warp_tiles.override(cache_dir=tmp_path / "lto", progress="off", background=True), warp_tiles.enabled():
        yield stand_in


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def ready() -> bool:
    return bool(installed().reloads._ready)


def ended() -> bool:
    return not any(thread.name.startswith("warp_tiles_background") for thread in threading.enumerate())


def records() -> list[dict[str, Any]]:
    return [module for module in warp_tiles.report()["modules"] if module["builds"]]


def test_a_module_runs_on_the_fast_path_and_then_on_what_was_built(hurried: StandIn, gate: Gate) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    full = warp_hash(module)
    first = hurried.load(module.__name__)
    assert first.module_hash != full
    assert hurried.load(module.__name__) is first
    (fast,) = records()
    assert (fast["policy"], providers(fast)) == ("fast", ["scalar"])
    with warp_tiles.override(policy="fast", background=False):
        assert warp_hash(module) == first.module_hash, "the fast path is the policy fast"
    gate.open.set()
    until(ready)
    second = hurried.load(module.__name__)
    assert second.module_hash == full
    assert hurried.load(module.__name__) is second
    _, slow = records()
    assert (slow["policy"], providers(slow), slow["linker"]) == ("auto", ["cublasdx"], "warp_tiles")
    assert gate.builds == 1
    assert len(hurried.loaded) == 2


def test_the_swap_waits_for_no_compiler(hurried: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    hurried.load(module.__name__)
    until(ready)
    monkeypatch.setattr(engine().resources, "pool", lambda *_: pytest.fail("everything was prepared"))
    hurried.load(module.__name__)
    assert providers(records()[-1]) == ["cublasdx"]


def test_the_prepared_link_is_the_one_that_would_be_made(
    hurried: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    hurried.load(module.__name__)
    until(ready)
    hurried.load(module.__name__)
    cubin, _ = compile_module(module, tmp_path / "out")
    assert cubin.read_bytes() == Path(hurried.loaded[-1]).read_bytes()


def test_mma_is_the_fast_path_of_a_named_cublasdx(hurried: StandIn, gate: Gate) -> None:
    module = load(gemm(), enable_backward=False, warp_tiles_provider="cublasdx")
    hurried.load(module.__name__)
    assert providers(records()[-1]) == ["mma"]
    gate.open.set()
    until(ready)
    hurried.load(module.__name__)
    assert providers(records()[-1]) == ["cublasdx"]


def test_nothing_is_hurried_that_need_not_wait(hurried: StandIn, gate: Gate) -> None:
    module = load(gemm(), enable_backward=False)
    full = warp_hash(module)
    assert hurried.load(module.__name__).module_hash == full
    gate.open.set()
    odd = load(gemm(), block_dim=ODD, enable_backward=False)
    with warp_tiles.override(background=False):
        hurried.load(odd.__name__)
    again = load(gemm(), block_dim=ODD, enable_backward=False)  # its function is in the cache
    full = warp_hash(again)
    assert hurried.load(again.__name__).module_hash == full


def test_a_build_ahead_of_time_waits(hurried: StandIn, gate: Gate, tmp_path: Path) -> None:
    gate.open.set()
    _, record = compile_module(load(gemm(), block_dim=ODD, enable_backward=False), tmp_path / "out")
    assert providers(record) == ["cublasdx"]


def test_planning_starts_nothing(hurried: StandIn, gate: Gate) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    assert warp_tiles.plan(module, arch=90).needed[0].provider == "cublasdx"
    assert gate.builds == 0


def test_a_module_option_turns_it_on(stand_in: StandIn, gate: Gate, tmp_path: Path) -> None:
    warp_tiles.disable()
    with warp_tiles.override(cache_dir=tmp_path / "lto", progress="off"), warp_tiles.enabled():
        stand_in.load(load(gemm(), block_dim=ODD, enable_backward=False, warp_tiles_background=True).__name__)
        assert providers(records()[-1]) == ["scalar"]
        gate.open.set()
        until(ended)


@pytest.mark.parametrize("provider", ["auto", "cublasdx"])
def test_a_failure_is_told_once_and_the_fast_path_stays(provider: str, hurried: StandIn, gate: Gate) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    engine()._libmathdx = None
    gate.failure = BuildError("no such function", log="error: none")
    gate.open.set()
    with warp_tiles.override(provider=provider), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        first = hurried.load(module.__name__)
        until(ended)
        for _ in range(3):
            assert hurried.load(module.__name__) is first
    named = [str(item.message) for item in told if "no such function" in str(item.message)]
    named += [str(item.message) for item in told if "error: none" in str(item.message) and item.message not in named]
    assert len([item for item in told if issubclass(item.category, RuntimeWarning)]) == len(set(named)) > 0
    assert ("stays on the fast path" in named[-1]) == (provider == "cublasdx")
    attempts = gate.builds
    wp.get_module(module.__name__).mark_modified()
    with warp_tiles.override(provider=provider):
        assert hurried.load(module.__name__) is first
    assert gate.builds == attempts


def test_turning_it_off_waits_for_the_build(hurried: StandIn, gate: Gate) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    full = warp_hash(module)
    hurried.load(module.__name__)
    gate.open.set()
    with warp_tiles.override(background=False):
        assert hurried.load(module.__name__).module_hash == full
    until(ended)


def test_no_swap_while_a_graph_is_captured(hurried: StandIn) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    first = hurried.load(module.__name__)
    until(ready)
    hurried.is_capturing = True
    assert hurried.load(module.__name__) is first
    hurried.is_capturing = False
    assert hurried.load(module.__name__) is not first


def test_no_swap_while_another_thread_loads_the_module(hurried: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    first = hurried.load(module.__name__)
    until(ready)
    inside, leave = threading.Event(), threading.Event()
    warp_module = wp.get_module(module.__name__)
    original = type(warp_module)._compile

    def slow(*args: Any, **kwargs: Any) -> Any:
        inside.set()
        assert leave.wait(30)
        return original(*args, **kwargs)

    monkeypatch.setattr(type(warp_module), "_compile", slow)
    reloads = installed().reloads  # type: ignore[union-attr]
    held = dict(reloads._ready)
    reloads._ready.clear()  # the other thread's load begins before the build is ready
    results: list[Any] = []
    other = threading.Thread(target=lambda: results.append(hurried.load(module.__name__, 96)))
    other.start()
    assert inside.wait(30)
    reloads._ready.update(held)
    assert hurried.load(module.__name__) is first, "the module's hashes stay while the other thread reads them"
    leave.set()
    other.join(60)
    assert len(results) == 1
    assert hurried.load(module.__name__) is not first


def test_many_threads_that_launch_all_get_there(hurried: StandIn) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    full = warp_hash(module)
    failures: list[BaseException] = []

    def launch() -> None:
        end = time.monotonic() + 90
        try:
            while hurried.load(module.__name__).module_hash != full:
                assert time.monotonic() < end
                time.sleep(0.001)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=launch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []


def test_max_tunes_in_the_background(hurried: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned, go = threading.Event(), threading.Event()
    asked: list[int] = []

    def tune(variants: Any, resolved: settings.Settings) -> None:
        asked.append(len(variants))
        assert go.wait(30)
        tuned.set()

    monkeypatch.setattr(engine(), "tune_missing", tune)
    module = load(gemm(), enable_backward=False)
    with warp_tiles.override(policy="max"):
        first = hurried.load(module.__name__)
        assert not tuned.is_set()
        go.set()
        until(ready)
        assert hurried.load(module.__name__) is not first
    assert asked == [1]


def test_disabling_ends_it_without_a_word(hurried: StandIn, gate: Gate, recwarn: pytest.WarningsRecorder) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    hurried.load(module.__name__)
    warp_tiles.disable()
    gate.failure = BuildError("too late")
    gate.open.set()
    until(ended)
    assert not [item for item in recwarn if issubclass(item.category, RuntimeWarning)]
