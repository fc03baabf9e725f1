"""The progress bar: on a terminal or on request only, and without effect on a build."""

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from tests.waiting import until
from warp_tiles.build import log as module
from warp_tiles.build.log import BuildProgress


class Terminal(io.StringIO):
    """Standard error that is, or is not, a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal  # type: ignore[method-assign]


class Timer:
    """A timer that ends when a test says so."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._call, self._runs = call, False

    def start(self) -> None:
        self._runs = True

    def cancel(self) -> None:
        self._runs = False

    def end(self) -> None:
        if self._runs:
            self._call()


@pytest.fixture(autouse=True)
def timers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Timer]]:
    """The timers of all bars. No thread is left behind."""
    made: list[Timer] = []

    def timer(seconds: float, call: Callable[[], None]) -> Timer:
        made.append(Timer(seconds, call))
        return made[-1]

    monkeypatch.setattr(module, "threading", SimpleNamespace(Timer=timer, Lock=threading.Lock))
    monkeypatch.setenv("TERM", "xterm-256color")
    before = set(threading.enumerate())
    yield made
    until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.parametrize(
    ("choice", "terminal", "shown"),
    [("auto", True, True), ("on", True, True), ("auto", False, False), ("off", True, False), ("off", False, False)],
)
def test_a_bar_is_shown_on_a_terminal(
    choice: str, terminal: bool, shown: bool, timers: list[Timer], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "stderr", stream := Terminal(terminal))
    bar = BuildProgress()
    with bar.counted("8x8x8 float32", choice):
        for timer in timers:
            timer.end()
    assert (bar._bar, capsys.readouterr().out) == (None, "")
    parts = ("functions and modules", "/1", "8x8x8 float32")
    assert [part in stream.getvalue() for part in parts] == [shown] * 3


def test_a_hit_does_not_flash_and_its_timer_shows_no_later_batch(
    timers: list[Timer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal(True))
    bar = BuildProgress()
    with bar.counted("a hit", "on"):
        pass
    with bar.counted("another hit", "on"):
        timers[0].end()
        assert bar._bar is None
    assert stream.getvalue() == ""


def test_a_name_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", stream := Terminal(True))
    with module.new_bar("tuning f[red]") as bar:
        bar.add_task("module g[/red]", total=1)
    assert "tuning f[red]" in stream.getvalue()
    assert "module g[/red]" in stream.getvalue()


def test_parallel_builds_are_counted_together(timers: list[Timer]) -> None:
    bar = BuildProgress()
    with contextlib.ExitStack() as builds:
        for _ in range(3):
            builds.enter_context(bar.counted("x", "on"))
        timers[0].end()
        assert (len(timers), bar._running, bar._total, bar._bar is None) == (1, 3, 3, False)
    assert (bar._running, bar._done, bar._bar) == (0, 3, None)
    with bar.counted("y", "off"):
        assert (bar._total, bar._done) == (1, 0)  # the next batch counts from the start


def test_a_module_counts_until_it_is_linked_and_once() -> None:
    bar = BuildProgress()
    with bar.module("gemm", 90, 64, "on"):
        with bar.counted("8x8x8 float32"):
            assert (bar._done, bar._total) == (0, 2)
        with bar.module("gemm", 90, 64, "on"), bar.module("gemm", 90, 128, "on"):
            assert (bar._done, bar._total) == (1, 3)
        assert (bar._done, bar._total) == (2, 3), "the functions are built, and the module is not linked"
    assert (bar._done, bar._total) == (3, 3)


def test_the_bar_names_the_module_that_the_program_waits_for(
    timers: list[Timer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal(True))
    bar = BuildProgress()
    with contextlib.ExitStack() as ahead:
        for name in "abc":
            ahead.enter_context(bar.module(name, 90, 256, "on", awaited=False))
        timers[0].end()
        with bar.module("a", 90, 256, "on"):
            until(lambda: "0 of 3 modules, waiting for module a, sm_90" in stream.getvalue())
        with bar.module("d", 90, 256, "on"):
            until(lambda: "0 of 4 modules, waiting for module d, sm_90" in stream.getvalue())
        assert (bar._done, bar._total) == (1, 4)
        until(lambda: "1 of 4 modules" in stream.getvalue().rpartition("waiting")[2])
    assert bar._bar is None


def test_a_failed_build_ends_the_bar_and_without_standard_error_nothing_fails(
    timers: list[Timer], monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = BuildProgress()
    with contextlib.suppress(KeyError), bar.counted("x", "on"):
        timers[0].end()
        assert bar._bar is not None
        raise KeyError("the build failed")
    assert (bar._bar, bar._running) == (None, 0)
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw, or a daemon that closed it
    with bar.counted("x", "auto"):
        pass
    assert bar._done == 1
