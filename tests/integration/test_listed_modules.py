"""Modules of a start list that are generated while a launch waits for another one, and those that are not."""

import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import warp as wp

import warp_tiles
from benchmarks.stand_in import StandIn
from tests.integration.ahead_modules import SEEN, SLOW, found_at_load, generated, module_of, plain, warp_module
from tests.integration.helpers import gemm, load
from tests.store.test_start_list import MODULE
from tests.waiting import until
from warp_tiles._warp import installed
from warp_tiles._warp.modules import hash_again
from warp_tiles._warp.reload import ListedModules
from warp_tiles.build import ahead
from warp_tiles.build import warp_module as warp_module_build
from warp_tiles.build.ahead import AheadModule, ProgramStart
from warp_tiles.build.context import BuildContext
from warp_tiles.errors import WorkerError
from warp_tiles.settings import current


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules whose start keys were bound ahead of their launches."""
    names: list[str] = []
    compiled = ahead.compiled

    def bind(engine: Any, one: AheadModule) -> bool:
        is_new = compiled(engine, one)
        names.append(one.module.name)
        return is_new

    monkeypatch.setattr(ahead, "compiled", bind)
    return names


@pytest.fixture
def restart(device: StandIn, only: Callable[..., None], tmp_path: Path) -> Callable[..., None]:
    """Loads modules with a start list, and begins the program again with the list and empty caches."""

    def run(
        *modules: ModuleType, others: Sequence[ModuleType] = (), between: Callable[[], None] = lambda: None
    ) -> None:
        only(*modules, *others)
        warp_tiles.disable()
        warp_tiles.enable(start=tmp_path / "start.json")
        for module in modules:
            device.load(module.__name__)
        between()
        warp_tiles.disable()
        for module in modules:
            warp_module(module).execs.clear()
        for folder in (wp.config.kernel_cache_dir, current().cache_dir):
            shutil.rmtree(folder)
        warp_tiles.enable(start=tmp_path / "start.json")

    return run


@pytest.mark.slow
@pytest.mark.parametrize("value", [2, 7])
def test_a_record_has_modules_generated_while_a_launch_waits_as_they_are_now(
    device: StandIn, restart: Callable[..., None], bound: list[str], tmp_path: Path, value: int
) -> None:
    first, second, third = plain(1, SLOW), plain(2), plain(3)
    restart(first, second, others=[third], between=lambda: setattr(second, "N", value))
    with generated() as names:
        device.load(first.__name__)
        assert names == [first.__name__, second.__name__], "the record does not name the third"
        until(lambda: bound)
        device.load(second.__name__)
    assert names == [first.__name__, second.__name__], "its launch generates nothing"
    assert found_at_load() == [True, True]
    ahead = next(Path(wp.config.kernel_cache_dir).glob(f"wp_{second.__name__}*/*.cubin")).read_bytes()
    warp_tiles.disable()
    wp.compile_aot_module(warp_module(second), arch=device.arch, module_dir=tmp_path / "warp")
    assert next((tmp_path / "warp").glob("*.cubin")).read_bytes() == ahead, "the bytes are those of Warp"


@pytest.mark.slow
def test_a_constant_that_changes_later_counts(device: StandIn, restart: Callable[..., None], bound: list[str]) -> None:
    first, second = plain(1, SLOW), plain(2)
    restart(first, second)
    device.load(first.__name__)
    until(lambda: bound)
    second.N = 5  # type: ignore[attr-defined]
    device.load(second.__name__)
    assert found_at_load() == [True, False]


@pytest.mark.slow
def test_disabling_meanwhile_leaves_the_launch_to_warp(
    device: StandIn, restart: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = plain(1, SLOW), plain(2)
    leave = lambda: monkeypatch.setattr(ListedModules, "generate", lambda *_: warp_tiles.disable())  # noqa: E731
    restart(first, second, between=leave)
    loaded = len(device.loaded)
    device.load(first.__name__)
    assert not warp_tiles.is_enabled()
    assert len(device.loaded) == loaded + 1


def started(tmp_path: Path, generate: Callable[..., AheadModule | None] = lambda *_: None) -> ProgramStart:
    return ProgramStart(installed().engine, tmp_path / "start.json", "1.0", lambda _: False, generate)


class Start:
    """A start of which one build was begun, and its threads, which run what they are given at :meth:`run`."""

    def __init__(self, tmp_path: Path) -> None:
        self.start = started(tmp_path)
        self.build: Future[None] = Future()
        self.start._builds[MODULE.identity] = self.build
        self.start._threads = self
        self.submitted: list[Callable[[], None]] = []
        self.called: list[str] = []

    def submit(self, call: Callable[[], None]) -> None:
        self.submitted.append(call)

    def close(self) -> None:
        self.submitted.clear()

    def after_build(self, module: Any = MODULE) -> None:
        self.start.after_build(module, lambda: self.called.append("call"))

    def run(self) -> list[str]:
        for call in self.submitted:
            call()
        return self.called


@pytest.mark.parametrize("state", ["runs", "is done", "is none"])
def test_what_follows_a_build_runs_on_a_thread(state: str, device: StandIn, tmp_path: Path) -> None:
    start = Start(tmp_path)
    if state == "is done":
        start.build.set_result(None)
    start.after_build(replace(MODULE, name="another") if state == "is none" else MODULE)
    if state == "runs":
        assert start.submitted == []
        start.build.set_exception(WorkerError("it ended"))
    assert start.called == [], "the launch does not run it"
    assert start.run() == ["call"]


def test_a_stopped_start_begins_nothing_more(device: StandIn, tmp_path: Path) -> None:
    start = Start(tmp_path)
    start.after_build()
    start.start.stop()
    assert start.build.cancelled()
    start.after_build()
    start.after_build(replace(MODULE, name="another"))
    assert start.submitted == []


def test_a_forked_child_has_no_start(device: StandIn, tmp_path: Path) -> None:
    warp_tiles.disable()
    warp_tiles.enable(start=tmp_path / "start.json")
    engine = installed().engine
    engine.after_fork()
    assert engine.program_start is None


# ---- what is generated, and what is left to its launch


@pytest.fixture
def loading(device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """This thread loads a module for the fake GPU."""
    monkeypatch.setattr("warp_tiles._warp.reload.loaded_here", lambda: {"device": device, "output_arch": 90})


def generate(*modules: ModuleType) -> str:
    """The name of the first of some recorded modules that can be generated."""
    found = ListedModules().generate({module.__name__: 64 for module in modules}, lambda: True)
    assert found is not None
    return found.module.name


def with_a_static_of_another_module() -> ModuleType:
    other, module = load(SEEN), plain(2, "late(out[i])", "late = wp.abs")
    module.late, module.seen = other.late, other.seen  # type: ignore[attr-defined]
    assert not warp_module(module).has_unresolved_static_expressions
    return module


LEFT = {
    "broken": lambda: plain(2, "wp.sin(missing(out[i]))"),
    "static": lambda: plain(2, "late(out[i])", SEEN),
    "static of another module": with_a_static_of_another_module,
    "product": lambda: load(gemm()),
    "warning": lambda: plain(2, "wp.grad(g)(out[i])", "@wp.func\ndef g(x: float): return x * x\n", backward=True),
}


@pytest.mark.parametrize("left", LEFT)
def test_some_modules_are_left_to_their_launch(
    left: str, loading: None, only: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    second, third = LEFT[left](), plain(3)
    only(second, third)
    assert generate(second, third) == third.__name__
    for module in (second, third):
        assert not warp_module(module).hashers, "the module is as it was"
    assert not getattr(second, "seen", [])
    assert not warp_module(second).failed_builds
    captured = capfd.readouterr()
    assert "arning" not in captured.out + captured.err


def test_what_no_launch_has_asked_for_is_looked_up_here_alone_and_warned_of_never(
    device: StandIn, loading: None, only: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    second, third = plain(2), plain(3)
    wp.set_module_options({"lineinfo": True}, module=second)
    only(second, third)
    said = list[str]()
    monkeypatch.setattr(BuildContext, "upstream", lambda *_: pytest.fail("it asks the store"))
    monkeypatch.setattr(warp_module_build, "say_left_to_warp", said.append)
    assert generate(second, third) == third.__name__
    assert not said
    monkeypatch.setattr(BuildContext, "upstream", lambda *_: None)
    device.load(second.__name__)
    assert said == ["the option lineinfo is on"] * len(said) != []


def test_generation_ends_with_the_wait(device: StandIn, only: Callable[..., None], loading: None) -> None:
    known, second = plain(1), plain(2)
    only(known)
    device.load(known.__name__)
    only(known, second)
    warp_module(known).execs.clear()
    hash_again(warp_module(known))
    modules, recorded = ListedModules(), {known.__name__: 64, second.__name__: 64}
    assert modules.generate(recorded, lambda: False) is None, "the first one is known, and the wait has ended"
    found = modules.generate(recorded, lambda: True)
    assert found is not None
    assert found.module.name == second.__name__


def test_waits_that_end_and_starts_that_are_stopped_generate_no_more(device: StandIn, tmp_path: Path) -> None:
    asked = list[bool]()

    def generate(_: object, is_waiting: Callable[[], bool]) -> AheadModule:
        asked.append(is_waiting())
        work.set_result(None) if not work.done() else start.stop()
        asked.append(is_waiting())
        return module_of(len(asked))

    start = started(tmp_path, generate)
    work: Future[None] = Future()
    start.generate_while(lambda: not work.done())
    assert asked == [True, False]
    start.generate_while(lambda: True)
    assert asked == [True, False, True, False]


def test_what_follows_a_build_does_not_wait_for_those_behind_it(
    device: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, called = started(tmp_path), threading.Event()
    ends = {f"m{number}": threading.Event() for number in range(3)}
    monkeypatch.setattr(start, "_compile", lambda module, _: ends[module.name].wait(20))
    for name in ends:
        start._queue(replace(MODULE, name=name))
    start.after_build(replace(MODULE, name="m0"), called.set)
    ends["m0"].set()
    assert called.wait(20)
    assert sum(not build.done() for build in start._builds.values()) == 2
    for end in ends.values():
        end.set()
    start.stop()
