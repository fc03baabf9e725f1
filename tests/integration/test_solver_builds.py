"""Modules with solvers, compiled for sm_90 without a GPU. Warp's libmathdx builds nothing, and Warp links nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
import warp as wp

import warp_tiles
from tests.integration.builds import counts, kernels_in
from tests.integration.helpers import compile_module, gemm, load
from tests.integration.solvers import solver
from tests.nightly import some
from warp_tiles.errors import BuildError

pytestmark = pytest.mark.usefixtures("enabled")

EVERY = """
@wp.kernel
def every(
    A: wp.array2d(dtype=wp.{dtype}), Y: wp.array2d(dtype=wp.{dtype}), V: wp.array(dtype=wp.{dtype}),
    L: wp.array2d(dtype=wp.{dtype}), X: wp.array2d(dtype=wp.{dtype}), Z: wp.array(dtype=wp.{dtype})
):
    a = wp.tile_load(A, shape=(8, 8), storage="shared")
    y = wp.tile_load(Y, shape=(8, 4), storage="shared")
    v = wp.tile_load(V, shape=8, storage="shared")
    factor = wp.tile_cholesky(a)
    upper = wp.tile_cholesky(a, fill_mode="upper")
    solved = wp.tile_cholesky_solve(factor, y)
    forward = wp.tile_lower_solve(factor, solved)
    backward = wp.tile_upper_solve(upper, forward)
    wp.tile_cholesky_inplace(a)
    wp.tile_cholesky_solve_inplace(a, v)
    wp.tile_lower_solve_inplace(a, v)
    wp.tile_upper_solve_inplace(wp.tile_transpose(a), v)
    wp.tile_store(L, upper)
    wp.tile_store(X, backward)
    wp.tile_store(Z, v)
"""
FUNCTIONS = 12  # two factors with their adjoints, three solves, one of which has an adjoint, and four in place


@pytest.mark.slow
@pytest.mark.parametrize("dtype", some(["float32", "float64"], 1))
def test_every_builtin_and_adjoint_in_one_kernel(
    dtype: str, cold: Path, tmp_path: Path, libmathdx_solvers: list[str]
) -> None:
    module = load(EVERY.format(dtype=dtype))
    cubin, record = compile_module(module, tmp_path / "first")
    assert kernels_in(cubin) == {"every_forward", "every_backward"}
    assert (record["linker"], record["linker_reason"]) == ("warp_tiles", "")
    assert counts(record) == (FUNCTIONS, 0)
    assert {build["provider"] for build in record["builds"]} == {"own"}
    for build in record["builds"]:
        problem = build["problem"]
        assert problem["dtype"] == dtype
        in_place = "_in_place" * problem["in_place"]
        assert build["symbol"].startswith(f"wt_{problem['solver']}{in_place}_{problem['n']}_")
        assert build["tile_config"]["lanes"] >= 1
    assert libmathdx_solvers == []
    wp.get_module(module.__name__).mark_modified()
    with warp_tiles.override(policy="locked"):
        again, record = compile_module(module, tmp_path / "locked")
    assert counts(record) == (0, FUNCTIONS)
    assert again.read_bytes() == cubin.read_bytes()


@pytest.mark.slow
def test_a_product_and_a_solver_in_one_module(cold: Path, tmp_path: Path) -> None:
    cubin, record = compile_module(load(gemm(m=8, n=8, k=8) + solver("tile_cholesky")), tmp_path)
    assert kernels_in(cubin) == {f"{name}_{way}" for name in ("gemm", "solver") for way in ("forward", "backward")}
    assert counts(record) == (5, 0)
    assert record["linker"] == "warp_tiles"


@pytest.mark.slow
@pytest.mark.parametrize("refused", ["cholesky_adjoint", "cholesky"])
def test_a_function_that_does_not_compile_takes_the_scalar_path_alone(
    refused: str, cold: Path, tmp_path: Path, refuse_solver: Callable[[str], None]
) -> None:
    refuse_solver(refused)
    with pytest.warns(RuntimeWarning, match=f"{refused} of 16x16.*using Warp's scalar path"):
        cubin, record = compile_module(load(solver("tile_cholesky")), tmp_path)
    assert kernels_in(cubin) == {"solver_forward", "solver_backward"}
    assert {build["problem"]["solver"]: build["provider"] for build in record["builds"]} == {
        name: "scalar" if name == refused else "own" for name in ("cholesky", "cholesky_adjoint")
    }
    assert record["linker"] == "warp_tiles"
    with warp_tiles.override(provider="own"), pytest.raises(BuildError):
        compile_module(load(solver("tile_cholesky")), tmp_path / "named")
