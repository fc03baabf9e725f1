"""Loads into the stages of a loop on the emulator: strides, alignments, offsets and edges of the arrays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.generated import Kernels, build
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.emulator.test_loads import padded, strided
from tests.staged_cases import HEADER, Case

ARGUMENTS = "A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32)"
# columns of A begin in the middle of a vector
SHIFTED = f"""
@wp.kernel(enable_backward=False)
def shifted({ARGUMENTS}):
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    for s in range(B.shape[0] // 32):
        a = wp.tile_load(A, shape=(64, 32), offset=(0, s * 32 + 4), storage="shared")
        b = wp.tile_load(B, shape=(32, 64), offset=(s * 32, 0), storage="shared")
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c)
"""
# columns of A begin between two words
ODD = SHIFTED.replace("shifted", "odd").replace("s * 32 + 4", "s * 32 + 5")
# the stages of the second loop lie where other threads may still read those of the first one
TWO_LOOPS = f"""
@wp.kernel(enable_backward=False)
def two_loops({ARGUMENTS}):
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    for s in range(A.shape[1] // 32):
        a = wp.tile_load(A, shape=(64, 32), offset=(0, s * 32), storage="shared")
        b = wp.tile_load(B, shape=(32, 64), offset=(s * 32, 0), storage="shared")
        wp.tile_matmul(a, b, c)
    for t in range(A.shape[1] // 32):
        d = wp.tile_load(A, shape=(64, 32), offset=(0, t * 32), storage="shared")
        e = wp.tile_load(B, shape=(32, 64), offset=(t * 32, 0), storage="shared")
        wp.tile_matmul(d, e, c)
    wp.tile_store(C, c)
"""
# Stages lie where two tiles were read. The first tile leaves them at an address that is no multiple of 1024.
AFTER_STORES = """
@wp.kernel(enable_backward=False)
def after_stores(
    A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), E: wp.array2d(dtype=wp.float32),
    D: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32),
):
    small = wp.tile_load(E, shape=(5, 20), storage="shared")
    large = wp.tile_load(E, shape=(64, 64), storage="shared")
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    wp.tile_store(D, small, offset=(64, 0))
    wp.tile_store(D, large)
    for s in range(A.shape[1] // 32):
        a = wp.tile_load(A, shape=(64, 32), offset=(0, s * 32), storage="shared")
        b = wp.tile_load(B, shape=(32, 64), offset=(s * 32, 0), storage="shared")
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c)
"""
# The stages of the next outer iteration lie in C, which other threads may still store.
OUTER_LOOP = f"""
@wp.kernel(enable_backward=False)
def outer_loop({ARGUMENTS}):
    for i in range(A.shape[0] // 64):
        c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
        for s in range(A.shape[1] // 32):
            a = wp.tile_load(A, shape=(64, 32), offset=(i * 64, s * 32), storage="shared")
            b = wp.tile_load(B, shape=(32, 64), offset=(s * 32, 0), storage="shared")
            wp.tile_matmul(a, b, c)
        wp.tile_store(C, c, offset=(i * 64, 0))
"""
COMMON = Case(64, 64, 32, 64, 64, 160)


@pytest.fixture(scope="module", params=["auto", "mma"])
def kernels(request: pytest.FixtureRequest, machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    text = HEADER + COMMON.text("common") + SHIFTED + ODD + TWO_LOOPS + AFTER_STORES + OUTER_LOOP
    found = build(machine, tmp_path_factory.mktemp("buffers") / "m", text, 128, main_loop=request.param)
    assert found.source.count("wt_module::Ring<") >= 7
    return found


def halves(seed: int, rows: int, columns: int) -> Values:
    return np.random.default_rng(seed).integers(-3, 4, (rows, columns)).astype(np.float16)


def check(kernels: Kernels, name: str, a: Values, b: Values, expected: Values) -> None:
    """Launch a kernel and compare C."""
    c = padded(np.full(expected.shape, np.nan, dtype=np.float32))
    unread = [np.zeros_like(expected)] if name == "common" else []  # E
    arrays = kernels.emulated.run(getattr(kernels.module, name), (1, 1), [a, b, *unread, c])
    assert np.array_equal(arrays["C"], expected)


def product(a: Values, b: Values) -> Values:
    return a.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.parametrize("view", [strided, padded, np.asfortranarray], ids=["strided", "padded", "transposed"])
@pytest.mark.parametrize("rows", [64, 40])
def test_strided_and_unaligned_arrays(kernels: Kernels, view: object, rows: int) -> None:
    a, b = halves(1, rows, 160), halves(2, 160, 64)
    check(kernels, "common", view(a), view(b), product(a, b))


def test_an_unaligned_array_with_aligned_rows(kernels: Kernels) -> None:
    a, b = halves(1, 64, 168)[:, 1:161], halves(2, 160, 72)[:, 3:67]
    check(kernels, "common", a, b, product(a, b))


@pytest.mark.parametrize("sizes", [(40, 160, 64), (64, 160, 40), (5, 160, 3), (63, 160, 61)], ids=str)
def test_arrays_smaller_than_a_tile(kernels: Kernels, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b = halves(1, m, k), halves(2, k, n)
    check(kernels, "common", a, b, product(a, b))


@pytest.mark.parametrize(("name", "first"), [("shifted", 4), ("odd", 5)])
@pytest.mark.parametrize("left", [4, 0, 12], ids=str)
def test_offsets_between_vectors(kernels: Kernels, name: str, first: int, left: int) -> None:
    """A has columns up to the last tile's end and a few more, or ends inside that tile."""
    a, b = halves(1, 64, 96 + left), halves(2, 96, 64)
    wide = np.zeros((64, 96 + first), dtype=np.float16)
    wide[:, : 96 + left] = a[:, : 96 + first]
    check(kernels, name, a, b, product(wide[:, first:], b))


def test_columns_that_end_inside_a_vector(kernels: Kernels) -> None:
    """Rows are aligned, and longer than the array. Its last vectors must not be read whole."""
    a, b = halves(1, 64, 63), halves(2, 63, 63)
    views = []
    for values in (a, b):
        wide = np.full((values.shape[0], -(-values.shape[1] // 8) * 8), np.nan, dtype=np.float16)
        wide[:, : values.shape[1]] = values
        views.append(wide[:, : values.shape[1]])
    check(kernels, "common", *views, product(a, b))


def test_stages_after_other_tiles(kernels: Kernels) -> None:
    a, b = halves(1, 64, 96), halves(2, 96, 64)
    e, d = halves(3, 64, 64).astype(np.float32), padded(np.full((69, 64), np.nan, dtype=np.float32))
    c = np.full((64, 64), np.nan, dtype=np.float32)
    arrays = kernels.emulated.run(kernels.module.after_stores, (1, 1), [a, b, e, d, c])
    assert np.array_equal(arrays["C"], product(a, b))
    assert np.array_equal(arrays["D"][:64], e)
    assert np.array_equal(arrays["D"][64:, :20], e[:5, :20])


def test_stages_in_memory_that_was_read(kernels: Kernels) -> None:
    a, b = halves(1, 64, 96), halves(2, 96, 64)
    check(kernels, "two_loops", a, b, 2 * product(a, b))


def test_stages_in_c_of_the_iteration_before(kernels: Kernels) -> None:
    a, b = halves(1, 192, 96), halves(2, 96, 64)
    check(kernels, "outer_loop", a, b, product(a, b))
