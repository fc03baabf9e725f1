"""Modules that run on the fast path during a slow build, loaded for a fake GPU."""

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
from tests.integration.test_hash import CHOLESKY, warp_hash
from tests.integration.test_policy import engine, providers
from warp_tiles import settings
from warp_tiles._warp.installed import installed
from warp_tiles.errors import BuildError
from warp_tiles.providers import CublasdxProvider

ODD = 48  # threads per block, which mma cannot serve


class Gate:
    """Blocks builds of cuBLASDx functions until a test opens it. Then they succeed or fail."""

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
def background_device(stand_in: StandIn, tmp_path: Path) -> Iterator[StandIn]:
    """warp_tiles with an empty cache and the setting background."""
    warp_tiles.disable()
    with warp_tiles.override(cache_dir=tmp_path / "lto", progress="off", background=True), warp_tiles.enabled():
        yield stand_in


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.01)


def ready() -> bool:
    return bool(installed().reloads._ready)


def ended() -> bool:
    return not any(thread.name.startswith("warp_tiles_background") for thread in threading.enumerate())


def records() -> list[dict[str, Any]]:
    return [module for module in warp_tiles.report()["modules"] if module["builds"]]


def test_a_module_runs_on_the_fast_path_until_the_build_is_ready(background_device: StandIn, gate: Gate) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    full = warp_hash(module)
    first = background_device.load(module.__name__)
    assert first.module_hash != full
    assert background_device.load(module.__name__) is first
    (fast,) = records()
    assert (fast["policy"], providers(fast)) == ("fast", ["scalar"])
    with warp_tiles.override(policy="fast", background=False):
        assert warp_hash(module) == first.module_hash, "the fast path is the policy fast"
    gate.open.set()
    wait_until(ready)
    second = background_device.load(module.__name__)
    assert second.module_hash == full
    assert background_device.load(module.__name__) is second
    _, slow = records()
    assert (slow["policy"], providers(slow), slow["linker"]) == ("auto", ["cublasdx"], "warp_tiles")
    assert gate.builds == 1
    assert len(background_device.loaded) == 2


