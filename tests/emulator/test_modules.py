"""Whole generated modules on the emulator: results are exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.emulator.generated import Kernels, build
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.mixed_tiles import mixed_tiles
from tests.nightly import some
from warp_tiles.compile.toolchain import ToolchainStore
from warp_tiles.errors import ToolchainError

pytestmark = pytest.mark.slow  # the emulator compiles for seconds

LOOP = """
@wp.kernel
def {name}(A: wp.array2d(dtype=wp.{dtype}), B: wp.array2d(dtype=wp.{dtype}), C: wp.array2d(dtype=wp.{accumulators})):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.{accumulators}, storage="shared")
    for step in range((A.shape[1] + 31) // 32):
        a = wp.tile_load(A, shape=(64, 32), offset=(i * 64, step * 32), storage="shared")
        b = wp.tile_load(B, shape=(32, 64), offset=(step * 32, j * 64), storage="shared")
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c, offset=(i * 64, j * 64))
"""
TWO_PRODUCTS = """
@wp.kernel
def two_products(
    A: wp.array2d(dtype=wp.float32),
    B: wp.array2d(dtype=wp.float32),
    E: wp.array2d(dtype=wp.float32),
    factor: wp.float32,
    C: wp.array2d(dtype=wp.float32),
):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    for step in range(A.shape[1] // 32):
        a = wp.tile_load(A, shape=(64, 32), offset=(i * 64, step * 32), storage="shared")
        b = wp.tile_load(B, shape=(32, 64), offset=(step * 32, j * 64), storage="shared")
        wp.tile_matmul(a, b, c)
    e = wp.tile_load(E, shape=(64, 64), storage="shared")
    d = wp.tile_matmul(c, e)
    wp.tile_store(C, d * factor, offset=(i * 64, j * 64))
"""
# NumPy dtypes of A and B; bfloat16 arrays hold the bits
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "float64": np.float64}


def loop(dtype: str, name: str = "") -> str:
    """Text of a kernel that multiplies matrices of a dtype."""
    return LOOP.format(
        name=name or f"loop_{dtype}", dtype=dtype, accumulators="float64" if dtype == "float64" else "float32"
    )


KERNELS = "".join(map(loop, DTYPES)) + TWO_PRODUCTS


@pytest.fixture(scope="module", params=some([64, 128], 1))
def kernels(request: pytest.FixtureRequest, machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return build(machine, tmp_path_factory.mktemp("generated"), KERNELS, request.param, main_loop="double_buffered")


def integers(seed: int, *shape: int, dtype: str = "float32", largest: int = 3) -> Values:
    """Small integers without zeros, whose sums of products are exact."""
    random = np.random.default_rng(seed)
    values = random.integers(1, largest + 1, shape) * random.choice([-1, 1], shape)
    if dtype == "bfloat16":
        return np.asarray(values.astype(np.float32).view(np.uint32) >> 16, dtype=np.uint16)
    return np.asarray(values, dtype=DTYPES[dtype])


def wide(values: Values) -> Values:
    if values.dtype == np.uint16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(values, dtype=np.float64)


def unset(rows: int, columns: int, dtype: str = "") -> Values:
    return np.full((rows, columns), np.nan, dtype=np.float64 if dtype == "float64" else np.float32)


def exact(*factors: Values) -> Values:
    product = wide(factors[0])
    for factor in factors[1:]:
        product = np.asarray(product @ wide(factor))
    return product


def multiply(kernels: Kernels, dtype: str, a: Values, b: Values) -> Values:
    """Launch the loop of a dtype. Returns the product."""
    c = unset(a.shape[0], b.shape[1], dtype)
    dim = (-(-a.shape[0] // 64), -(-b.shape[1] // 64))
    arrays = kernels.emulated.run(getattr(kernels.module, f"loop_{dtype}"), dim, [a, b, c])
    return arrays["C"]


# ---- results


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pipelined_loop(kernels: Kernels, dtype: str) -> None:
    assert "wt_module::PipelineState wt_state_" in kernels.source
    a, b = integers(1, 128, 96, dtype=dtype), integers(2, 96, 64, dtype=dtype)
    assert np.array_equal(multiply(kernels, dtype, a, b), exact(a, b))


def test_a_loop_of_one_iteration_and_of_none(kernels: Kernels) -> None:
    a, b = integers(1, 64, 32), integers(2, 32, 64)
    assert np.array_equal(multiply(kernels, "float32", a, b), exact(a, b))
    assert not multiply(kernels, "float32", a[:, :0], b[:0]).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(127, 96, 96), (70, 80, 100), (64, 65, 64)], ids=str)
def test_tiles_beyond_an_array_are_filled_with_zeros(kernels: Kernels, dtype: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b = integers(1, m, k, dtype=dtype), integers(2, k, n, dtype=dtype)
    assert np.array_equal(multiply(kernels, dtype, a, b), exact(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_unaligned_views(kernels: Kernels, dtype: str) -> None:
    # A has aligned strides but an unaligned start; rows of B have any alignment
    a, b = integers(1, 64, 104, dtype=dtype)[:, 2:98], integers(2, 97, 67, dtype=dtype)[1:, 1:65]
    assert np.array_equal(multiply(kernels, dtype, a, b), exact(a, b))


def test_two_products_and_a_scalar_factor(kernels: Kernels) -> None:
    a, b, e, c = integers(1, 64, 64), integers(2, 64, 64), integers(3, 64, 64), unset(64, 64)
    arrays = kernels.emulated.run(kernels.module.two_products, (1, 1), [a, b, e, 0.5, c])
    assert np.array_equal(arrays["C"], 0.5 * exact(a, b, e))


def check_gradients(kernels: Kernels, dtype: str, sizes: tuple[int, int, int]) -> None:
    """Launch the adjoint and check the gradients. Accumulators stay below 256, so they are exact in bfloat16."""
    m, k, n = sizes
    a, b = integers(1, m, k, dtype=dtype, largest=1), integers(2, k, n, dtype=dtype, largest=1)
    adj_c = integers(4, m, n, largest=1).astype(unset(1, 1, dtype).dtype)
    adj_a, adj_b = integers(5, m, k, dtype=dtype), integers(6, k, n, dtype=dtype)
    kernel = getattr(kernels.module, f"loop_{dtype}")
    dim = (-(-m // 64), -(-n // 64))
    results = kernels.emulated.run(kernel, dim, [a, b, unset(m, n, dtype)], [adj_a, adj_b, adj_c])
    assert np.array_equal(wide(results["adj_A"]), wide(adj_a) + exact(adj_c, b.T))
    assert np.array_equal(wide(results["adj_B"]), wide(adj_b) + exact(a.T, adj_c))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(128, 64, 128), (70, 48, 100)], ids=str)
def test_gradients(kernels: Kernels, dtype: str, sizes: tuple[int, int, int]) -> None:
    check_gradients(kernels, dtype, sizes)


def test_mixed_tiles_in_a_loop(machine: Machine, tmp_path: Path) -> None:
    kernels = build(machine, tmp_path, mixed_tiles(enable_backward=False), 128)
    a, b = integers(1, 128, 64), integers(2, 64, 128)
    outputs = [unset(128, 128), unset(2, 128)]
    arrays = kernels.emulated.run(kernels.module.mixed_tiles, (2, 2), [a, b, *outputs])
    assert np.array_equal(arrays["C"], exact(a, b))
    steps = b.reshape(2, 32, 2, 64)  # step, row, block, column
    accumulators = (steps[:, 0] * steps[..., :3].sum(axis=(1, 3))[..., None]).sum(axis=0).ravel()
    assert np.array_equal(arrays["D"], [accumulators, accumulators])


@pytest.mark.parametrize("arch", [75, 80, 120])
def test_other_architectures(machine: Machine, tmp_path: Path, arch: int) -> None:
    kernels = build(machine, tmp_path, loop("float16"), 64, arch)
    a, b = integers(1, 70, 80, dtype="float16"), integers(2, 80, 128, dtype="float16")
    assert np.array_equal(multiply(kernels, "float16", a, b), exact(a, b))
    check_gradients(kernels, "float16", (128, 64, 70))


# ---- functions in the module's source

IN_SOURCE = """
@wp.kernel
def products(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    c = wp.tile_zeros(shape=(32, 32), dtype=wp.float32)
    for step in range(A.shape[1] // 32):
        a = wp.tile_load(A, shape=(32, 32), offset=(0, step * 32))
        b = wp.tile_load(B, shape=(32, 32), offset=(step * 32, 0))
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c)

@wp.kernel
def square(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    a = wp.tile_load(A, shape=(32, 32), storage="shared")
    wp.tile_store(C, wp.tile_matmul(a, a))

@wp.kernel
def solves(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    factor = wp.tile_cholesky(wp.tile_load(A, shape=(32, 32)))
    b = wp.tile_load(B, shape=(32, 32))
    y = wp.tile_cholesky_solve(factor, b)
    z = wp.tile_lower_solve(factor, b)
    wp.tile_store(C, z + y * wp.tile_upper_solve(factor, y))
"""


def test_functions_in_the_source_compute_the_same(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(store: ToolchainStore) -> None:
        raise ToolchainError("NVRTC was not found")

    settings = {"main_loop": "double_buffered", "solver_gradients": "own"}
    linked = build(machine, tmp_path / "linked", IN_SOURCE, **settings)
    monkeypatch.setattr(ToolchainStore, "toolchain", missing)
    in_source = build(machine, tmp_path / "in_source", IN_SOURCE, **settings)
    for call in ("wt::block_gemm<", "wt::block_gemm_add<", "wt::solver::Cholesky<", "WP_TILE_SYNC(); wt_gemm"):
        assert call in in_source.source
    assert "wt::block_gemm" not in linked.source
    a, b = integers(1, 32, 96), integers(2, 96, 32)
    symmetric = np.asarray(a[:, :32] + a[:, :32].T + 200 * np.eye(32), dtype=np.float32)
    for name, left in {"products": a, "square": a[:, :32].copy(), "solves": symmetric}.items():
        right = b if name == "products" else b[:32].copy()
        results = []
        for kernels in (linked, in_source):
            kernel, arrays = getattr(kernels.module, name), [left, right, unset(32, 32)]
            gradients = [np.zeros_like(left), np.zeros_like(right), integers(3, 32, 32)]
            outcomes = [
                kernels.emulated.forward(kernel, (1,), arrays),
                kernels.emulated.backward(kernel, (1,), arrays, gradients),
            ]
            assert [outcome.error for outcome in outcomes] == ["", ""], name
            results.append([outcome.arrays for outcome in outcomes])
        for expected, found in zip(*results):
            assert expected.keys() == found.keys()
            for array, values in expected.items():
                np.testing.assert_array_equal(found[array], values, err_msg=f"{array} of {name}")
        assert np.isfinite(results[0][0]["C"]).all()
        assert results[0][1]["adj_A"].any()
