"""What a signal's handler raises, such as a time limit, reaches the program as it is, wherever it waits."""

from __future__ import annotations

import ast
import functools
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import gemm, load
from tests.store.subjects import key as cache_key
from tests.tuning.tuning_records import key as record_key
from tests.tuning.tuning_records import timing
from warp_tiles.array_products import prepared
from warp_tiles.build.executor import ExecutorPool
from warp_tiles.compile import compiler
from warp_tiles.compile.compiler import LinkRequest
from warp_tiles.compile.find import find_toolchain
from warp_tiles.compile.pool import result_of
from warp_tiles.store import TOOLCHAIN_FACTS
from warp_tiles.store.cache import Cache
from warp_tiles.store.documents import sealed_documents
from warp_tiles.store.remote import RemoteStore
from warp_tiles.tuning.factory import KernelFactory
from warp_tiles.tuning.launches import Reference
from warp_tiles.tuning.measure import Effort, Runner, race
from warp_tiles.tuning.store import RecordFolder, RecordStore
from warp_tiles.util.threads import DaemonThreads, side_by_side, wait_result
from warp_tiles.util.trusted_folder import TrustedFolder

LONG_S = 3.0  # of what the program waits for; the test waits for it only if it fails


class TimeLimit(Exception):  # noqa: N818  as Celery names its own
    """A time limit of the program."""


CLASSES = [TimeLimit, TimeoutError, RuntimeError]


def limit(kind: type[Exception], _: int, frame: FrameType | None) -> None:
    raise kind("the time limit")


@contextmanager
def limited(kind: type[Exception], seconds: float) -> Iterator[None]:
    """Raise an exception in the block after some time."""
    before = signal.signal(signal.SIGALRM, functools.partial(limit, kind))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class Attempt:
    """One attempt, and whether anything that it waits for has ended by itself."""

    current: Attempt

    def __init__(self) -> None:
        self.has_ended = False
        Attempt.current = self


def sleep(*_: Any, **__: Any) -> Any:
    attempt = Attempt.current
    time.sleep(LONG_S)
    attempt.has_ended = True
    raise AssertionError("nothing interrupted the wait")


def unfinished() -> Future[Any]:
    return DaemonThreads(1, "test").submit(sleep)


class Slow(Executor):
    """An executor, a candidate and a clock."""

    submit = prepare = run = restore = sample_us = sleep


def behind(holding: Callable[[], AbstractContextManager[object]], change: Callable[[], object] | None = None) -> None:
    """Wait for what another thread holds, to hold it too or to change something."""
    held = threading.Event()

    def hold() -> None:
        with holding():
            held.set()
            sleep()

    DaemonThreads(1, "test").submit(hold)
    held.wait()
    if change is not None:
        change()
        raise AssertionError("the wait was cut short")
    with holding():
        raise AssertionError("the wait was cut short")


def for_a_remote_reply(tmp_path: Path) -> None:
    connection = RemoteStore((tmp_path / "store").as_uri(), {}, LONG_S, str)
    connection._opened = Future()
    connection._opened.set_result(None)  # type: ignore[arg-type]
    connection.reply(sleep)


def with_an_epilogue(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared, "prepare", sleep)
        prepared._with_epilogue(type("Call", (), {"epilogue": sleep})(), None)  # type: ignore[arg-type]


def for_a_library(slow: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, slow, lambda path: sleep())
        find_toolchain()


