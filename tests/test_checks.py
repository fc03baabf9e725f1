"""The repository passes its formatter, its linter and its type checker. A missing tool is a failure."""

from tests.interpreter import python


def test_ruff_check() -> None:
    python("-m", "ruff", "check", ".")


def test_ruff_format() -> None:
    python("-m", "ruff", "format", "--check", ".")


def test_mypy() -> None:
    python("-m", "mypy")
