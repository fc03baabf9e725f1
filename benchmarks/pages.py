"""Fills the measured tables and values of README.md, docs/ and CONTRIBUTING.md from the results of the benchmarks.

    python -m benchmarks.pages          # write what differs from the results
    python -m benchmarks.pages --check  # only name the pages that differ; the exit status is then 1

A page marks what is filled in: ``<!--=NAME-->text<!--/-->`` in a sentence, with the marks on lines of their own around
a table. A NAME with slashes is a value of a result and its format, for example
``mutations/killed`` (:func:`benchmarks.result_values.shown`). Functions compute the others.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import client_values, tile_values
from benchmarks.result_values import at, shown, span, table

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md")
MARK = re.compile(r"<!--=([^>]+?)-->(.*?)<!--/-->", re.DOTALL)


def compile_times() -> dict[str, str]:
    sides = {row["name"]: row["sides"] for row in at("compile_time/rows")}
    # of one function that Warp builds, products and solvers
    built = [found["warp"] for found in sides.values() if "warp" in found]
    built = [found for found in built if found.get("lto_builds")]
    archs = [found for name, found in sides.items() if name.startswith("arch ")]
    one_kernel = [sides[name]["own"]["seconds"] for name in ("one", "forward", "cholesky", "solve", "blocked")]

    def architecture(name: str) -> list[str]:
        times, peers = ([one[side]["seconds"] for one in archs] for side in (name, "sm_90"))
        largest = max(time / peer for time, peer in zip(times, peers))
        return [name, f"{sum(times):.1f}", f"{sum(times) / sum(peers):.2f}", f"{largest:.2f}"]

    head = ["", "seconds, all modules", "ratio to sm_90", "largest ratio of a module"]
    return {
        "libmathdx seconds": span((found["seconds"] / found["lto_builds"] for found in built), ".0f"),
        "libmathdx megabytes": span((found["lto_bytes"] / found["lto_builds"] / 1e6 for found in built), ".0f"),
        "own seconds": span(one_kernel, ".0f"),
        "architectures": table(head, map(architecture, archs[0])),
    }


def loops() -> dict[str, str]:
    rows = [row for row in at("loops/rows") if {"tiles", "cublas"} <= row["us"].keys()]
    lines = [[row["name"], f"{row['tflops']['tiles']:.0f}", f"{row['to_cublas']:.2f}"] for row in rows]
    return {"loops": table(["operands, size, tile of C and step, threads, `main_loop`", "TFLOP/s", "of cuBLAS"], lines)}


def attention() -> dict[str, str]:
    """Ratios of whole attention, of the cells whose loop is pipelined."""
    rows = [row for row in at("attention/rows") if row["form"] == "attention"]
    rows = [row for row in rows if all(loop["state"] == "pipelined" for loop in row["treatment"])]
    return {
        "attention to Warp": span((row["to_warp"] for row in rows), ".0f"),
        "attention to SDPA": span((row["to_torch"] for row in rows), ".2f"),
    }


def own_tests() -> dict[str, str]:
    """How many of Warp's own tests pass with warp_tiles."""

    def passed(part: str, *words: str) -> str:
        counts = at(f"gpu_tests/{part}/counts").items()
        chosen = [outcomes for name, outcomes in counts if any(word in name for word in words)]
        return " of ".join(str(sum(one[side]["passed"] for one in chosen)) for side in ("with", "without"))

    return {
        "own tests": passed("warp_own_tests", "matmul", "mlp"),
        "own solver tests": passed("warp_own_solver_tests", ""),
    }


PARTS: tuple[Callable[[], dict[str, str]], ...] = (
    compile_times, loops, attention, own_tests, *client_values.PARTS, *tile_values.PARTS
)  # fmt: skip


def values() -> dict[str, str]:
    """Every computed name that a page may mark, with its text."""
    return {name: text for part in PARTS for name, text in part().items()}


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
