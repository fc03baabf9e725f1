"""The runner of all benchmarks: cases, their sides, and alternating repeats.

A case has a name and is measured as a row of JSON values. A file of results has ``runs``, the conditions of each
command, and ``rows``, each with the number of its run. It is written after each row, and keeps the rows that are not
measured again. ``--only`` selects rows by name, ``--missing`` those that the file lacks for these sources.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any, Protocol, TypeVar

Row = dict[str, Any]
T = TypeVar("T")
CONFIDENCE = 0.95
_CONDITIONS = ("sources", "provider", "gpu", "torch", "cublas", "arguments")  # by which rows are told apart


class Case(Protocol):
    """What a row measures."""

    @property
    def name(self) -> str:
        """Its name in results, which is unique."""


C = TypeVar("C", bound=Case)


@dataclass(frozen=True)
class Task:
    name: str
    measured: Callable[[], Row]


class WrongResultError(Exception):
    """Two sides compute different results."""


# ---- the command line


def parser(description: str | None, *, repeats: int = 0, required: bool = False) -> argparse.ArgumentParser:
    """The options of every benchmark.

    Args:
        description: The text of its help.
        repeats: The default of ``--repeats``; 0 if it has no such option.
        required: True if it has to write a file.
    """
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--json", type=Path, required=required, help="results; rows that are not run are kept")
    found.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="patterns or beginnings of row names")
    found.add_argument("--missing", action="store_true", help="leave out rows that the file has for these sources")
    found.add_argument("--seconds", type=float, default=math.inf, help="start no row after this time")
    if repeats:
        found.add_argument("--repeats", type=int, default=repeats, help="of each side")
    return found


def add_build_options(found: argparse.ArgumentParser, folder: Path) -> None:
    """Options of benchmarks that build kernels ahead of time, by default into a folder."""
    found.add_argument("--builds", type=Path, default=folder, help="folder of finished builds")
    found.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="compiler processes")
    found.add_argument("--build-only", action="store_true", help="fill the folder of builds; needs no GPU")
    found.add_argument("--again", action="store_true", help="try failed builds again")


def is_wanted(name: str, only: Sequence[str]) -> bool:
    """True if a name matches a pattern of ``--only``, or begins with one."""
    return any(fnmatch.fnmatchcase(name, pattern) or name.startswith(pattern) for pattern in only)


def select(cases: Iterable[C], only: Sequence[str]) -> list[C]:
    return [case for case in cases if is_wanted(case.name, only)]


# ---- sides and repeats


def alternately(
    sides: Mapping[str, Callable[[], T]], repeats: int, warm: int = 0, most: Mapping[str, int] | None = None
) -> dict[str, list[T]]:
    """The results of calls that alternate, so that a slow phase of the machine affects all sides.

    Args:
        sides: The calls. Every second repeat has the opposite order.
        repeats: Calls of each side that count.
        warm: Calls of each side before them.
        most: Fewer repeats of some sides.
    """
    found: dict[str, list[T]] = {name: [] for name in sides}
    for repeat in range(-warm, repeats):
        for name in list(sides)[:: -1 if repeat % 2 else 1]:
            if repeat < (most or {}).get(name, repeats):
                result = sides[name]()
                found[name] += [result] if repeat >= 0 else []
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """An interval that has the median with a probability of 95 %, from order statistics; the range of few values."""
    ordered, count = sorted(values), len(values)
    outside, left = 0.0, 0
    while left < (count - 1) // 2:
        outside += 2 * comb(count, left) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        left += 1
    left = max(0, left - 1)
    return ordered[left], ordered[count - 1 - left]


def ratio(peer: Sequence[float], ours: Sequence[float], digits: int = 3) -> Row:
    """The ratio of medians, with the interval of the ratios of single repeats."""
    low, high = interval([one / other for one, other in zip(peer, ours)])
    found = statistics.median(peer) / statistics.median(ours)
    return {"ratio": round(found, digits), "interval": [round(low, digits), round(high, digits)]}


def geometric_mean(values: Iterable[float], digits: int = 3) -> float | None:
    """The geometric mean; None if there are no values."""
    found = list(values)
    return round(statistics.geometric_mean(found), digits) if found else None


def summary(ratios: Sequence[float]) -> Row:
    """The number of ratios, their geometric mean and their ends."""
    return {
        "ratios": len(ratios),
        "geometric_mean": geometric_mean(ratios),
        "least": min(ratios, default=None),
        "greatest": max(ratios, default=None),
    }


def difference(values: Any, expected: Any) -> float:
    """The largest difference of arrays or tensors, relative to the largest expected element."""
    return float(abs(values - expected).max() / abs(expected).max())


def require_close(found: float, allowed: float, peer: str) -> float:
    """Returns a difference.

    Raises:
        WrongResultError: It is larger than allowed, or not a number.
    """
    if not found <= allowed:
        raise WrongResultError(f"differs from {peer} by {found:.3g}")
    return found


# ---- the file


def table_text(head: Row, rows: Iterable[Row]) -> str:
    """The JSON text of an object and its ``rows``, each row on its own line."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{json.dumps(head, indent=1).removesuffix(chr(10) + "}")},\n "rows": [\n{lines}\n]}}\n'


