"""The mutations fit the sources: each can be applied, and names tests that exist."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation import table
from tests.mutation.made import changes
from tests.mutation.table import Mutation, drawn, made, named, problems

MUTATION = Mutation("code.py", "fault", "x = 1", "x = 2", ("tests/test_code.py::test_x",))
CODE = """\
// a + b is a comment
#define SUM a + b
static_assert(N < 3, "too many");
template <int N = 2>
__device__ int f(const int* x, int n)
{
    bool more = true;
    if (n < 2 && more)
        return x[0];
    arch::block_barrier();
    x[1] = {};
    return n < 2 ? f(x + 1, n) : 5;
}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "code.py").write_text("x = 1\ny = 1\n")
    (tmp_path / "tests" / "test_code.py").write_text("def test_x() -> None:\n    pass\n")
    return tmp_path


def test_every_mutation_fits_its_source() -> None:
    assert list(problems(named())) == []
    files = list(dict.fromkeys(mutation.file for mutation in drawn(1, 0)))
    assert len(files) > 25
    for file in files:
        assert list(problems(made(file))) == []


def test_an_equal_mutation_is_left_out(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    first = next(changes(CODE))[0]
    (root / "f.cuh").write_text(CODE)
    monkeypatch.setattr(table, "_read", lambda _: {"f.cuh": {"tests": ["tests"], "equal": [first]}})
    assert len(made("f.cuh", root)) == len(list(changes(CODE))) - 1


def test_what_is_made_of_a_text() -> None:
    found = {name: (old, new) for name, old, new in changes(CODE)}
    assert list(found) == [
        "true -> false in bool more = true;",
        "if ( -> if (false && in if (n < 2 && more)",
        "< -> <= in if (n < 2 && more)",
        "2 -> 3 in if (n < 2 && more)",
        "&& -> || in if (n < 2 && more)",
        "0 -> 1 in return x[0];",
        "arch::block_barrier(); -> ; in arch::block_barrier();",
        "x[1] = {}; -> ; in x[1] = {};",
        "1 -> 2 in x[1] = {};",
        "< -> <= in return n < 2 ? f(x + 1, n) : 5;",
        "2 -> 3 in return n < 2 ? f(x + 1, n) : 5;",
        "? -> || true ? in return n < 2 ? f(x + 1, n) : 5;",
        "+ -> - in return n < 2 ? f(x + 1, n) : 5;",
        "1 -> 2 in return n < 2 ? f(x + 1, n) : 5;",
        "5 -> 6 in return n < 2 ? f(x + 1, n) : 5;",
    ]
    assert found["arch::block_barrier(); -> ; in arch::block_barrier();"] == ("    arch::block_barrier();", "    ;")


def test_a_line_that_occurs_twice_is_changed_once() -> None:
    text = "{\n    a = b + c;\n    d();\n    a = b + c;\n}\n"
    names = [name for name, *_ in changes(text) if name.startswith("+")]
    assert names == ["+ -> - in a = b + c;", "+ -> - in a = b + c; (2)"]
    for name, old, new in changes(text):
        assert text.count(old) == 1, name
        assert text.replace(old, new) != text


def test_a_mutation_replaces_its_text(root: Path) -> None:
    assert list(problems([MUTATION], root)) == []
    assert MUTATION.applied("x = 1\ny = 1\n") == "x = 2\ny = 1\n"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"old": "x = 3"}, "it has 0 occurrences of 'x = 3', not one"),
        ({"old": " = 1"}, "it has 2 occurrences"),
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
    assert problem in found


def test_two_mutations_of_one_name(root: Path) -> None:
    assert list(problems([MUTATION, replace(MUTATION, new="x = 3")], root)) == [
        "code.py has 2 mutations called 'fault'"
    ]
