"""Loops whose tiles stay in registers between their products, on the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.chain_forms import FORMS, THREADS, Form
from tests.emulator.generated import Runs, build
from tests.emulator.module import Machine

pytestmark = pytest.mark.slow  # the emulator compiles for seconds


def check(ours: Runs, warps: Runs, form: Form) -> None:
    """Compares results with NumPy's, and the sums of the softmax with Warp's in all bits."""
    found, stock = (kernels.run("attend", (form.blocks,), form.arguments()) for kernels in (ours, warps))
    expected, sums = form.results()
    assert np.allclose(found["O"], expected, rtol=2e-3, atol=2e-3)
    assert np.allclose(found["L"][0], sums, rtol=1e-5)
    assert np.array_equal(found["L"].view(np.uint32), stock["L"].view(np.uint32))


@pytest.mark.parametrize("name", FORMS)
def test_results(machine: Machine, tmp_path: Path, name: str) -> None:
    form = FORMS[name]
    ours = build(machine, tmp_path / "ours", form.text, THREADS)
    warps = build(machine, tmp_path / "warps", form.text, THREADS, async_copies=False)
    assert bool(ours.source.count("wt_module::multiply_chain<")) == (not form.code)
    check(ours, warps, form)
