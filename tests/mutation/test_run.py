"""The runner of mutations, on a small repository."""

import subprocess
from dataclasses import replace

import pytest

from tests.mutation import run
from tests.mutation.run import Tree
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


@pytest.mark.slow
def test_a_mutation_that_does_not_compile_is_no_success(tree: Tree) -> None:
    change = 'raise RuntimeError("code does not compile:\\nwhy")'
    assert tree.run(replace(MUTATION, new=change)).state == "invalid"
