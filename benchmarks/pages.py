"""Fills the measured tables and values of README.md, docs/ and CONTRIBUTING.md from the results of the benchmarks.

    python -m benchmarks.pages          # write what differs from the results
    python -m benchmarks.pages --check  # only name the pages that differ; the exit status is then 1

A page marks what is filled in: ``<!--=NAME-->text<!--/-->`` in a sentence, with the marks on lines of their own around
a table. A NAME with slashes is a value of a result and its format, for example
``mutations/killed`` (:func:`benchmarks.result_values.shown`). :mod:`benchmarks.page_values` computes
the others.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.page_values import values
from benchmarks.result_values import shown

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md")
MARK = re.compile(r"<!--=([^>]+?)-->(.*?)<!--/-->", re.DOTALL)


def pages() -> Iterator[Path]:
    """The pages with marks."""
    for pattern in PAGES:
        yield from sorted(path for path in ROOT.glob(pattern) if MARK.search(path.read_text("utf-8")))


def filled(text: str, found: dict[str, str]) -> str:
    """A page with the measured values in place of those that it has.

    Raises:
        LookupError: The page marks a name that no result has.
    """

    def value(mark: re.Match[str]) -> str:
        return f"<!--={mark[1]}-->{shown(mark[1]) if '/' in mark[1] else found[mark[1]]}<!--/-->"

    return MARK.sub(value, text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a page differs")
    check, found, differ = parser.parse_args(arguments).check, values(), False
    for path in pages():
        text = path.read_text("utf-8")
        if (new := filled(text, found)) != text:
            differ = True
            print(path.relative_to(ROOT))
            if not check:
                path.write_text(new, "utf-8")
    return int(check and differ)


if __name__ == "__main__":
    sys.exit(main())
