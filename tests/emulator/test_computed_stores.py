"""Stores of computed tiles, on the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import warp_tiles
from tests.computed_kernels import BODIES, COMPUTED, HEAD, SIZES, TYPES, Case
from tests.emulator.generated import EmulatedKernels, generate
from tests.emulator.module import Machine
from tests.integration.helpers import WARP_VERSION, load

pytestmark = pytest.mark.skipif(WARP_VERSION < (1, 19), reason="headers and launches of Warp 1.19 are emulated")


@pytest.mark.parametrize("out", TYPES)
def test_forms(machine: Machine, tmp_path: Path, out: str) -> None:
    names = {form: f"store_{number}" for number, form in enumerate(BODIES)}
    module = load(
        Case("", out, "").functions() + "".join(Case(form, out, "whole").text(names[form]) for form in BODIES),
        block_dim=64,
    )
    with warp_tiles.enabled():
        generated = generate(module, tmp_path / "m", 90, 64)
    assert generated.source.count("wt_module::store_computed(") == sum(COMPUTED.values())
    emulated = EmulatedKernels(machine, generated)
    for form in BODIES:
        for size in SIZES:
            a, b, c, expected = Case(form, out, size).arrays()
            outcome = emulated.forward(getattr(module, names[form]), (2, 2), [a, b, c, 1])
            assert outcome.error == "", (form, size)
            assert np.array_equal(outcome.arrays["C"], expected), (form, size)


def test_strided_outputs(machine: Machine, tmp_path: Path) -> None:
    """C has every second column of an array, or begins or ends in the middle of a vector while its rows are aligned."""
    case = Case("direct", "float16", "whole")
    module = load(case.functions() + case.text("store"), block_dim=64)
    with warp_tiles.enabled():
        emulated = EmulatedKernels(machine, generate(module, tmp_path / "m", 90, 64))
    a, b, c, expected = case.arrays()
    rows, columns = c.shape
    for view in (np.tile(c, 2)[:, ::2], np.tile(c, 2)[:, 1 : columns + 1], c[:, : columns - 3]):
        assert view.shape[0] == rows
        outcome = emulated.forward(module.store, (2, 2), [a, b, view, 1])
        assert outcome.error == ""
        assert np.array_equal(outcome.arrays["C"], expected[:, : view.shape[1]])


VIEWS = (
    HEAD.format(name="views", out="float16")
    + """
    column = wp.tile_view(c, offset=(0, 1), shape=(32, 16))
    wp.tile_store(C, wp.tile_astype(column, dtype=wp.float16), offset=(0, 0))
    wp.tile_store(C, wp.tile_astype(wp.tile_transpose(c), dtype=wp.float16), offset=(0, 32))
"""
)


def test_views_of_tiles(machine: Machine, tmp_path: Path) -> None:
    """A view that begins in the middle of a vector, and one whose rows are the tile's columns."""
    module = load(VIEWS, block_dim=64)
    with warp_tiles.enabled():
        generated = generate(module, tmp_path / "m", 90, 64)
    assert generated.source.count("wt_module::store_computed(") == 2
    a, b, c, product = Case("direct", "float16", "whole").arrays()
    outcome = EmulatedKernels(machine, generated).forward(module.views, (1, 1), [a, b, c, 1])
    assert outcome.error == ""
    assert np.array_equal(outcome.arrays["C"][:32, :16], product[:32, 1:17])
    assert np.array_equal(outcome.arrays["C"][:32, 32:], product[:32, :32].T)
