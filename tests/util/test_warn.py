"""Warnings of the package."""

import threading
import warnings

import pytest

from warp_tiles.util import warn as module
from warp_tiles.util.warn import WarnedTexts, warn


def test_a_warning_has_the_prefix_and_the_callers_line() -> None:
    with pytest.warns(RuntimeWarning, match="^warp_tiles: no toolchain$") as caught:
        warn("no toolchain")
    assert caught[0].filename == __file__


def test_frames_of_the_package_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def inner(): warn('inner')\ndef outer(): inner()\n"
    names = {"warn": warn}
    exec(compile(source, f"{module._PACKAGE}build/fake.py", "exec"), names)
    with pytest.warns(RuntimeWarning) as caught:
        names["outer"]()  # type: ignore[call-arg]
    assert caught[0].filename == __file__


def test_on_a_thread_the_warning_names_the_caller_of_warn() -> None:
    names = {"warn": warn}
    exec(compile("def work(): warn('thread')", f"{module._PACKAGE}build/fake.py", "exec"), names)
    thread = threading.Thread(target=names["work"])

    def run() -> None:
        thread.start()
        thread.join()

    with pytest.warns(RuntimeWarning) as caught:
        run()
    assert caught[0].filename.endswith("build/fake.py")


def test_a_text_is_warned_once_on_request() -> None:
    once = WarnedTexts()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            warn("repeated")
            warn("kept", once)
    assert [str(item.message) for item in caught] == [
        "warp_tiles: repeated",
        "warp_tiles: kept",
        "warp_tiles: repeated",
    ]


def test_what_a_terminal_would_obey_is_escaped() -> None:
    with pytest.warns(RuntimeWarning) as caught:
        warn("the file \x1b]0;title\x07\nis damaged")
    assert str(caught[0].message) == "warp_tiles: the file \\x1b]0;title\\x07\nis damaged"
