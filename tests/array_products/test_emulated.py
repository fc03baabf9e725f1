"""The device code of products, factorizations and solves on the emulator: results, races and bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

from tests.array_products.cases import PLAIN, integers
from tests.array_products.solve_cases import factor_of, matrices, read_triangle, spoiled
from tests.emulator.conftest import compiler, machine  # noqa: F401  fixtures
from tests.emulator.generated import EmulatedKernels, Generated, generate
from tests.emulator.module import Machine
from tests.integration.helpers import WARP_VERSION
from tests.nightly import some
from warp_tiles.array_products.kernels import Epilogue, TileKernel, raster_arguments, tile_kernel
from warp_tiles.array_products.solve_kernels import (
    SolveKernel,
    ThreadKernel,
    block_kernel,
    factor_kernel,
    substitution_kernel,
    thread_kernel,
)

pytestmark = pytest.mark.skipif(WARP_VERSION < (1, 19), reason="headers and launches of Warp 1.19 are emulated")
TILE, THREADS = (64, 64, 32), 128
M, N, K = 100, 90, 136  # no multiples of the tile


@wp.func
def negated(x: float):
    return -x


def launched(machine: Machine, kernel: Any, folder: Path, blocks: int, arguments: list[Any]) -> dict[str, Any]:  # noqa: F811
    """The arrays after a launch of a kernel."""
    wp.set_module_options({"block_dim": THREADS}, module=kernel.module)
    kernels = EmulatedKernels(machine, generate(kernel.module, folder / "m", 90, THREADS))
    return kernels.run(kernel, (blocks,), arguments)


def key(epilogue: Epilogue | None, **options: Any) -> TileKernel:
    return TileKernel(**{**PLAIN, "a": "float16", "b": "float16", "tile": TILE, **options}, epilogue=epilogue)


def counts(k: int, slices: int = 1) -> list[int]:
    """slice_depth, and the arguments of the raster."""
    steps = -(-k // TILE[2])
    return [-(-steps // slices) * TILE[2], *raster_arguments(-(-M // TILE[0]), -(-N // TILE[1]), 2, slices)]


def unused(sums: str = "float32") -> list[Any]:
    """Arguments for Factor, Sums and Arrived of a kernel that uses none of them."""
    return [np.ones(1, dtype=sums), np.zeros((1, 1, 1), dtype=sums), np.zeros(1, dtype=np.int32)]


@pytest.mark.slow
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_an_epilogue_of_the_previous_c(machine: Machine, tmp_path: Path, out: str) -> None:  # noqa: F811
    epilogue = Epilogue(out, bias="float32", has_beta=True, function=negated)
    kernel = tile_kernel(key(epilogue, b_transposed=True))
    a, b, c, bias = integers(1, M, K, most=1), integers(2, K, N, most=1), integers(3, M, N), integers(4, N)
    arrays = [values.astype(np.float16)[None] for values in (a, np.ascontiguousarray(b.T))]
    given = [*counts(K), 2.0, 0.5, *arrays, c.astype(out)[None], bias.astype(np.float32), *unused()]
    found = launched(machine, kernel, tmp_path, 4, given)
    assert np.array_equal(found["C"][0], -(2 * (a @ b) + 0.5 * c + bias))


@pytest.mark.slow
def test_rounded_sums_of_wide_tiles(machine: Machine, tmp_path: Path) -> None:  # noqa: F811
    kernel = tile_kernel(key(Epilogue("float16"), tile=(64, 192, 32)))  # whose columns a warp exchanges in parts
    columns = 232
    a, b = integers(1, M, K, most=1), integers(2, K, columns, most=1)
    arrays = [values.astype(np.float16)[None] for values in (a, b)]
    c, none = np.full((1, M, columns), np.nan, dtype=np.float16), np.zeros(1, dtype=np.float16)
    given = [*counts(K)[:1], *raster_arguments(2, 2, 2, 1), 1.0, 0.0, *arrays, c, none, *unused()]
    assert np.array_equal(launched(machine, kernel, tmp_path, 4, given)["C"][0], a @ b)


@pytest.mark.slow
def test_slices_of_a_batch_and_their_sum(machine: Machine, tmp_path: Path) -> None:  # noqa: F811
    batch, slices = 2, 3
    kernel = tile_kernel(key(None, a_transposed=True, scaled=False, slices=slices))
    a, b = integers(1, batch, M, K, most=1), integers(2, batch, K, N, most=1)
    stored = np.ascontiguousarray(a.transpose(0, 2, 1)).astype(np.float16)
    sums = np.full((batch * slices, M, N), np.nan, dtype=np.float32)
    none = np.zeros(N, dtype=np.float32)
    given = [*counts(K, slices), 1.0, 0.0, stored, b.astype(np.float16), sums, none, *unused()]
    found = launched(machine, kernel, tmp_path, batch * 4 * slices, given)
    assert np.array_equal(found["C"].reshape(batch, slices, M, N).sum(1), a @ b)


@pytest.mark.parametrize("epilogue", some([True, False], 1, "slow"), ids=["epilogue", "plain"])
def test_the_last_block_of_a_tile_adds_the_slices(machine: Machine, tmp_path: Path, epilogue: bool) -> None:  # noqa: F811
    batch, slices = 2, 3
    last = Epilogue("float16", "float32", True, negated, has_factor=True) if epilogue else Epilogue("float32")
    kernel = tile_kernel(key(last, scaled=epilogue, slices=slices))
    a, b = integers(1, batch, M, K, most=1), integers(2, batch, K, N, most=1)
    c, bias = integers(3, M, N), integers(4, N)
    old = np.repeat(c[None], batch, axis=0).astype(last.out)
    sums = np.full((batch * 4 * slices, *TILE[:2]), np.nan, dtype=np.float32)
    given = [
        *(*counts(K, slices), 0.5 if epilogue else 1.0, 0.25),
        *(a.astype(np.float16), b.astype(np.float16), old, bias.astype(np.float32)),
        *(np.full(1, 4.0, dtype=np.float32), sums, np.zeros(batch * 4, dtype=np.int32)),
    ]
    found = launched(machine, kernel, tmp_path, batch * 4 * slices, given)
    assert np.array_equal(found["C"], -(2 * (a @ b) + 0.25 * c + bias) if epilogue else a @ b)
    assert not found["Arrived"].any()


@pytest.mark.slow
@pytest.mark.parametrize("in_parts", ["a", "b"])
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_an_operand_in_parts(machine: Machine, tmp_path: Path, in_parts: str, transposed: bool) -> None:  # noqa: F811
    kernel = tile_kernel(
        key(Epilogue("float32"), a_transposed=transposed, b_transposed=transposed, scaled=False, split_operand=in_parts)
    )
    a, b = integers(1, M, K, most=1), integers(2, K, N, most=1)
    rest = integers(3, *(a if in_parts == "a" else b).shape, most=1)
    stored = {"a": [a], "b": [b]}
    stored[in_parts].append(rest)
    arrays = [
        np.stack([np.ascontiguousarray(part.T if transposed else part) for part in parts]).astype(np.float16)
        for parts in stored.values()
    ]
    c, none = np.full((1, M, N), np.nan, dtype=np.float32), np.zeros(N, dtype=np.float32)
    found = launched(machine, kernel, tmp_path, 4, [*counts(K), 1.0, 0.0, *arrays, c, none, *unused()])
    assert np.array_equal(found["C"][0], sum(stored["a"]) @ sum(stored["b"]))


@pytest.mark.parametrize(
    ("a_type", "b_type", "result", "tf32"),
    some(
        [
            ("float16", "float16", "float32", False),
            ("float32", "float32", "float32", True),
            ("float32", "float32", "float32", False),
            ("float64", "float64", "float64", False),
            ("float32", "float16", "float16", False),
        ],
        2,
        "slow",
    ),
)
@pytest.mark.parametrize("transposed", some([False, True], 1))
def test_types(
    machine: Machine,  # noqa: F811
    tmp_path: Path,
    a_type: Any,
    b_type: Any,
    result: Any,
    tf32: bool,
    transposed: bool,
) -> None:
    sums = "float64" if a_type == "float64" else "float32"
    kernel = tile_kernel(
        key(
            Epilogue(result, sums=sums),
            a=a_type, b=b_type, a_transposed=transposed, b_transposed=transposed, tf32=tf32, scaled=result != sums,
        )
    )  # fmt: skip
    a, b = integers(1, M, K, most=1), integers(2, K, N, most=1)
    stored = [np.ascontiguousarray(values.T if transposed else values)[None] for values in (a, b)]
    c, none = np.full((1, M, N), np.nan, dtype=result), np.zeros(N, dtype=result)
    arrays = stored[0].astype(a_type), stored[1].astype(b_type)
    found = launched(machine, kernel, tmp_path, 4, [*counts(K), 1.0, 0.0, *arrays, c, none, *unused(sums)])
    assert np.array_equal(found["C"][0], a @ b)


BLOCK, SIZE = 64, 150  # no multiple of a block
DTYPES = {"float32": 1e-5, "float64": 1e-13}


class Emulated:
    """A kernel on the emulator. A call launches it, and returns the arrays afterwards."""

    def __init__(self, machine: Machine, kernel: Any, threads: int, folder: Path) -> None:  # noqa: F811
        wp.set_module_options({"block_dim": threads}, module=kernel.module)
        self._kernels = EmulatedKernels(machine, generate(kernel.module, folder, 90, threads))
        self._kernel, self._threads = kernel, threads

    def __call__(self, dim: tuple[int, ...], *arguments: Any) -> dict[str, Any]:
        dim = (*dim, self._threads)  # kernels ask for the thread
        return self._kernels.run(self._kernel, dim, arguments, tiled=False)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "upper"), [("float32", False), ("float64", True)])
def test_one_block_for_a_matrix(machine: Machine, tmp_path: Path, dtype: str, upper: bool) -> None:  # noqa: F811
    n, rows = 37, 40
    a, b = spoiled(matrices(1, n, 3), [0, 20, 0]), np.random.default_rng(2).normal(size=(3, n, 5))
    kernel = block_kernel(SolveKernel(dtype, rows, 4, 0, 32, upper, True, True), True, True, True, True)
    none = np.full((3, n, n), np.nan)
    given = [values.astype(dtype) for values in (read_triangle(a, upper), none, b, np.full(b.shape, np.nan))]
    found = Emulated(machine, kernel, 32, tmp_path / "m")((3,), n, *given, np.full(3, 7, dtype=np.int32))
    assert found["Info"].tolist() == [0, 20, 0]
    for z in (0, 2):
        np.testing.assert_allclose(found["L"][z], factor_of(a[z], upper), rtol=0, atol=DTYPES[dtype])
        np.testing.assert_allclose(found["X"][z], np.linalg.solve(a[z], b[z]), rtol=0, atol=DTYPES[dtype])


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "upper"), [("float32", False), ("float64", True)])
def test_tiles_that_wait_for_one_another(machine: Machine, tmp_path: Path, dtype: str, upper: bool) -> None:  # noqa: F811
    a, b = matrices(1, SIZE, 2), np.random.default_rng(2).normal(size=(2, SIZE, 20))
    step, blocks, none = 32 if dtype == "float32" else 16, -(-SIZE // BLOCK), np.full(a.shape, np.nan)
    key = SolveKernel(dtype, BLOCK, 16, step, 128, upper, True, True)
    array, counters = read_triangle(a, upper).astype(dtype), np.zeros(1 + 2 * blocks, dtype=np.int32)
    found = Emulated(machine, factor_kernel(key), 128, tmp_path / "factor")(
        (2 * blocks * blocks,), SIZE, blocks, 2, array, none.astype(dtype), counters, np.full(2, 7, dtype=np.int32)
    )
    assert found["Info"].tolist() == [0, 0]
    assert found["Counters"].tolist() == [2 * blocks * blocks, *range(1, blocks + 1), *range(1, blocks + 1)]
    np.testing.assert_allclose(found["L"], factor_of(a, upper), rtol=0, atol=DTYPES[dtype])
    x, counters = b.astype(dtype), np.zeros(1 + 2 * 2, dtype=np.int32)
    for forward in (True, False):
        kernel = substitution_kernel(key, forward)
        x = Emulated(machine, kernel, 128, tmp_path / f"m{forward}")(
            (2 * blocks * 2,), SIZE, blocks, 2, 2, found["L"], x, np.full(b.shape, np.nan).astype(dtype), counters
        )["X"]
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=0, atol=DTYPES[dtype])


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "dense"), [("float32", True), ("float64", False)])
def test_one_thread_for_a_matrix(machine: Machine, tmp_path: Path, dtype: str, dense: bool) -> None:  # noqa: F811
    n, batch, threads = 6, 70, 32  # the last block has fewer matrices
    orders = [matrix % (n + 1) for matrix in range(batch)]
    a, b = spoiled(matrices(1, n, batch), orders), np.random.default_rng(2).normal(size=(batch, n, 2))
    kernel = thread_kernel(ThreadKernel(dtype, n, 2, threads, dense, dense, True, True, True, True))
    none = np.full(a.shape, np.nan)
    given = [values.astype(dtype) for values in (read_triangle(a, False), none, b, np.full(b.shape, np.nan))]
    wp.set_module_options({"block_dim": threads}, module=kernel.module)
    wp.compile_aot_module(kernel.module, arch=75, module_dir=tmp_path)  # without copies that the emulator lacks
    (source,) = tmp_path.glob("*.cu")  # a module without tile functions has no plan
    sizes = {f"{kernel.get_mangled_name()}_cuda_kernel_forward": 0}
    text = source.read_text().replace('asm volatile("" ::: "memory");', ";")  # which only the compiler sees
    kernels = EmulatedKernels(machine, Generated(text, (), sizes, 75, threads))
    found = kernels.run(kernel, (3 * threads,), [batch, *given, np.full(batch, 7, dtype=np.int32)], tiled=False)
    assert found["Info"].tolist() == orders
    good = np.array(orders) == 0
    np.testing.assert_allclose(found["L"][good], factor_of(a[good], False), rtol=0, atol=DTYPES[dtype])
    np.testing.assert_allclose(found["X"][good], np.linalg.solve(a[good], b[good]), rtol=0, atol=DTYPES[dtype])
