"""modules="all": modules that are generated, and compiled without a start record, while a program waits for another."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import pytest
import warp as wp

import warp_tiles
from benchmarks.stand_in import StandIn
from tests.integration.helpers import gemm, load
from tests.store.test_start_record import MODULE
from tests.waiting import until
from warp_tiles._warp import idle as modules_ahead
from warp_tiles._warp import installed
from warp_tiles._warp.idle import IdleModules
from warp_tiles._warp.internals import find
from warp_tiles._warp.modules import hash_again
from warp_tiles.build import idle
from warp_tiles.build import warp_module as warp_module_build
from warp_tiles.build.idle import IdleBuilds, IdleModule, RecordedModules
from warp_tiles.build.progress import BuildProgress
from warp_tiles.build.start_record import ProgramStart
from warp_tiles.errors import CacheError, WorkerError
from warp_tiles.settings import Settings, current
from warp_tiles.store.key import CacheKey
from warp_tiles.util.threads import DaemonThreads

PLAIN = """
N = {value}
{more}
@wp.kernel(enable_backward={backward})
def plain(out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = {expression}
"""
SLOW = " + ".join(f"wp.sin(out[i] * {i}.0 + float(N))" for i in range(20))


def plain(value: int = 1, expression: str = "float(N)", more: str = "", *, backward: bool = False) -> ModuleType:
    return load(PLAIN.format(value=value, expression=expression, more=more, backward=backward))


def warp_module(module: ModuleType) -> Any:
    return wp.get_module(module.__name__)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the modules that exist. Functions of their files are running, unless others are named."""

    def exist(*modules: ModuleType, running: Sequence[ModuleType] | None = None) -> None:
        monkeypatch.setattr("warp_tiles._warp.idle.users_own_modules", lambda: [*map(warp_module, modules)])
        names = [module.__name__ for module in (modules if running is None else running)]
        monkeypatch.setattr("warp_tiles._warp.idle._running", lambda _: names)

    return exist


@pytest.fixture(autouse=True)
def _idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "idle_cores", lambda: 8.0)


def builds() -> IdleBuilds:
    found = installed().engine.idle
    assert isinstance(found, IdleBuilds)
    return found


def found_at_load() -> list[bool]:
    return [record["found"] for record in warp_tiles.report()["modules"] if "output" in record]


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
    upstream_of = warp_module_build.upstream_of

    def ask(*given: Any) -> Any:
        asked.append(installed().reloads.is_idle)
        return upstream_of(*given)

    monkeypatch.setattr(warp_module_build, "upstream_of", ask)
    monkeypatch.setattr(warp_module_build, "say_left_to_warp", said.append)
    device.load(first.__name__)
    until(lambda: not builds()._running and bool(builds()._unasked))
    assert builds()._compiled == 1, "the third module"
    assert asked
    assert not any(asked)
    assert not said
    device.load(second.__name__)
    assert said == ["the option lineinfo is on"] * len(said) != []


LATE = """
@wp.func
def late(x: float):
    for i in range(3):
        x += wp.static(evaluate(i))
    return x
"""


SEEN = f"seen = []\ndef evaluate(i): return seen.append(i) or float(i)\n{LATE}"
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
    monkeypatch.setattr(idle, "build_ahead", lambda *given: ahead.append(given))
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
    monkeypatch.setattr(idle, "build_ahead", lambda *_: warp_tiles.disable())
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
    assert [IdleModules(installed().reloads)._threads_of(warp_module(module), {}) for module in modules[2:]] == [
        96,
        64,
    ], "by package"


# ---- decisions


def module_of(number: int, kilobytes: int = 100) -> IdleModule:
    key = CacheKey.of({"number": str(number)})
    module = replace(MODULE, name=f"m{number}", source="x" * (kilobytes * 1000))
    context = SimpleNamespace(settings=Settings(), remote=object())
    return IdleModule(module, key, None, context)  # type: ignore[arg-type]


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

    def _compile(self, _: object, __: object, module: Any) -> None:
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


# ---- with a start record


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
    assert isinstance(installed().engine.idle, IdleBuilds), "the other record does not exist yet"


def test_a_forked_child_has_no_start(device: StandIn, tmp_path: Path) -> None:
    warp_tiles.disable()
    warp_tiles.enable(start=tmp_path / "start.json")
    engine = installed().engine
    engine.after_fork()
    assert (engine.idle, engine.on_loaded) == (None, None)
    assert engine.idle_builds(lambda begun: begun) is None


def test_generation_ends_with_the_wait(device: StandIn, only: Callable[..., None]) -> None:
    known, second = plain(1), plain(2)
    only(known)
    device.load(known.__name__)
    only(known, second)
    warp_module(known).execs.clear()
    hash_again(warp_module(known))
    reloads = installed().reloads
    modules = IdleModules(reloads, {known.__name__: 64, second.__name__: 64})
    given = {"device": device, "output_arch": 90}
    assert modules.generate(60.0, lambda: False, given) is None, "the first one is known, and the wait has ended"
    assert modules.generate(60.0, lambda: True, given).module.name == second.__name__


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
        start._queue(
            start._threads, lambda *_, end=end: end.wait(20), installed().engine.build_context(current()), module
        )
    start.after_build(replace(MODULE, name="m0"), called.set)
    ends[0].set()
    assert called.wait(20)
    until(lambda: len(start._builds) == 2)
    for end in ends:
        end.set()
    start.stop()