def test_the_swap_does_not_wait_for_a_compiler(background_device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    background_device.load(module.__name__)
    wait_until(ready)
    monkeypatch.setattr(engine().resources, "pool", lambda *_: pytest.fail("the swap needs no compiler"))
    background_device.load(module.__name__)
    assert providers(records()[-1]) == ["cublasdx"]


def test_the_prepared_link_equals_a_foreground_link(
    background_device: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    background_device.load(module.__name__)
    wait_until(ready)
    background_device.load(module.__name__)
    cubin, _ = compile_module(module, tmp_path / "out")
    assert cubin.read_bytes() == Path(background_device.loaded[-1]).read_bytes()


def test_mma_is_the_fast_path_of_a_named_cublasdx(background_device: StandIn, gate: Gate) -> None:
    module = load(gemm(), enable_backward=False, warp_tiles_provider="cublasdx")
    background_device.load(module.__name__)
    assert providers(records()[-1]) == ["mma"]
    gate.open.set()
    wait_until(ready)
    background_device.load(module.__name__)
    assert providers(records()[-1]) == ["cublasdx"]


@pytest.mark.parametrize(
    ("options", "fast"), [({"warp_tiles_provider": "cublasdx"}, ["mma"] * 2), ({"block_dim": ODD}, [])]
)
def test_a_solver_of_libmathdx_is_not_linked_ahead(
    background_device: StandIn, gate: Gate, libmathdx_solvers: list[str], options: dict[str, Any], fast: list[str]
) -> None:
    module = load(CHOLESKY, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        background_device.load(module.__name__)
        assert [providers(record) for record in records()] == [fast] * bool(fast)
        assert libmathdx_solvers == ["potrf", "trsm"], "Warp builds them before it knows the product in its adjoint"
        gate.open.set()
        wait_until(ready)
    assert gate.builds == 1, "the product in the adjoint"
    assert engine().linked_ahead == {}, "only Warp has the LTO-IR of its solvers"


def test_modules_without_a_slow_build_skip_the_fast_path(background_device: StandIn, gate: Gate) -> None:
    module = load(gemm(), enable_backward=False)
    full = warp_hash(module)
    assert background_device.load(module.__name__).module_hash == full
    gate.open.set()
    odd = load(gemm(), block_dim=ODD, enable_backward=False)
    with warp_tiles.override(background=False):
        background_device.load(odd.__name__)
    again = load(gemm(), block_dim=ODD, enable_backward=False)  # its function is in the cache
    full = warp_hash(again)
    assert background_device.load(again.__name__).module_hash == full


def test_a_build_ahead_of_time_waits(background_device: StandIn, gate: Gate, tmp_path: Path) -> None:
    gate.open.set()
    _, record = compile_module(load(gemm(), block_dim=ODD, enable_backward=False), tmp_path / "out")
    assert providers(record) == ["cublasdx"]


def test_planning_starts_nothing(background_device: StandIn, gate: Gate) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    assert warp_tiles.plan(module, arch=90).needed[0].provider == "cublasdx"
    assert gate.builds == 0


def test_a_module_option_turns_it_on(stand_in: StandIn, gate: Gate, tmp_path: Path) -> None:
    warp_tiles.disable()
    with warp_tiles.override(cache_dir=tmp_path / "lto", progress="off"), warp_tiles.enabled():
        stand_in.load(load(gemm(), block_dim=ODD, enable_backward=False, warp_tiles_background=True).__name__)
        assert providers(records()[-1]) == ["scalar"]
        gate.open.set()
        wait_until(ended)


@pytest.mark.parametrize("provider", ["auto", "cublasdx"])
def test_a_failure_is_warned_about_once_and_the_fast_path_stays(
    provider: str, background_device: StandIn, gate: Gate
) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    engine()._libmathdx = None
    gate.failure = BuildError("no such function", log="error: none")
    gate.open.set()
    with warp_tiles.override(provider=provider), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = background_device.load(module.__name__)
        wait_until(ended)
        for _ in range(3):
            assert background_device.load(module.__name__) is first
    messages = [str(item.message) for item in caught if "no such function" in str(item.message)]
    messages += [
        str(item.message) for item in caught if "error: none" in str(item.message) and item.message not in messages
    ]
    assert len([item for item in caught if issubclass(item.category, RuntimeWarning)]) == len(set(messages)) > 0
    assert ("stays on the fast path" in messages[-1]) == (provider == "cublasdx")
    attempts = gate.builds
    wp.get_module(module.__name__).mark_modified()
    with warp_tiles.override(provider=provider):
        assert background_device.load(module.__name__) is first
    assert gate.builds == attempts


def test_turning_it_off_waits_for_the_build(background_device: StandIn, gate: Gate) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    full = warp_hash(module)
    background_device.load(module.__name__)
    gate.open.set()
    with warp_tiles.override(background=False):
        assert background_device.load(module.__name__).module_hash == full
    wait_until(ended)


def test_no_swap_while_a_graph_is_captured(background_device: StandIn) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    first = background_device.load(module.__name__)
    wait_until(ready)
    background_device.is_capturing = True
    assert background_device.load(module.__name__) is first
    background_device.is_capturing = False
    assert background_device.load(module.__name__) is not first


def test_no_swap_while_another_thread_loads_the_module(
    background_device: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    first = background_device.load(module.__name__)
    wait_until(ready)
    inside, leave = threading.Event(), threading.Event()
    warp_module = wp.get_module(module.__name__)
    original = type(warp_module)._compile

    def slow(*args: Any, **kwargs: Any) -> Any:
        inside.set()
        assert leave.wait(30)
        return original(*args, **kwargs)

    monkeypatch.setattr(type(warp_module), "_compile", slow)
    reloads = installed().reloads  # type: ignore[union-attr]
    prepared = dict(reloads._ready)
    reloads._ready.clear()  # the other thread's load begins before the build is ready
    results: list[Any] = []
    other = threading.Thread(target=lambda: results.append(background_device.load(module.__name__, 96)))
    other.start()
    assert inside.wait(30)
    reloads._ready.update(prepared)
    assert background_device.load(module.__name__) is first, "hashes must not change while another thread reads them"
    leave.set()
    other.join(60)
    assert len(results) == 1
    assert background_device.load(module.__name__) is not first


def test_many_launching_threads_all_get_the_build(background_device: StandIn) -> None:
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    full = warp_hash(module)
    failures: list[BaseException] = []

    def launch() -> None:
        end = time.monotonic() + 90
        try:
            while background_device.load(module.__name__).module_hash != full:
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


def test_max_tunes_in_the_background(background_device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned, go = threading.Event(), threading.Event()
    counts: list[int] = []

    def tune(variants: Any, resolved: settings.Settings) -> None:
        counts.append(len(variants))
        assert go.wait(30)
        tuned.set()

    monkeypatch.setattr(engine(), "tune_missing", tune)
    module = load(gemm(), enable_backward=False)
    with warp_tiles.override(policy="max"):
        first = background_device.load(module.__name__)
        assert not tuned.is_set()
        go.set()
        wait_until(ready)
        assert background_device.load(module.__name__) is not first
    assert counts == [1]


def test_disabling_ends_the_build_silently(
    background_device: StandIn, gate: Gate, recwarn: pytest.WarningsRecorder
) -> None:
    refused = []

    def refuse(variant: object) -> tuple[str, bytes]:
        refused.append(variant)
        raise BuildError("too late for libmathdx")

    engine()._libmathdx = refuse
    module = load(gemm(), block_dim=ODD, enable_backward=False)
    background_device.load(module.__name__)
    warp_tiles.disable()
    gate.failure = BuildError("too late")
    gate.open.set()
    wait_until(ended)
    assert len(refused) == 1
    assert not [item for item in recwarn if issubclass(item.category, RuntimeWarning)]
