"""Loads of tiles and their adjoints on the emulator: arrays of all strides, tiles of odd sizes, views, gradients."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.generated import Kernels, build
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.emulator.test_modules import exact, integers, loop, unset

THREADS = 64
ARGUMENTS = "A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)"
# Each iteration waits for its own loads. D is unaligned, so the store reads single elements of a tile that the next
# iteration loads.
COPYING = """
@wp.kernel(enable_backward=False)
def copying(
    A: wp.array2d(dtype=wp.float32),
    B: wp.array2d(dtype=wp.float32),
    C: wp.array2d(dtype=wp.float32),
    D: wp.array2d(dtype=wp.float32),
):
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    for step in range(A.shape[1] // 32):
        a = wp.tile_load(A, shape=(64, 32), offset=(0, step * 32), storage="shared")
        b = wp.tile_load(B, shape=(32, 64), offset=(step * 32, 0), storage="shared")
        wp.tile_matmul(a, b, c)
        wp.tile_store(D, a, offset=(0, step * 32))
    wp.tile_store(C, c)
"""
# rows of 6 vectors, which 64 threads share unevenly, and rows of 36 bytes, which are no whole vectors
ODD = """
@wp.kernel
def {name}(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    c = wp.tile_zeros(shape=(40, 24), dtype=wp.float32, storage="shared")
    for step in range(A.shape[1] // {k}):
        a = wp.tile_load(A, shape=(40, {k}), offset=(0, step * {k}), storage="shared")
        b = wp.tile_load(B, shape=({k}, 24), offset=(step * {k}, 0), storage="shared")
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c)
"""
ALIGNED = f"""
@wp.kernel(enable_backward=False)
def aligned({ARGUMENTS}):
    c = wp.tile_zeros(shape=(32, 32), dtype=wp.float32, storage="shared")
    for step in range(A.shape[1] // 32):
        a = wp.tile_load(A, shape=(32, 32), offset=(0, step * 32), storage="shared", aligned=True)
        b = wp.tile_load(B, shape=(32, 32), offset=(step * 32, 0), storage="shared", aligned=True)
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c)
"""
KERNELS = (
    loop("float32") + loop("float16") + COPYING + ALIGNED
    + ODD.format(name="odd_vectors", k=24) + ODD.format(name="odd_bytes", k=9)
)  # fmt: skip


@pytest.fixture(scope="module")
def kernels(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return build(machine, tmp_path_factory.mktemp("loads"), KERNELS, THREADS)


def product(kernels: Kernels, name: str, a: Values, b: Values) -> Values:
    """Launch one block of a kernel that multiplies two arrays. Returns C."""
    arguments = [a, b, unset(a.shape[0], b.shape[1])]
    results = kernels.emulated.run(getattr(kernels.module, name), (1, 1), arguments)
    return results["C"]


def strided(values: Values) -> Values:
    """The values in every second column of a larger array."""
    return np.repeat(values, 2, axis=1)[:, ::2]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["every second column", "transposed"])
def test_strided_views(kernels: Kernels, dtype: str, layout: str) -> None:
    a, b = integers(1, 64, 96, dtype=dtype), integers(2, 96, 64, dtype=dtype)
    changed = strided if layout == "every second column" else np.asfortranarray
    assert np.array_equal(product(kernels, f"loop_{dtype}", changed(a), changed(b)), exact(a, b))


@pytest.mark.parametrize("sizes", [(60, 96, 64), (64, 16, 64), (64, 96, 40)], ids=str)
def test_tiles_larger_than_an_array(kernels: Kernels, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b = integers(1, m, k), integers(2, k, n)
    assert np.array_equal(product(kernels, "loop_float32", a, b), exact(a, b))


def test_a_loop_that_stores_its_operands(kernels: Kernels) -> None:
    a, b = integers(1, 64, 96), integers(2, 96, 64)
    arrays = kernels.emulated.run(kernels.module.copying, (1, 1), [a, b, unset(64, 64), unset(64, 97)[:, :96]])
    assert np.array_equal(arrays["C"], exact(a, b))
    assert np.array_equal(arrays["D"], a)


# the last statement of an iteration, or of a loop, reads elements of a tile that other threads load next
JUMPS = f"""
@wp.kernel(enable_backward=False)
def continues({ARGUMENTS}):
    c = wp.tile_load(C, shape=(32, 32), storage="shared")
    for k in range(0, A.shape[1], 16):
        a = wp.tile_load(A, shape=(32, 16), offset=(0, k), storage="shared")
        b = wp.tile_load(B, shape=(16, 32), offset=(k, 0), storage="shared")
        wp.tile_matmul(a, b, c)
        if a[31, 15] + a[0, 0] < 100.0:
            continue
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c)


@wp.kernel(enable_backward=False)
def breaks({ARGUMENTS}):
    c = wp.tile_load(C, shape=(32, 32), storage="shared")
    for k in range(0, A.shape[1], 16):
        a = wp.tile_load(A, shape=(32, 16), offset=(0, k), storage="shared")
        b = wp.tile_load(B, shape=(16, 32), offset=(k, 0), storage="shared")
        wp.tile_matmul(a, b, c)
        for _ in range(B.shape[1]):
            again = wp.tile_load(B, shape=(16, 32), offset=(k, 0), storage="shared")
            wp.tile_matmul(a, again, c)
            if a[31, 15] + a[0, 0] < 100.0:
                break
            wp.tile_matmul(a, again, c)
    wp.tile_store(C, c)


@wp.kernel(enable_backward=False)
def reads_in_a_condition({ARGUMENTS}):
    c = wp.tile_load(C, shape=(32, 32), storage="shared")
    for k in range(0, A.shape[1], 16):
        a = wp.tile_load(A, shape=(32, 16), offset=(0, k), storage="shared")
        b = wp.tile_load(B, shape=(16, 32), offset=(k, 0), storage="shared")
        wp.tile_matmul(a, b, c)
        turn = int(0)
        while wp.float32(turn) + 0.0 * a[turn % 32, 0] < 1.0:
            again = wp.tile_load(B, shape=(16, 32), offset=(k, 0), storage="shared")
            wp.tile_matmul(a, again, c)
            turn += 1
    wp.tile_store(C, c)
"""


@pytest.fixture(scope="module")
def jumping(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return build(machine, tmp_path_factory.mktemp("jumping"), JUMPS, THREADS)


@pytest.mark.parametrize(("name", "products"), [("continues", 1), ("breaks", 2), ("reads_in_a_condition", 2)])
def test_loads_wait_for_statements_before_jumps_and_in_conditions(jumping: Kernels, name: str, products: int) -> None:
    a, b, c = integers(1, 32, 64), integers(2, 64, 32), integers(3, 32, 32)
    arrays = jumping.emulated.run(getattr(jumping.module, name), (1, 1), [a, b, c])
    assert np.array_equal(arrays["C"], c + products * exact(a, b))


@pytest.mark.parametrize(("name", "k"), [("odd_vectors", 24), ("odd_bytes", 9)])
def test_tiles_that_threads_share_unevenly(kernels: Kernels, name: str, k: int) -> None:
    a, b = integers(1, 40, 4 * k), integers(2, 4 * k, 24)
    assert np.array_equal(product(kernels, name, a, b), exact(a, b))


def test_aligned_loads_are_checked(kernels: Kernels) -> None:
    a, b = integers(1, 32, 32), integers(2, 32, 32)
    assert np.array_equal(product(kernels, "aligned", a, b), exact(a, b))
    unaligned = integers(3, 32 * 32 + 1)[1:].reshape(32, 32)
    outcome = kernels.emulated.forward(kernels.module.aligned, (1, 1), [unaligned, b, unset(32, 32)])
    assert "aligned=True but global address not 16-byte aligned" in outcome.error


# ---- gradients


def padded(values: Values) -> Values:
    """The values in an array whose rows are not aligned."""
    rows, columns = values.shape
    wide = np.zeros((rows, columns + 1), dtype=values.dtype)
    wide[:, 1:] = values
    return wide[:, 1:]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_gradients_of_loops_of_any_length(kernels: Kernels, steps: int) -> None:
    """After an odd number of iterations the last tiles lie in the other buffers."""
    a, b, adj_c = integers(1, 64, 32 * steps), integers(2, 32 * steps, 64), integers(3, 64, 64)
    adj_a, adj_b = integers(4, *a.shape), integers(5, *b.shape)
    kernel = kernels.module.loop_float32
    arrays = kernels.emulated.run(kernel, (1, 1), [a, b, unset(64, 64)], [adj_a, adj_b, adj_c])
    assert np.array_equal(arrays["adj_A"], adj_a + exact(adj_c, b.T))
    assert np.array_equal(arrays["adj_B"], adj_b + exact(a.T, adj_c))


@pytest.mark.parametrize("aligned", [True, False], ids=["vectors", "elements"])
@pytest.mark.parametrize("passed_by", [("array",), ("launch",)], ids=" ".join)
def test_gradients_of_the_launch_or_of_the_array(kernels: Kernels, passed_by: tuple[str, ...], aligned: bool) -> None:
    a, b, adj_c = integers(1, 64, 64), integers(2, 64, 64), integers(3, 64, 64)
    if not aligned:
        a, b = padded(a), padded(b)
    adj_a = np.zeros_like(np.ascontiguousarray(a)) if aligned else padded(np.zeros_like(a))
    results = kernels.emulated.run(
        kernels.module.loop_float32, (1, 1), [a, b, unset(64, 64)], [adj_a, None, adj_c], passed_by
    )
    assert np.array_equal(results["adj_A"], exact(adj_c, b.T))
