"""Stores of computed tiles, on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.computed_kernels import BODIES, COMPUTED, HEAD, ROUNDED, SIZES, TYPES, Case, Values
from tests.emulator.generated import Runs, build
from tests.emulator.module import Machine
from tests.nightly import some

NAMES = {form: f"store_{number}" for number, form in enumerate(BODIES)}


def check(kernels: Runs, form: str, out: str, view: Callable[[Values], Values] = np.copy) -> None:
    """Launches a form for each size of C, which may be a view of another array."""
    for size in SIZES:
        a, b, c, expected = Case(form, out, size).arrays()
        found = kernels.run(form, (2, 2), [a, b, view(c), 1])["C"]
        assert np.array_equal(found, expected[:, : found.shape[1]]), (form, size)


@pytest.mark.slow
@pytest.mark.parametrize("out", some(TYPES, 2))
def test_forms(machine: Machine, tmp_path: Path, out: str) -> None:
    texts = (Case(form, out, "whole").text(name) for form, name in NAMES.items())
    built = build(machine, tmp_path / "m", Case("", out, "").functions() + "".join(texts), names=NAMES)
    assert built.source.count("wt_module::store_computed<") == sum(COMPUTED.values())
    for form in BODIES:
        check(built, form, out)


@pytest.mark.slow
def test_strided_outputs(machine: Machine, tmp_path: Path) -> None:
    """C has every second column of an array, or begins or ends in the middle of a vector while its rows are aligned."""
    case = Case("direct", "float16", "whole")
    built = build(machine, tmp_path / "m", case.functions() + case.text("direct"))
    check(built, "direct", "float16", lambda c: np.tile(c, 2)[:, ::2])
    check(built, "direct", "float16", lambda c: np.tile(c, 2)[:, 1 : c.shape[1] + 1])
    check(built, "direct", "float16", lambda c: c[:, :-3])


VIEWS = (
    HEAD.format(name="views", out="float16")
    + """
    column = wp.tile_view(c, offset=(0, 1), shape=(32, 16))
    wp.tile_store(C, wp.tile_astype(column, dtype=wp.float16), offset=(0, 0))
    wp.tile_store(C, wp.tile_astype(wp.tile_transpose(c), dtype=wp.float16), offset=(0, 32))
"""
)


@pytest.mark.slow
def test_views_of_tiles(machine: Machine, tmp_path: Path) -> None:
    """A view that begins in the middle of a vector, and one whose rows are the tile's columns."""
    built = build(machine, tmp_path / "m", VIEWS)
    assert built.source.count("wt_module::store_computed<") == 2
    a, b, c, product = Case("direct", "float16", "whole").arrays()
    arrays = built.run("views", (1, 1), [a, b, c, 1])
    assert np.array_equal(arrays["C"][:32, :16], product[:32, 1:17])
    assert np.array_equal(arrays["C"][:32, 32:], product[:32, :32].T)


TILES = """
@wp.func
def pair(x: wp.float32):
    return wp.vec2(x, 1.0)

@wp.func
def triple(x: wp.float32):
    return wp.vec3(x, 1.0, 2.0)

@wp.kernel(enable_backward=False)
def tiles(
    A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32),
    V: wp.array2d(dtype=wp.vec2), W: wp.array2d(dtype=wp.vec3), X: wp.array2d(dtype=wp.float16),
    Y: wp.array1d(dtype=wp.float32),
):
    a = wp.tile_load(A, shape=(32, 16), storage="shared")
    b = wp.tile_load(B, shape=(16, 32), storage="shared")
    c = wp.tile_matmul(a, b)
    wp.tile_store(V, wp.tile_map(pair, c) * 2.0 + wp.tile_map(pair, c))
    wp.tile_store(W, c * (wp.tile_map(triple, c) * 2.0))
    twelve = wp.tile_view(c, offset=(0, 4), shape=(32, 12))
    wp.tile_store(X, wp.tile_astype(twelve + twelve, dtype=wp.float16))
    row = wp.tile_load(A[1], shape=16, storage="shared")
    wp.tile_store(Y, -(row + row))
"""


@pytest.mark.slow
def test_elements_and_shapes(machine: Machine, tmp_path: Path) -> None:
    """Elements are vectors of two or three numbers. A row has no whole number of vectors. A tile has one dimension."""
    built = build(machine, tmp_path / "m", TILES)
    assert built.source.count("wt_module::store_computed<") == 4
    a, b, _, product = Case("direct", "float32", "whole").arrays()
    product = a[:32, :16] @ b[:16, :32]
    v, w = np.zeros((32, 32), "f4,f4"), np.zeros((32, 32), "f4,f4,f4")
    x, y = np.zeros((32, 12), np.float16), np.zeros(16, np.float32)
    arrays = built.run("tiles", (1,), [a, b, v, w, x, y])
    for name, factors in (("V", (3 * product, 3)), ("W", (2 * product * product, 2 * product, 4 * product))):
        for field, expected in zip(arrays[name].dtype.names, factors):
            assert np.all(arrays[name][field] == expected), (name, field)
    assert np.array_equal(arrays["X"], 2 * product[:, 4:16])
    assert np.array_equal(arrays["Y"], -2 * a[1, :16])


@pytest.mark.slow
def test_each_operation_rounds_to_its_type(machine: Machine, tmp_path: Path) -> None:
    built = build(machine, tmp_path / "m", ROUNDED)
    assert built.source.count("wt_module::store_computed<") == 1
    a, b, c, product = Case("direct", "float16", "whole").arrays()
    arrays = built.run("rounded", (2, 2), [a, b, c, 1])
    product = (a @ b).astype(np.float32)
    accumulators = (product + np.tile(a[0, :32], 2)) * np.float32(0.3) - product / np.float32(7.0)
    halves = accumulators.astype(np.float16)
    assert np.array_equal(arrays["C"], halves * np.float16(0.7) + halves)
