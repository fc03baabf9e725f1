"""Means of speed ratios, and the one row on which a mean hangs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]
HANGS = 1.25  # leaving the row out changes the mean by at least this factor


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean; None if there are no values."""
    logarithms = [math.log(value) for value in values]
    return round(math.exp(sum(logarithms) / len(logarithms)), 3) if logarithms else None


def outlier(rows: Sequence[Row]) -> tuple[Row, float] | None:
    """The row on which the geometric mean of the ratios hangs, and the mean without it; None if it hangs on none.

    Args:
        rows: Rows of one dtype, some of which have a ``ratio``.
    """
    timed = [row for row in rows if "ratio" in row]
    mean = geometric_mean(row["ratio"] for row in timed)
    if mean is None or len(timed) < 3:
        return None
    without = [(row, geometric_mean(other["ratio"] for other in timed if other is not row)) for row in timed]
    factors = [(max(mean / rest, rest / mean), row, rest) for row, rest in without if rest]
    factor, row, rest = max(factors, key=lambda item: item[0])
    return (row, rest) if factor >= HANGS else None