def in_a_read(owner: type, method: str, read: Callable[[], object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, sleep)
        read()


def for_a_removal(root: Path) -> None:
    store = RecordStore(root, folder="tuning")
    store.merge(record_key("gemm"), [timing({"n": 1})])
    behind(store._own.changing, RecordStore(root, folder="tuning").remove)


INSTALLATION: Any = SimpleNamespace(
    portable=lambda request: (request, ()),
    facts=lambda _: (),
    toolchain_facts=SimpleNamespace(try_toolchain=lambda: None, warp_toolkit=None),
)
WAITS: dict[str, Callable[[Path], object]] = {
    "a compiler process": lambda _: result_of(unfinished()),
    "an executor": lambda _: ExecutorPool(Slow(), INSTALLATION, 1).submit(LinkRequest("m", (), "", "")),
    "a result": lambda _: wait_result(unfinished()),
    "work side by side": lambda _: side_by_side(sleep, [1], 1),
    "a race": lambda _: race([Runner("slow", Slow())], Slow(), Effort()),
    "a reference": lambda _: Reference([sleep], 0.0, 0.0).check({}),
    "a kernel factory": lambda _: KernelFactory(sleep, ({"n": 1},), None, 64, False)._kernel_of({"n": 1}),
    "another search": lambda root: behind(lambda: RecordStore(root, folder="tuning").single_flight(record_key("gemm"))),
    "another build": lambda root: behind(lambda: Cache(root).lease(cache_key(1))),
    "a change of the cache": lambda root: behind(
        Cache(root)._folder.changing, lambda: Cache(root).put(cache_key(1), b"payload", {})
    ),
    "a change of records": lambda root: behind(
        RecordStore(root, folder="tuning")._own.changing,
        lambda: RecordStore(root, folder="tuning").merge(record_key("gemm"), [timing({"n": 1})]),
    ),
    "a removal of records": for_a_removal,
    "a read of the cache": lambda root: in_a_read(TrustedFolder, "read", lambda: Cache(root).get(cache_key(1))),
    "a look at the cache": lambda root: in_a_read(TrustedFolder, "read", lambda: Cache(root).manifest(cache_key(1))),
    "a read of records": lambda root: in_a_read(
        RecordFolder, "load", lambda: RecordStore(root, folder="tuning").load(record_key("gemm"))
    ),
    "a list of records": lambda root: in_a_read(
        RecordFolder, "names", lambda: RecordStore(root, folder="tuning").records()
    ),
    "a document": lambda root: in_a_read(
        TrustedFolder, "read", lambda: sealed_documents(root, TOOLCHAIN_FACTS).read("toolchain")
    ),
    "the compiler's library": lambda _: for_a_library("open_nvrtc"),
    "the linker's library": lambda _: for_a_library("open_nvjitlink"),
    "a remote reply": for_a_remote_reply,
    "an epilogue": with_an_epilogue,
}


ATTEMPTS = 3  # Python itself loses what a handler raises in a destructor; and a busy machine may be late


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the lost attempts
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_passes_the_exception_on(wait: str, kind: type[Exception], tmp_path: Path) -> None:
    for number in range(ATTEMPTS):
        attempt, raised = Attempt(), None
        try:
            with limited(kind, 0.15):
                WAITS[wait](tmp_path / str(number))
        except Exception as error:
            raised = error
        has_waited = attempt.has_ended
        if type(raised) is kind and not has_waited:
            break
    assert type(raised) is kind, repr(raised)
    assert str(raised) == "the time limit"
    assert not has_waited


@pytest.mark.slow
@pytest.mark.usefixtures("enabled")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of an interrupted Thread.start()
def test_no_exception_is_lost_while_a_module_is_built(tmp_path: Path) -> None:
    kernels = [load(gemm(m=8 * number), enable_backward=False) for number in range(1, 9)]
    for number in range(ATTEMPTS):
        lost, built = interrupted(kernels, tmp_path / str(number))
        assert built < len(kernels), "no build was interrupted"
        if not lost:
            break
    assert not lost
    wp.compile_aot_module(wp.get_module(kernels[0].__name__), arch=90, module_dir=tmp_path)
    assert {row["linker"] for row in warp_tiles.report()["modules"] if "linker" in row} == {"warp_tiles"}


def interrupted(kernels: list[Any], folder: Path) -> tuple[list[str], int]:
    """Builds modules under a time limit each. Returns the limits that were lost, and the number of finished builds."""
    lost, built = [], 0
    for number, module in enumerate(kernels):
        kind = (TimeLimit, RuntimeError)[number % 2]  # Python takes any OSError in an import for its own
        seconds = 0.02 + 0.08 * number
        wp.get_module(module.__name__).mark_modified()
        try:
            with limited(kind, seconds):
                wp.compile_aot_module(wp.get_module(module.__name__), arch=90, module_dir=folder)
                built += 1
                time.sleep(LONG_S)
            lost.append(f"{kind.__name__} after {seconds} s")
        except Exception as error:
            if kind not in (type(error), type(error.__context__)):  # Warp's handler of errors fails before line 1
                lost.append(repr(error))
    return lost, built


#: What a handler of a signal may raise: TimeoutError is an OSError.
BROAD_ERRORS = "(BaseException|Exception|OSError|RuntimeError|TimeoutError)"

#: Functions that catch such errors without asking whether a signal's handler raised it.
BROAD = {
    "of a command, which has handlers of its own": {
        "cli/__init__.py": ["_end_by", "_open_standard_streams", "diagnose"],
        "cli/plan_commands.py": ["connected", "require_same_installation"],
        "cli/common.py": ["output_errors", "written"],
        "cli/run.py": ["enable_here"],
        "cli/script.py": ["discover"],
    },
    "in a process or on a thread of this package": {
        "build/executor.py": ["worker_name"],
        "compile/pool.py": ["_Process._end_process", "_Process.run"],
        "compile/worker.py": ["preload", "serve"],
        "store/remote.py": ["Client._errors", "Client.read", "Client.remove"],
        "util/threads.py": ["_call"],
    },
    "waits for nothing": {"build/executor.py": ["ExecutorPool._pass_on"]},
    "raises the interrupt afterwards": {"tuning/search.py": ["_Run.run"]},
}


def broad_catches(tree: ast.AST, function: str = "", owner: str = "") -> Iterator[str]:
    """The functions that catch such errors without unless_signalled(), and neither raise it again nor ask for it."""
    for node in ast.iter_child_nodes(tree):
        inside = f"{owner}{node.name}" if isinstance(node, ast.FunctionDef) else function
        if isinstance(node, ast.ExceptHandler):
            caught, text = ast.unparse(node.type) if node.type else "Exception", ast.unparse(node)
            passes_on = "raise_if_signalled(" in text or re.search(r"^\s*raise$", text, re.MULTILINE)
            passes_on = passes_on or caught.startswith("unless_signalled(")
            if re.search(rf"\b{BROAD_ERRORS}\b", caught) and not passes_on:
                yield inside
        elif isinstance(node, ast.With):
            items = (ast.unparse(item) for item in node.items)
            if any(re.match(rf"(contextlib\.)?suppress\(.*\b{BROAD_ERRORS}\b", item) for item in items):
                yield inside
        within = "" if isinstance(node, ast.FunctionDef) else owner
        yield from broad_catches(node, inside, f"{node.name}." if isinstance(node, ast.ClassDef) else within)


def test_every_catch_of_what_a_handler_may_raise_asks_for_it() -> None:
    package = Path(warp_tiles.__file__).parent
    found = {
        (path.relative_to(package).as_posix(), name)
        for path in package.rglob("*.py")
        for name in broad_catches(ast.parse(path.read_text("utf-8")))
    }
    assert found == {(file, name) for files in BROAD.values() for file, names in files.items() for name in names}
