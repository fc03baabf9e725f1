"""Modules with solvers, compiled for sm_90 without a GPU. Warp's libmathdx builds nothing, and Warp links nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
import warp as wp

import warp_tiles
from tests.integration.builds import counts, kernels_in
from tests.integration.helpers import compile_module, gemm, load
from tests.integration.solvers import CALLS, solver
from tests.nightly import some
from warp_tiles.errors import BuildError

pytestmark = pytest.mark.usefixtures("enabled")

FUNCTIONS = 13  # of the eight builtins, an upper factor and a vector, with three adjoints


def every(dtype: str) -> str:
    """A kernel for each builtin, one with an upper factor, one with a vector, and one with a product."""
    texts = [solver(call, name=f"k_{call}", dtype=dtype) for call in CALLS]
    texts += [solver("tile_cholesky", 'a, fill_mode="upper"', name="upper", dtype=dtype)]
    texts += [solver("tile_cholesky_solve_inplace", name="vector", dtype=dtype, shape="16")]
    return "".join([*texts, gemm(m=8, n=8, k=8)])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", some(["float32", "float64"], 1))
def test_every_builtin_and_adjoint_beside_a_product(
    dtype: str, cold: Path, tmp_path: Path, libmathdx_solvers: list[str]
) -> None:
    module = load(every(dtype))
    cubin, record = compile_module(module, tmp_path / "first")
    names = [*(f"k_{call}" for call in CALLS), "upper", "vector", "gemm"]
    assert kernels_in(cubin) == {f"{name}_{way}" for name in names for way in ("forward", "backward")}
    assert (record["linker"], record["linker_reason"]) == ("warp_tiles", "")
    assert counts(record) == (FUNCTIONS + 3, 0), "and a product with its adjoints"
    assert {build["provider"] for build in record["builds"]} == {"own"}
    solvers = [build for build in record["builds"] if "solver" in build["problem"]]
    assert len(solvers) == FUNCTIONS
    for build in solvers:
        problem = build["problem"]
        assert problem["dtype"] == dtype
        in_place = "_in_place" * problem["in_place"]
        assert build["symbol"].startswith(f"wt_{problem['solver']}{in_place}_{problem['n']}_")
        assert build["tile_config"]["lanes"] >= 1
    assert libmathdx_solvers == []
    wp.get_module(module.__name__).mark_modified()
    with warp_tiles.override(policy="locked"):
        again, record = compile_module(module, tmp_path / "locked")
    assert counts(record) == (0, FUNCTIONS + 3)
    assert again.read_bytes() == cubin.read_bytes()


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
