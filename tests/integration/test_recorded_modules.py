"""Modules of a start record that are generated while a launch waits for another one."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import warp as wp

import warp_tiles
from benchmarks.stand_in import StandIn
from tests.integration.idle_modules import SLOW, found_at_load, module_of, plain, warp_module
from tests.store.test_start_record import MODULE
from tests.waiting import until
from warp_tiles._warp import installed
from warp_tiles._warp.idle import IdleModules
from warp_tiles._warp.internals import find
from warp_tiles._warp.modules import hash_again
from warp_tiles.build import idle
from warp_tiles.build.idle import IdleBuilds, IdleModule, RecordedModules
from warp_tiles.build.start_record import ProgramStart
from warp_tiles.errors import WorkerError
from warp_tiles.settings import current
from warp_tiles.util.threads import DaemonThreads

pytestmark = pytest.mark.usefixtures("idle_machine")


@contextmanager
def generated() -> Iterator[list[str]]:
    """The modules whose code is generated in a block, in order."""
    names: list[str] = []
    builder = find("context").ModuleBuilder
    original = builder.codegen

    def codegen(self: Any, *given: Any, **named: Any) -> Any:
        names.append(self.module.name)
        return original(self, *given, **named)

    with mock.patch.object(builder, "codegen", codegen):
        yield names


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules whose start keys were bound ahead of their launches."""
    names: list[str] = []
    compiled = idle.compiled

    def bind(engine: Any, one: IdleModule) -> bool:
        is_new = compiled(engine, one)
        names.append(one.module.name)
        return is_new

    monkeypatch.setattr(idle, "compiled", bind)
    return names


def start_again(record: Path, modules: Sequence[ModuleType]) -> None:
    """Begin the program again with its start record and empty caches."""
    warp_tiles.disable()
    for module in modules:
        warp_module(module).execs.clear()
    for folder in (wp.config.kernel_cache_dir, current().cache_dir):
        shutil.rmtree(folder)
    warp_tiles.enable(start=record)


@pytest.fixture
def recorded(device: StandIn, tmp_path: Path) -> Callable[..., Path]:
    """Loads modules with a start record, and returns its path."""
    record = tmp_path / "start.json"

    def run(*modules: ModuleType) -> Path:
        warp_tiles.disable()
        warp_tiles.enable(start=record)
        for module in modules:
            device.load(module.__name__)
        return record

    return run


def test_a_record_has_modules_generated_while_a_launch_waits(
    device: StandIn, only: Callable[..., None], recorded: Callable[..., Path], bound: list[str]
) -> None:
    first, second, third = plain(1, SLOW), plain(2), plain(3)
    only(first, second, third, running=[third])
    record = recorded(first, second)
    start_again(record, [first, second])
    bound.clear()  # the start before had no record, and compiled on idle cores
    with generated() as names:
        device.load(first.__name__)
        assert names == [first.__name__, second.__name__], "the record does not name the third"
        until(lambda: bound)
        device.load(second.__name__)
    assert names == [first.__name__, second.__name__], "its launch generates nothing"
    assert found_at_load() == [True, True]


def test_what_a_record_names_is_built_where_its_source_has_changed(
    device: StandIn, only: Callable[..., None], recorded: Callable[..., Path], bound: list[str]
) -> None:
    first, second = plain(1, SLOW), plain(2)
    only(first, second)
    record = recorded(first, second)
    second.N = 7  # type: ignore[attr-defined]
    start_again(record, [first, second])
    bound.clear()  # the start before had no record, and compiled on idle cores
    with generated() as names:
        device.load(first.__name__)
        until(lambda: bound)
        device.load(second.__name__)
    assert names == [first.__name__, second.__name__]
    assert found_at_load() == [True, True]
    ahead = next(Path(wp.config.kernel_cache_dir).glob(f"wp_{second.__name__}*/*.cu")).read_text()
    assert "7" in ahead


class Start:
    """A start of which one build was begun, and its threads, which run what they are given at :meth:`run`."""

    def __init__(self, tmp_path: Path) -> None:
        self.start = ProgramStart(installed().engine, tmp_path / "start.json", "1.0", lambda _: False)
        self.build: Future[None] = Future()
        self.start._builds[MODULE.place] = self.build
        self.start._threads = self.start._followers = self
        self.submitted: list[Callable[[], None]] = []
        self.called: list[str] = []

    def submit(self, call: Callable[[], None]) -> None:
        self.submitted.append(call)

    def close(self) -> None:
        self.build.cancel()

    def after_build(self, module: Any = MODULE) -> None:
        self.start.after_build(module, lambda: self.called.append("call"))

    def run(self) -> list[str]:
        for call in self.submitted:
            call()
        return self.called


