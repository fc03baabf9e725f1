"""The table of mutations fits the sources: each one can be applied, and names tests that exist."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation.table import Mutation, mutations, problems, rooms

MUTATION = Mutation("room", "fault", "code.py", "x = 1", "x = 2", ("tests/test_code.py::test_x",))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "code.py").write_text("x = 1\ny = 1\n")
    (tmp_path / "tests" / "test_code.py").write_text("def test_x() -> None:\n    pass\n")
    return tmp_path


@pytest.mark.parametrize("room", rooms())
def test_every_mutation_fits_its_source(room: str) -> None:
    assert list(problems(mutations(room))) == []


def test_a_mutation_replaces_its_text(root: Path) -> None:
    assert list(problems([MUTATION], root)) == []
    assert MUTATION.applied("x = 1\ny = 1\n") == "x = 2\ny = 1\n"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"old": "x = 3"}, "code.py has 0 occurrences of 'x = 3', not one"),
        ({"old": " = 1"}, "code.py has 2 occurrences"),
        ({"file": "missing.py"}, "No such file"),
        ({"new": "x = 1"}, "it changes nothing"),
        ({"tests": ()}, "it names no tests"),
        ({"tests": ("tests/test_other.py",)}, "there is no tests/test_other.py"),
        ({"tests": ("tests/test_code.py::test_y[a-1]",)}, "there is no test_y in tests/test_code.py"),
    ],
    ids=str,
)
def test_an_entry_that_does_not_fit_is_named(root: Path, change: dict[str, object], problem: str) -> None:
    (found,) = problems([replace(MUTATION, **change)], root)  # type: ignore[arg-type]
    assert found.startswith("room, fault: ")
    assert problem in found


def test_two_mutations_of_one_name(root: Path) -> None:
    assert list(problems([MUTATION, replace(MUTATION, new="x = 3")], root)) == ["room has 2 mutations called 'fault'"]
