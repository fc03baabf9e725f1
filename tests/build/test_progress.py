"""The progress bar: on a terminal or on request only, and without effect on a build."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.waiting import until
from warp_tiles import settings
from warp_tiles.build import progress as module
from warp_tiles.build.progress import BuildProgress


class Terminal(io.StringIO):
    """Standard error that is, or is not, a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture(autouse=True)
def shown_soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Show the bar at once, and check that no thread is left behind."""
    monkeypatch.setattr(module, "_SHOW_AFTER_SECONDS", 0.01)
    monkeypatch.setenv("TERM", "xterm-256color")
    before = set(threading.enumerate())
    yield
    until(lambda: set(threading.enumerate()) <= before)


def output_of_build(monkeypatch: pytest.MonkeyPatch, choice: str, terminal: bool, seconds: float = 0.15) -> str:
    """The output on standard error of one build of a given duration."""
    stream = Terminal(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    bar = BuildProgress()
    with bar.counted("8x8x8 float32", choice):
        time.sleep(seconds)
    assert bar._bar is None
    return stream.getvalue()


@pytest.mark.parametrize(("choice", "terminal"), [("auto", False), ("off", True), ("off", False)])
def test_nothing_is_shown(monkeypatch: pytest.MonkeyPatch, choice: str, terminal: bool) -> None:
    assert output_of_build(monkeypatch, choice, terminal) == ""


@pytest.mark.parametrize(("choice", "terminal"), [("auto", True), ("on", True)])
def test_a_bar_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, choice: str, terminal: bool) -> None:
    text = output_of_build(monkeypatch, choice, terminal)
    assert "functions and modules" in text
    assert "/1" in text
    assert "8x8x8 float32" in text


def test_a_hit_does_not_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHOW_AFTER_SECONDS", 0.2)
    assert output_of_build(monkeypatch, "on", True, seconds=0.0) == ""
    time.sleep(0.25)
    assert isinstance(sys.stderr, Terminal)
    assert sys.stderr.getvalue() == ""  # nothing appears later, when the timer ends


@pytest.mark.parametrize("terminal", [True, False])  # without one, rich decides about the output, and nothing may fail
def test_standard_output_stays_clean(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of_build(monkeypatch, "on", terminal)
    assert capsys.readouterr().out == ""


def test_a_name_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal(True)
    monkeypatch.setattr(sys, "stderr", stream)
    with module.new_bar("tuning f[red]") as bar:
        bar.add_task("module g[/red]", total=1)
    assert "tuning f[red]" in stream.getvalue()
    assert "module g[/red]" in stream.getvalue()


def test_parallel_builds_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal(True))
    bar = BuildProgress()
    release = threading.Event()

    def build() -> None:
        with bar.counted("x"):
            assert release.wait(5)

    with settings.override(progress="on"):
        threads = [threading.Thread(target=build) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: bar._running == 3 and bar._bar is not None)
        assert bar._total == 3
        release.set()
        for thread in threads:
            thread.join(5)
    assert (bar._running, bar._done, bar._bar) == (0, 3, None)
    with settings.override(progress="off"), bar.counted("y"):
        assert (bar._total, bar._done) == (1, 0)  # the next batch counts from the start


def test_a_module_counts_until_it_is_linked_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal(True))
    bar = BuildProgress()
    with bar.module("gemm", 90, 64, "on"):
        with bar.counted("8x8x8 float32"):
            assert (bar._done, bar._total) == (0, 2)
        with bar.module("gemm", 90, 64, "on"), bar.module("gemm", 90, 128, "on"):
            assert (bar._done, bar._total) == (1, 3)
        assert (bar._done, bar._total) == (2, 3), "the functions are built, and the module is not linked"
    assert (bar._done, bar._total) == (3, 3)


def test_the_bar_names_the_module_that_the_program_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal(True))
    bar = BuildProgress()
    with contextlib.ExitStack() as ahead:
        for name in "abc":
            ahead.enter_context(bar.module(name, 90, 256, "on", awaited=False))
        with bar.module("a", 90, 256, "on"):
            until(lambda: "0 of 3 modules, waiting for module a, sm_90" in stream.getvalue())
        with bar.module("d", 90, 256, "on"):
            until(lambda: "0 of 4 modules, waiting for module d, sm_90" in stream.getvalue())
        assert (bar._done, bar._total) == (1, 4)
        until(lambda: "1 of 4 modules" in stream.getvalue().rpartition("waiting")[2])
    assert bar._bar is None


def test_a_failed_build_ends_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal(True))
    bar = BuildProgress()

    def build() -> None:
        with bar.counted("x"):
            until(lambda: bar._bar is not None)
            raise KeyError("the build failed")

    with settings.override(progress="on"), pytest.raises(KeyError):
        build()
    assert bar._bar is None
    assert bar._running == 0


def test_a_second_batch_is_not_shown_by_the_first_ones_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHOW_AFTER_SECONDS", 0.15)
    monkeypatch.setattr(sys, "stderr", Terminal(True))
    bar = BuildProgress()
    with settings.override(progress="on"):
        with bar.counted("a hit"):
            pass
        time.sleep(0.1)
        with bar.counted("another hit"):
            time.sleep(0.1)  # the first timer ends during this sleep, the second does not
            assert bar._bar is None


def test_without_standard_error_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw, or a daemon that closed it
    bar = BuildProgress()
    with settings.override(progress="auto"), bar.counted("x"):
        pass
    assert bar._done == 1