class Record:
    """A file of results.

    Args:
        path: The file; None to write none.
        run: The conditions of this run.
        order: Names of all rows, in the order of the file.
        summarize: Returns more fields of the file from its rows.
    """

    def __init__(
        self,
        path: Path | None,
        run: Row,
        order: Iterable[str] = (),
        summarize: Callable[[list[Row]], Row] = lambda rows: {},
    ) -> None:
        self._path, self._run, self._summarize = path, run, summarize
        known: Row = json.loads(path.read_text("utf-8")) if path and path.exists() else {"runs": [], "rows": []}
        self._runs: list[Row] = [*known["runs"], run]
        self._rows: dict[str, Row] = {row["name"]: row for row in known["rows"]}
        self._order = {name: place for place, name in enumerate(order)}

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def has(self, name: str) -> bool:
        """True if a row was measured under the conditions of this run, and without an error."""
        row = self._rows.get(name, {"wrong": "missing"})
        then = self._runs[row["run"]] if "wrong" not in row else {}
        return "wrong" not in row and all(then.get(field) == self._run.get(field) for field in _CONDITIONS)

    def put(self, row: Row) -> Row:
        """Store a row in place of an older one of its name, and write the file."""
        self._rows[row["name"]] = row | {"run": len(self._runs) - 1}
        ordered = sorted(self.rows, key=lambda one: self._order.get(one["name"], len(self._order)))
        used = sorted({one["run"] for one in ordered})
        ordered = [one | {"run": used.index(one["run"])} for one in ordered]
        head = {"runs": [self._runs[number] for number in used], **self._summarize(ordered)}
        if self._path:
            fresh = self._path.with_name(self._path.name + ".tmp")
            fresh.write_text(table_text(head, ordered), "utf-8")
            os.replace(fresh, self._path)
        return row


def measure(
    cases: Sequence[C],
    record: Record,
    options: argparse.Namespace,
    measured: Callable[[C], Row],
    described: Callable[[Row], str] = json.dumps,
    is_usable: Callable[[], bool] = lambda: True,
) -> int:
    """Measure cases one by one, and keep and print each row.

    Args:
        options: See :func:`parser`.
        measured: Returns the row of a case. A :class:`WrongResultError` is kept as a row, too.
        described: The words about a row on the terminal.
        is_usable: False if the GPU cannot be used by this process any more.

    Returns:
        The status of the process: 1 if a result is wrong, 2 if the GPU is unusable, else 0.
    """
    until, wrong = time.monotonic() + options.seconds, False
    for case in cases:
        if options.missing and record.has(case.name):
            continue
        if time.monotonic() > until:
            print("out of time; --missing measures the rest", file=sys.stderr)
            break
        try:
            row = record.put({"name": case.name, **measured(case)})
            print(f"{case.name}: {described(row)}", flush=True)
        except WrongResultError as error:
            record.put({"name": case.name, "wrong": str(error)})
            print(f"{case.name}: WRONG RESULT: {error}", file=sys.stderr, flush=True)
            wrong = True
        if not is_usable():
            print(f"{case.name} left the GPU unusable; --missing continues after it", file=sys.stderr)
            return 2
    return int(wrong)


def command(
    description: str | None,
    cases: Sequence[C],
    measured: Callable[[C, argparse.Namespace], Row],
    conditions: Callable[[], Row],
    *,
    repeats: int = 0,
    summarize: Callable[[list[Row]], Row] = lambda rows: {},
    described: Callable[[Row], str] = json.dumps,
) -> Callable[[list[str] | None], int]:
    """The entry point of a benchmark that has no options of its own.

    Args:
        description: The text of its help.
        measured: Returns the row of a case, given the options.
        conditions: Returns the conditions of a run, and prepares it.
        repeats, summarize, described: See :func:`parser`, :class:`Record` and :func:`measure`.
    """

    def main(arguments: list[str] | None = None) -> int:
        options = parser(description, repeats=repeats).parse_args(arguments)
        record = Record(options.json, conditions(), [case.name for case in cases], summarize)
        return measure(select(cases, options.only), record, options, lambda case: measured(case, options), described)

    return main


def chunks(cases: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (cases[start : start + size] for start in range(0, len(cases), size))
