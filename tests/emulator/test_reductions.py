"""Reductions of rows on the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import reductions
from tests.emulator.generated import Runs, build
from tests.emulator.module import Machine


def check(ours: Runs, warps: Runs, size: tuple[int, int]) -> None:
    """Compares all bits of our results with those of Warp's reductions."""
    found, expected = (kernels.run("reduce", (1,), reductions.arguments(*size))["R"] for kernels in (ours, warps))
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
    x = reductions.arguments(*size)[2]
    assert np.array_equal(found[1, : size[0]], x.max(1))
    assert np.allclose(found[0, : size[0]], x.sum(1), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "is_reduced"), reductions.SIZES.items(), ids=str)
def test_rows_are_reduced_in_warps_order(
    machine: Machine, tmp_path: Path, size: tuple[int, int], is_reduced: bool
) -> None:
    ours = build(machine, tmp_path / "ours", reductions.text(*size))
    warps = build(machine, tmp_path / "warps", reductions.text(*size), async_copies=False)
    counts = [kernels.source.count("= wt_module::reduce_rows(") for kernels in (ours, warps)]
    assert counts == [reductions.REDUCED if is_reduced else 0, 0]
    check(ours, warps, size)
