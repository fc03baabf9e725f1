"""The runner of all benchmarks: cases, their sides, and alternating repeats.

A case has a name and is measured as a row of JSON values. A file of results has ``runs``, the conditions of each
command, and ``rows``, each with the number of its run. It is written after each row, and keeps the rows that are not
measured again. ``--only`` selects rows by name, ``--missing`` those that the file lacks for these sources.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

ROOT = Path(__file__).resolve().parent.parent
BUILDS = ROOT / "build" / "benchmarks"
DEVICE = "cuda:0"
Row = dict[str, Any]
T = TypeVar("T")
_CONDITIONS = ("sources", "gpu", "torch", "before")  # by which rows are told apart


class Case(Protocol):
    """What a row measures."""

    @property
    def name(self) -> str:
        """Its name in results, which is unique."""


C = TypeVar("C", bound=Case)


class WrongResultError(Exception):
    """Two sides compute different results."""


# ---- the command line


def _parser(
    description: str | None, own: Mapping[str, Mapping[str, Any]], repeats: int, required: bool, builds: bool
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=required, help="results; rows that are not run are kept")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="patterns or beginnings of row names")
    parser.add_argument("--missing", action="store_true", help="leave out rows that the file has for these sources")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no row after this time")
    if repeats:
        parser.add_argument("--repeats", type=int, default=repeats, help="of each side")
    if builds:
        parser.add_argument(
            "--builds", type=Path, default=ROOT / "build" / "benchmarks", help="folder of finished builds"
        )
        parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="compiler processes")
        parser.add_argument("--build-only", action="store_true", help="fill the folder of builds; needs no GPU")
    for name, keywords in own.items():
        parser.add_argument(name, **keywords)
    return parser


def is_wanted(name: str, only: Sequence[str]) -> bool:
    """True if a name matches a pattern of ``--only``, or begins with one."""
    return any(fnmatch.fnmatchcase(name, pattern) or name.startswith(pattern) for pattern in only)


def select(cases: Iterable[C], only: Sequence[str]) -> list[C]:
    return [case for case in cases if is_wanted(case.name, only)]


# ---- sides and repeats


def alternately(
    sides: Mapping[str, Callable[[], T]], repeats: int, most: Mapping[str, int] | None = None
) -> dict[str, list[T]]:
    """The results of calls that alternate, so that a slow phase of the machine affects all sides.

    Args:
        sides: The calls. Every second repeat has the opposite order.
        repeats: Calls of each side.
        most: Fewer repeats of some sides.
    """
    found: dict[str, list[T]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name in list(sides)[:: -1 if repeat % 2 else 1]:
            if repeat < (most or {}).get(name, repeats):
                found[name].append(sides[name]())
    return found


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


# ---- a benchmark


def command(
    description: str | None,
    cases: Sequence[C] | Callable[[argparse.Namespace], Sequence[C]],
    measured: Callable[[C, argparse.Namespace], Row | None],
    conditions: Callable[[argparse.Namespace], Row],
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    repeats: int = 0,
    required: bool = False,
    builds: Callable[[C, argparse.Namespace], Iterable[Any]] | None = None,
    gpu: bool = False,
    summarize: Callable[[list[Row]], Row] = lambda rows: {},
    described: Callable[[Row], str] = json.dumps,
    is_bad: Callable[[Row], bool] = lambda row: False,
) -> Callable[..., int]:
    """The entry point of a benchmark, which measures cases one by one, and keeps and prints each row.

    Its status is 1 if a result is wrong or bad, 2 if the GPU is unusable, else 0.

    Args:
        description: The text of its help.
        cases: All cases, or what gives them for the options.
        measured: Returns the row of a case, or None if it has none. A :class:`WrongResultError` is a row, too.
        conditions: Returns the conditions of a run, and prepares it. ``options.stack`` is closed at its end.
        options: The benchmark's own options: keywords of ``add_argument`` by name.
        repeats: The default of ``--repeats``; 0 if it has no such option.
        required: True if it has to write a file.
        builds: Returns each :class:`benchmarks.speed.builds.Build` of a case. Processes build them into
            ``options.store`` before cases are measured.
        gpu: True to raise the clock of the GPU before, and to end if a case leaves the GPU unusable.
        summarize: See :class:`Record`.
        described: The words about a row on the terminal.
        is_bad: True if a row is kept and makes the run fail.
    """

    def main(arguments: Sequence[str] | None = None) -> int:
        given = _parser(description, options or {}, repeats, required, builds is not None).parse_args(arguments)
        every = cases(given) if callable(cases) else cases
        wanted, status = select(every, given.only), 0
        if builds:
            _build(wanted, builds, given)
            if given.build_only:
                return 0
        with contextlib.ExitStack() as given.stack:
            record = Record(given.json, conditions(given), [case.name for case in every], summarize)
            if gpu:
                timing().warm_up()
            until = time.monotonic() + given.seconds
            for case in wanted:
                if given.missing and record.has(case.name):
                    continue
                if time.monotonic() > until:
                    print("out of time; --missing measures the rest", file=sys.stderr)
                    break
                try:
                    if (found := measured(case, given)) is not None:
                        row = record.put({"name": case.name, **found})
                        print(f"{case.name}: {described(row)}", flush=True)
                        status |= is_bad(row)
                except WrongResultError as error:
                    record.put({"name": case.name, "wrong": str(error)})
                    print(f"{case.name}: WRONG RESULT: {error}", file=sys.stderr, flush=True)
                    status = 1
                if gpu and not timing().is_usable():
                    print(f"{case.name} left the GPU unusable; --missing continues after it", file=sys.stderr)
                    return 2
        return status

    return main


def timing() -> Any:
    """:mod:`benchmarks.speed.timing`, which imports Warp."""
    return importlib.import_module("benchmarks.speed.timing")


def _build(cases: Sequence[C], builds: Callable[[C, Any], Iterable[Any]], given: argparse.Namespace) -> None:
    from benchmarks.speed.builds import BuildStore

    given.store = BuildStore(given.builds)
    given.store.fill([one for case in cases for one in builds(case, given)], given.workers)
