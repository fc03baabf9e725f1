"""Nsight Compute's output becomes rows of benchmarks/counters.py. Needs no GPU and no profiler."""

from __future__ import annotations

import pytest

from benchmarks import counters, loops, matmul

COLUMNS = ["ID", "Kernel Name", *counters.METRICS.values(), *counters.STALLS.values()]


def line(number: object, kernel: str, value: str) -> str:
    """A line of ncu's table, with one value in every column of a metric."""
    return ",".join(f'"{cell}"' for cell in (number, kernel, *[value] * (len(COLUMNS) - 2)))


def output(*kernels: tuple[str, str], names: tuple[str, ...]) -> str:
    """What ncu and the script print: kernels with their values, behind the names of calls."""
    table = [",".join(f'"{column}"' for column in COLUMNS), line("", "", "unit")]
    table += [line(number, kernel, value) for number, (kernel, value) in enumerate(kernels)]
    return "\n".join(["==PROF== Connected", *(f"counting: {name}" for name in names), *table])


def test_kernels_belong_to_the_call_before_them() -> None:
    text = output(
        ("separator_1", "1"), ("gemm", "2000"), ("separator_1", "1"), ("one", "1,234,000"), ("two", "3000.5"),
        names=("a", "b"),
    )  # fmt: skip
    rows = counters.rows_of(text)
    assert [(row["name"], row["kernel"], row["time_us"]) for row in rows] == [
        ("a", "gemm", 2.0),
        ("b", "one", 1234.0),
        ("b, kernel 2", "two", 3.0),
    ]
    assert rows[0]["stalls"]["barrier"] == 2000.0


@pytest.mark.parametrize("name", [*counters.LOOPS, *counters.PRODUCTS])
def test_each_name_is_a_row_of_a_benchmark(name: str) -> None:
    assert name in {row.name for row in (*loops.ROWS, *matmul.ROWS)}
