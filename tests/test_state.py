"""Tests pass in any order: a process runs several scripts, and tests leave no state behind."""

import importlib.util
import os
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.conftest import LONGEST_FIRST
from tests.processes.sitecustomize import _CHANGES

pytest_plugins = ["pytester"]

LEAVES_STATE = """
import os
import warp as wp
import warp_tiles

def test_variables(): os.environ["LEFT"] = "1"; os.environ["HOME"] = "/"
def test_a_missing_variable(): os.environ.pop("HOME")
def test_a_folder(): os.chdir("/")
def test_settings(): warp_tiles.configure(jobs=1)
def test_hooks(): warp_tiles.enable()
def test_options_of_warp(): wp.config.enable_backward = False
def test_nothing(): pass
"""


@pytest.mark.slow
def test_a_test_that_leaves_state_behind_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parent.parent
    monkeypatch.setenv("PYTHONPATH", str(root), prepend=os.pathsep)
    pytester.makeconftest("from tests.conftest import _leaves_no_state")
    pytester.makepyfile(LEAVES_STATE)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=7, errors=6)


def test_the_longest_files_exist() -> None:
    root = Path(__file__).resolve().parent.parent
    assert [name for name in LONGEST_FIRST if not (root / name).is_file()] == []


def test_no_folder_with_tests_is_left_out(pytestconfig: pytest.Config) -> None:
    tests = Path(__file__).resolve().parent
    folders = {part for path in tests.rglob("test_*.py") for part in path.relative_to(tests).parts[:-1]}
    assert "build" in folders
    assert [
        name for name in folders for pattern in pytestconfig.getini("norecursedirs") if fnmatch(name, pattern)
    ] == []


def test_the_modules_that_a_test_run_changes_exist() -> None:
    assert [name for name in _CHANGES if importlib.util.find_spec(name) is None] == []
