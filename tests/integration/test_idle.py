"""modules="all" without a start record: modules that are compiled while the program waits for another one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import warp as wp

import warp_tiles
from benchmarks.stand_in import StandIn
from tests.integration.helpers import gemm, load
from tests.integration.idle_modules import SEEN, SLOW, found_at_load, module_of, plain, warp_module
from tests.waiting import until
from warp_tiles._warp import idle as modules_ahead
from warp_tiles._warp import installed
from warp_tiles._warp.idle import IdleModules
from warp_tiles._warp.reload import this_thread
from warp_tiles.build import idle
from warp_tiles.build import warp_module as warp_module_build
from warp_tiles.build.context import BuildContext
from warp_tiles.build.idle import IdleBuilds, IdleModule
from warp_tiles.build.progress import BuildProgress
from warp_tiles.errors import CacheError, WorkerError

pytestmark = pytest.mark.usefixtures("idle_machine")


def builds() -> IdleBuilds:
    found = installed().engine.idle
    assert isinstance(found, IdleBuilds)
    return found


def test_a_module_is_compiled_while_the_program_waits_for_another(device: StandIn, only: Callable[..., None]) -> None:
    first, second = plain(1, SLOW), plain(2)
    only(first, second)
    device.load(first.__name__)
    until(lambda: not builds()._running and bool(builds()._unasked))
    assert not warp_module(second).hashers, "the module is as it was"
    assert "1 of them for no launch" in builds().summary()
    folder = Path(wp.config.kernel_cache_dir)
    assert len([path for path in folder.iterdir() if path.is_dir() and path.name.startswith("wp_case")]) == 1
    device.load(second.__name__)
    assert found_at_load() == [False, True]
    assert builds().summary() == "compiled on idle cores: 1"


def test_only_modules_of_files_on_the_call_stack_are_compiled_ahead(device: StandIn, only: Callable[..., None]) -> None:
    first, second, third = plain(1, SLOW), plain(2), plain(3)
    only(first, second, third, running=[third])
    device.load(first.__name__)
    until(lambda: not builds()._running and bool(builds()._unasked))
    device.load(second.__name__)
    device.load(third.__name__)
    assert found_at_load() == [False, False, True]


def test_a_running_function_names_its_file() -> None:
    assert modules_ahead._running(sys._getframe())[0] == __name__


def test_the_bytes_are_those_of_warp(device: StandIn, only: Callable[..., None], tmp_path: Path) -> None:
    first, second = plain(1, SLOW), plain(2)
    only(first, second)
    device.load(first.__name__)
    until(lambda: not builds()._running and bool(builds()._unasked))
    device.load(second.__name__)
    ahead = next(Path(wp.config.kernel_cache_dir).glob(f"wp_{second.__name__}*/*.cubin")).read_bytes()
    warp_tiles.disable()
    wp.compile_aot_module(warp_module(second), arch=device.arch, module_dir=tmp_path / "warp")
    assert next((tmp_path / "warp").glob("*.cubin")).read_bytes() == ahead


def test_a_constant_that_changes_later_counts(device: StandIn, only: Callable[..., None]) -> None:
    first, second = plain(1, SLOW), plain(2)
    only(first, second)
    device.load(first.__name__)
    until(lambda: not builds()._running and bool(builds()._unasked))
    second.N = 5  # type: ignore[attr-defined]
    device.load(second.__name__)
    assert found_at_load() == [False, False]


def test_what_no_launch_has_asked_for_is_looked_up_here_alone_and_warned_of_never(
    device: StandIn, only: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = plain(1, SLOW), plain(2), plain(3)
    wp.set_module_options({"lineinfo": True}, module=second)
    only(first, second, third)
    asked, said = list[bool](), list[str]()
    upstream = BuildContext.upstream

    def ask(*given: Any) -> Any:
        asked.append(this_thread.idle)
        return upstream(*given)

    monkeypatch.setattr(BuildContext, "upstream", ask)
    monkeypatch.setattr(warp_module_build, "say_left_to_warp", said.append)
    device.load(first.__name__)
    until(lambda: not builds()._running and bool(builds()._unasked))
    assert builds()._compiled == 1, "the third module"
    assert asked
    assert not any(asked)
    assert not said
    device.load(second.__name__)
    assert said == ["the option lineinfo is on"] * len(said) != []


LEFT = {
    "broken": lambda: plain(2, "wp.sin(missing(out[i]))"),
    "static": lambda: plain(2, "late(out[i])", SEEN),
    "product": lambda: load(gemm()),
    "warning": lambda: plain(2, "wp.grad(g)(out[i])", "@wp.func\ndef g(x: float): return x * x\n", backward=True),
}


@pytest.mark.parametrize("left", LEFT)
def test_some_modules_are_left_to_their_launch(
    left: str, device: StandIn, only: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    first, second, third = plain(1, SLOW), LEFT[left](), plain(3)
    only(first, second, third)
    device.load(first.__name__)
    until(lambda: not builds()._running and bool(builds()._unasked))
    assert warp_module(second) in builds()._generate.__self__._tried  # type: ignore[attr-defined]
    assert builds()._compiled == 1, "the third module"
    assert not warp_module(second).hashers
    assert not getattr(second, "seen", [])
    assert not warp_module(second).failed_builds
    captured = capfd.readouterr()
    assert "arning" not in captured.out + captured.err


def test_a_function_of_another_module_with_a_deferred_static_is_not_evaluated(
    device: StandIn, only: Callable[..., None]
) -> None:
    other = load(SEEN)
    second = plain(2, "late(out[i])", "late = wp.abs")
    second.late = other.late  # type: ignore[attr-defined]
    first, third = plain(1, SLOW), plain(3)
    only(first, second, third)
    assert not warp_module(second).has_unresolved_static_expressions
    device.load(first.__name__)
    until(lambda: not builds()._running and bool(builds()._unasked))
    assert builds()._compiled == 1
    assert not other.seen


@pytest.mark.parametrize("case", ["one job", "a start record", "tiles", "two cores"])
def test_nothing_is_compiled_ahead(
    case: str, stand_in: StandIn, only: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warp_tiles.disable()
    first, second = plain(1, SLOW), plain(2)
    only(first, second)
    start = tmp_path / "start.json"
    if case == "a start record":
        start.write_text("{}")
    if case == "two cores":
        monkeypatch.setattr(idle, "idle_cores", lambda: 2.0)
    ahead = list[Any]()
    monkeypatch.setattr(idle, "build_ahead", lambda *given, **_: ahead.append(given))
    modules, jobs = "tiles" if case == "tiles" else "all", 1 if case == "one job" else 2
    settings = {"cache_dir": tmp_path / "tiles", "progress": "off", "jobs": jobs, "modules": modules}
    with warp_tiles.override(**settings), warp_tiles.enabled():
        if case == "a start record":
            with pytest.warns(RuntimeWarning, match="start record"):
                installed().begin_start(start)
        stand_in.load(first.__name__)
    assert ahead == []


def test_disabling_meanwhile_leaves_the_launch_to_warp(
    device: StandIn, only: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = plain(1, SLOW), plain(2)
    only(first, second)
    monkeypatch.setattr(idle, "build_ahead", lambda *_, **__: warp_tiles.disable())
    device.load(first.__name__)
    assert not warp_tiles.is_enabled()
    assert len(device.loaded) == 1


def test_launches_teach_the_block_size(
    device: StandIn, only: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = [plain(value) for value in range(4)]
    only(*modules)
    monkeypatch.setattr(modules_ahead, "_home", lambda module: f"{module is warp_module(modules[3])}.{module.name}")
    for module in modules[:2]:
        device.load(module.__name__, 96)
    assert [IdleModules()._threads_of(warp_module(module), {}) for module in modules[2:]] == [
        96,
        64,
    ], "by package"


# ---- decisions


@pytest.fixture(autouse=True)
def _no_build_begins_in_the_next_test() -> Iterator[None]:
    yield
    while Work.made:
        Work.made.pop().builds.close()


class Work:
    """Compiles modules that need no compiler. A test decides when a build ends."""

    made: ClassVar[list[Work]] = []

    def __init__(self, monkeypatch: pytest.MonkeyPatch, modules: list[IdleModule]) -> None:
        self.open: dict[str, Future[None]] = {}
        self.has_slot = True
        engine = SimpleNamespace(progress=BuildProgress())
        self.builds = IdleBuilds(engine, lambda *_: modules.pop(0) if modules else None)  # type: ignore[arg-type]
        monkeypatch.setattr(idle, "build_ahead", self._compile)
        self.made.append(self)

    def _compile(self, _: object, __: object, module: Any, **___: object) -> None:
        self.open[module.name] = Future()
        self.open[module.name].result(30)

    def wait(self, seconds: float, jobs: int = 2) -> None:
        """A launch that waits for so long."""
        work: Future[None] = Future()
        end = time.monotonic() + seconds
        threading.Timer(seconds, work.set_result, (None,)).start()
        pool = SimpleNamespace(jobs=jobs, has_slot=lambda: self.has_slot)
        self.builds.wait(work, 10**6, pool)  # type: ignore[arg-type]
        assert time.monotonic() >= end - 0.01


def test_a_worker_is_left_for_the_next_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, [module_of(number, 1) for number in range(5)])
    work.wait(0.5, jobs=3)
    assert list(work.open) == ["m0", "m1"]
    for done in tuple(work.open.values()):
        done.set_result(None)
    until(lambda: len(work.open) == 4)
    assert len(work.builds._running) <= 2
    work.builds.close()
    for name in ("m2", "m3"):
        work.open[name].set_result(None)
    until(lambda: not work.builds._running)
    assert list(work.open) == ["m0", "m1", "m2", "m3"], "nothing starts after the end"


def test_the_budget_limits_builds_that_no_launch_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, [module_of(0, 10**4), module_of(1, 1)])
    work.wait(0.5)
    assert list(work.open) == ["m1"], "the first would take minutes"
    work.open["m1"].set_result(None)
    builds = work.builds
    until(lambda: not builds._running)
    builds._ready.append(module_of(2, 1))
    builds._needed_s, builds._unasked["m1"] = 1.0, 5.0
    work.wait(0.1)
    assert list(work.open) == ["m1"], "a quarter of 5 s is more than half of 1.1 s"
    builds._unasked["m1"] = 1.6
    work.wait(0.1)
    assert list(work.open) == ["m1", "m2"], "a quarter of 1.6 s is less than half of 1.2 s"
    work.open["m2"].set_result(None)


def test_waits_update_the_estimated_compiler_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, [])
    work.wait(0.2)
    taught = work.builds._expected_s(10**6)
    assert 1.0 < taught < 2.0, "one second for 100 kB was assumed, and 0.2 s for 1 MB were seen"
    done: Future[None] = Future()
    done.set_result(None)
    failed: Future[None] = Future()
    failed.set_exception(WorkerError("it ended"))
    work.builds.wait(done, 10**6, work.builds._pool, begun=True)  # type: ignore[arg-type]
    work.builds.wait(failed, 10**6, work.builds._pool)  # type: ignore[arg-type]
    assert work.builds._expected_s(10**6) == taught, "one began before the wait, and the other failed"


def test_nothing_starts_while_others_have_all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, [module_of(0, 1)])
    work.has_slot = False
    work.wait(0.3)
    assert not work.open
    work.has_slot = True
    work.wait(0.3)
    assert list(work.open) == ["m0"]
    work.open["m0"].set_result(None)


def test_builds_that_fail_count_as_time(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, [module_of(number, 1) for number in range(3)])
    work.wait(0.3)
    time.sleep(1.0)
    work.open["m0"].set_exception(WorkerError("it ended"))
    until(lambda: not work.builds._running)
    work.wait(0.2)
    assert list(work.open) == ["m0"], "more than half of what was needed"
    work.wait(2.5)
    assert list(work.open) == ["m0", "m1"]
    work.open["m1"].set_result(None)


def test_a_cache_that_keeps_nothing_ends_the_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, [module_of(number, 1) for number in range(9)])
    work.wait(0.3)
    work.open["m0"].set_exception(CacheError("it cannot be kept"))
    until(lambda: not work.builds._running)
    work.builds._failed_s = 0.0
    work.wait(0.3)
    assert list(work.open) == ["m0"]
    assert not work.builds._ready


def test_a_launch_waits_for_the_build_that_runs_and_takes_back_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = module_of(0, 1), module_of(1, 1)
    work = Work(monkeypatch, [first, second])
    work.wait(0.3)
    assert list(work.open) == ["m0"]
    work.builds.needed(second.key, 1000)
    assert not work.builds._ready
    threading.Timer(0.3, work.open["m0"].set_result, (None,)).start()
    began = time.monotonic()
    work.builds.needed(first.key, 1000)
    assert time.monotonic() - began > 0.25
    assert not work.builds._running
