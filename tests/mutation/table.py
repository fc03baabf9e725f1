"""The mutations: small faults, each with the tests that must fail on it.

``made.py`` makes those of the files of ``files.toml`` from their operators, numbers and statements. ``named.toml`` has
the others, by hand: the name of a table is the path of the source from the repository's root.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tests.mutation.made import changes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Mutation:
    """A fault in a source file.

    Attributes:
        file: Path of the source from the repository's root.
        name: What is wrong with the source. It is unique in its file.
        old, new: The text that is replaced, which occurs once, and its replacement.
        tests: Arguments of pytest that select the tests.
    """

    file: str
    name: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """Returns the faulty text of the file.

        Raises:
            ValueError: ``old`` does not occur exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.file}, {self.name}: it has {count} occurrences of {self.old!r}, not one")
        return text.replace(self.old, self.new)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name).read_text("utf-8"))


def named() -> list[Mutation]:
    """The mutations of ``named.toml``.

    Raises:
        ValueError: An entry has unknown fields, or lacks one.
    """
    return [_mutation(file, entry) for file, entries in _read("named.toml").items() for entry in entries]


def _mutation(file: str, values: dict[str, Any]) -> Mutation:
    if values.keys() != {field.name for field in fields(Mutation)} - {"file"}:
        raise ValueError(f"{file}, {values.get('name')}: the fields are {', '.join(values)}")
    return Mutation(file, **{**values, "tests": tuple(values["tests"])})


def made(file: str, root: Path = ROOT) -> list[Mutation]:
    """The mutations that are made of a file of ``files.toml``, without those that change no result."""
    entry = _read("files.toml")[file]
    found = [
        Mutation(file, name, old, new, tuple(entry["tests"]))
        for name, old, new in changes((root / file).read_text("utf-8"))
    ]
    return [mutation for mutation in found if mutation.name not in entry.get("equal", ())]


def drawn(count: int, seed: int) -> list[Mutation]:
    """So many made mutations of each file; others for another seed."""
    found: list[Mutation] = []
    for file in _read("files.toml"):
        known = made(file)
        found += random.Random(f"{seed} {file}").sample(known, min(count, len(known)))
    return found


def problems(found: list[Mutation], root: Path = ROOT) -> Iterator[str]:
    """Yields what is wrong with mutations."""
    for (file, name), count in Counter((mutation.file, mutation.name) for mutation in found).items():
        if count > 1:
            yield f"{file} has {count} mutations called {name!r}"
    for mutation in found:
        where = f"{mutation.file}, {mutation.name}"
        try:
            mutation.applied((root / mutation.file).read_text("utf-8"))
        except (OSError, ValueError) as error:
            yield f"{where}: {error}"
            continue
        if mutation.old == mutation.new:
            yield f"{where}: it changes nothing"
        if not mutation.tests:
            yield f"{where}: it names no tests"
        yield from (f"{where}: {problem}" for test in mutation.tests for problem in _missing(root, test))


def _missing(root: Path, test: str) -> Iterator[str]:
    """Yields what a test's name refers to that does not exist."""
    path, *names = test.split("[", 1)[0].split("::")
    if not (root / path).exists():
        yield f"there is no {path}"
    elif names and f"def {names[-1]}(" not in (root / path).read_text("utf-8"):
        yield f"there is no {names[-1]} in {path}"
