"""The runner of mutations, on a small repository."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation import run
from tests.mutation.run import Outcome, Tree, record
from tests.mutation.table import Mutation

TEST = "from code_under_test import x\n\ndef test_x():\n    assert x() == 1\n"
MUTATION = Mutation("code_under_test.py", "fault", "return 1", "return 2", ("test_code.py",))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    root = tmp_path_factory.mktemp("repository")
    (root / "code_under_test.py").write_text("y = 5\n\ndef x():\n    return 1\n")
    (root / "test_code.py").write_text(TEST)
    (root / "ignored.txt").write_text("")
    (root / ".gitignore").write_text("ignored.txt\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return Tree(root, tmp_path_factory.mktemp("job") / "0")


def test_a_copy_lacks_what_git_ignores(tree: Tree) -> None:
    assert (tree.folder / "test_code.py").exists()
    assert not (tree.folder / "ignored.txt").exists()


def test_a_killed_mutation_names_the_test_and_its_error(tree: Tree) -> None:
    before = (tree.folder / "code_under_test.py").read_text()
    found = tree.run(MUTATION)
    assert (found.state, found.test) == ("killed", "test_code.py::test_x")
    assert (tree.folder / "code_under_test.py").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"old": "y = 5", "new": "y = 6"}, "survived"),
        ({"old": "return 1", "new": "while True:\n        pass"}, "timed out"),
        ({"old": "def x", "new": "def z"}, "broken"),
    ],
    ids=["survived", "timed out", "broken"],
)
def test_other_outcomes(tree: Tree, change: dict[str, str], state: str) -> None:
    seconds = 3.0 if state == "timed out" else run.SECONDS
    assert tree.run(replace(MUTATION, **change), seconds).state == state


@pytest.mark.parametrize("state", ["survived", "timed out", "broken"])
def test_a_mutation_that_is_not_killed_makes_the_run_fail(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    outcomes = [Outcome(MUTATION, "killed", "test_x")]
    monkeypatch.setattr(run, "run_all", lambda chosen, jobs, folder: outcomes)
    assert run.main([]) == 0
    outcomes.append(Outcome(MUTATION, state))
    assert run.main([]) == 1


@pytest.mark.slow
def test_a_mutation_that_does_not_compile_is_no_success(tree: Tree) -> None:
    change = 'raise RuntimeError("code does not compile:\\nwhy")'
    assert tree.run(replace(MUTATION, new=change)).state == "invalid"


def test_the_record_keeps_the_outcomes_of_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(MUTATION, name="other")
    monkeypatch.setattr(run, "named", lambda: [MUTATION, other])
    path = tmp_path / "mutations.json"
    record([Outcome(MUTATION, "killed", "test_x"), Outcome(replace(MUTATION, name="made"), "invalid")], path)
    record([Outcome(other, "survived")], path)
    data = json.loads(path.read_text())
    assert (data["total"], data["killed"]) == (2, 1)
    results = {"fault": {"state": "killed", "test": "test_x"}, "other": {"state": "survived", "test": ""}}
    assert data["files"] == {MUTATION.file: results}
    monkeypatch.setattr(run, "named", lambda: [other])
    assert record([], path)["total"] == 1