@pytest.mark.parametrize("is_done", [False, True])
def test_what_follows_a_build_runs_on_a_thread(is_done: bool, device: StandIn, tmp_path: Path) -> None:
    start = Start(tmp_path)
    if is_done:
        start.build.set_result(None)
    start.after_build()
    if not is_done:
        assert start.submitted == []
        start.build.set_exception(WorkerError("it ended"))
    assert start.called == [], "the launch does not run it"
    assert start.run() == ["call"]


def test_without_a_build_it_runs_at_once(device: StandIn, tmp_path: Path) -> None:
    start = Start(tmp_path)
    start.after_build(replace(MODULE, name="another"))
    assert start.run() == ["call"]


def test_a_stopped_start_begins_nothing_more(device: StandIn, tmp_path: Path) -> None:
    start = Start(tmp_path)
    start.after_build()
    start.start.stop()
    assert start.build.cancelled()
    start.after_build()
    start.after_build(replace(MODULE, name="another"))
    assert start.submitted == []


def test_another_start_takes_the_place_of_what_was_begun(
    device: StandIn, only: Callable[..., None], recorded: Callable[..., Path], tmp_path: Path
) -> None:
    first, second, third = plain(1, SLOW), plain(2), plain(3)
    only(first, second, third)
    record = recorded(first, second)
    start_again(record, [first, second])
    device.load(first.__name__)
    assert isinstance(installed().engine.idle, RecordedModules)
    installed().begin_start(tmp_path / "other.json")
    device.load(second.__name__)
    assert type(installed().engine.idle) is IdleBuilds, "the other record does not exist yet"


def test_a_forked_child_has_no_start(device: StandIn, tmp_path: Path) -> None:
    warp_tiles.disable()
    warp_tiles.enable(start=tmp_path / "start.json")
    engine = installed().engine
    engine.after_fork()
    assert (engine.idle, engine.on_loaded) == (None, None)
    assert engine.idle_builds(lambda begun: begun) is None


def test_generation_ends_with_the_wait(
    device: StandIn, only: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    known, second = plain(1), plain(2)
    only(known)
    device.load(known.__name__)
    only(known, second)
    warp_module(known).execs.clear()
    hash_again(warp_module(known))
    modules = IdleModules({known.__name__: 64, second.__name__: 64})
    monkeypatch.setattr("warp_tiles._warp.idle.loaded_here", lambda: {"device": device, "output_arch": 90})
    assert modules.generate(60.0, lambda: False) is None, "the first one is known, and the wait has ended"
    assert modules.generate(60.0, lambda: True).module.name == second.__name__


def test_waits_that_end_and_starts_that_are_stopped_generate_no_more(device: StandIn, tmp_path: Path) -> None:
    start, asked = Start(tmp_path).start, list[bool]()

    def generate(_: float, is_waiting: Callable[[], bool]) -> IdleModule:
        asked.append(is_waiting())
        work.set_result(None) if not work.done() else start.stop()
        asked.append(is_waiting())
        return module_of(len(asked))

    modules = RecordedModules(installed().engine, start, generate)
    work: Future[None] = Future()
    modules.wait(work, 1000, installed().engine.build_context(current()).pool)
    assert asked == [True, False]
    cache = SimpleNamespace(is_locked=lambda _: True)
    modules.wait_for_lock(SimpleNamespace(modules=cache), module_of(0).key)  # type: ignore[arg-type]
    assert asked == [True, False, True, False]


def test_what_follows_a_build_does_not_wait_for_those_behind_it(device: StandIn, tmp_path: Path) -> None:
    start, called = ProgramStart(installed().engine, tmp_path / "start.json", "1.0", lambda _: False), threading.Event()
    start._threads = DaemonThreads(1, "test")
    ends = [threading.Event() for _ in range(3)]
    for number, end in enumerate(ends):
        module = replace(MODULE, name=f"m{number}")
        start._queue(start._threads, lambda *_, end=end: end.wait(20), module)
    start.after_build(replace(MODULE, name="m0"), called.set)
    ends[0].set()
    assert called.wait(20)
    until(lambda: len(start._builds) == 2)
    for end in ends:
        end.set()
    start.stop()
