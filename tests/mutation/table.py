"""The mutations of the device code: small faults, each with the tests that must fail on it.

A file of ``rooms/`` holds the mutations of one part of the device code. They are chosen by hand. The name of a table is
the path of the source from the repository's root. What stands above the tables holds for all of them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
ROOMS = Path(__file__).resolve().parent / "rooms"


@dataclass(frozen=True)
class Mutation:
    """A fault in a source file.

    Attributes:
        room: The part of the device code.
        name: What is wrong with the source. It is unique in its room.
        file: Path of the source from the repository's root.
        old, new: The text that is replaced, which occurs once, and its replacement.
        tests: Arguments of pytest that select the tests.
    """

    room: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """Returns the faulty text of the file.

        Raises:
            ValueError: ``old`` does not occur exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.room}, {self.name}: {self.file} has {count} occurrences of {self.old!r}, not one")
        return text.replace(self.old, self.new)


def rooms() -> list[str]:
    """The names of all rooms."""
    return sorted(path.stem for path in ROOMS.glob("*.toml"))


def mutations(room: str) -> list[Mutation]:
    """The mutations of a room.

    Raises:
        ValueError: An entry has unknown fields, or lacks one.
    """
    table = tomllib.loads((ROOMS / f"{room}.toml").read_text("utf-8"))
    above = {name: value for name, value in table.items() if "/" not in name}
    return [
        _mutation(room, {"file": file, "tests": [], **above, **entry})
        for file, entries in table.items()
        if file not in above
        for entry in entries
    ]


def _mutation(room: str, values: dict[str, Any]) -> Mutation:
    if values.keys() != {field.name for field in fields(Mutation)} - {"room"}:
        raise ValueError(f"{room}, {values.get('name')}: the fields are {', '.join(values)}")
    return Mutation(room=room, **{**values, "tests": tuple(values["tests"])})


def problems(found: list[Mutation], root: Path = ROOT) -> Iterator[str]:
    """Yields what is wrong with a table."""
    for (room, name), count in Counter((mutation.room, mutation.name) for mutation in found).items():
        if count > 1:
            yield f"{room} has {count} mutations called {name!r}"
    for mutation in found:
        where = f"{mutation.room}, {mutation.name}"
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
    if not test.startswith("tests/"):  # an option of pytest
        return
    path, *names = test.split("[", 1)[0].split("::")
    if not (root / path).exists():
        yield f"there is no {path}"
    elif names and f"def {names[-1]}(" not in (root / path).read_text("utf-8"):
        yield f"there is no {names[-1]} in {path}"
