"""Building and linking ahead of time: the builds, the cache, the linker, and failures."""

from __future__ import annotations

import gc
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.codegen.modules import names_of
from tests.integration.builds import TINY, counts, kernels_in
from tests.integration.helpers import ARRAYS, FORWARD_ONLY, STORE, compile_module, gemm, load, roles
from tests.products import Case, assert_close, draw_inputs, make_kernel, reference, run, tolerance

pytestmark = pytest.mark.usefixtures("enabled")


# ---- builds


@pytest.mark.parametrize("arch", [90, 120])
def test_a_cubin(arch: int, cold: Path, tmp_path: Path) -> None:
    cubin, record = compile_module(load(TINY), tmp_path / "out", arch)
    assert cubin.name.endswith(f".sm{arch}.cubin")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert record["cubin_bytes"] == cubin.stat().st_size < 100_000
    assert (record["linker"], record["linker_reason"]) == ("warp_tiles", "")
    assert counts(record) == (1, 0)
    assert record["lto_bytes"] == sum(build["lto_bytes"] for build in record["builds"]) > 1000


@pytest.mark.slow
def test_a_differentiable_kernel_builds_three_functions_once(cold: Path, tmp_path: Path) -> None:
    module = load(gemm(m=8, n=16, k=24))
    first, record = compile_module(module, tmp_path / "first")
    assert counts(record) == (3, 0)
    assert kernels_in(first) == {"gemm_forward", "gemm_backward"}
    second, record = compile_module(module, tmp_path / "second")
    assert counts(record) == (0, 3)
    assert second.read_bytes() == first.read_bytes(), "the same inputs link to the same bytes"


@pytest.mark.slow
def test_kernel_options_decide_which_adjoints_are_skipped(cold: Path, tmp_path: Path) -> None:
    text = gemm("trained", 8, 8, 8) + gemm("inferred", 8, 8, 16, decorator=FORWARD_ONLY)
    cubin, record = compile_module(load(text), tmp_path / "out")
    assert kernels_in(cubin) == {"trained_forward", "trained_backward", "inferred_forward"}
    assert counts(record) == (4, 0)
    assert {(b["variant"]["k"], b["symbol"]) for b in record["builds"]} == {
        (v["k"], v["symbol"]) for v in record["variants"] if v["needed"]
    }


def test_several_architectures_at_once(cold: Path, tmp_path: Path) -> None:
    outputs = wp.compile_aot_module(load(TINY), arch=[80, 90], module_dir=tmp_path / "out", use_ptx=False)
    assert [Path(output).suffixes[-2:] for output in outputs] == [[".sm80", ".cubin"], [".sm90", ".cubin"]]
    assert [counts(record) for record in warp_tiles.report()["modules"] if record["builds"]] == [(1, 0), (1, 0)]


def test_ptx(tmp_path: Path) -> None:
    ptx, record = compile_module(load(TINY), tmp_path / "out", 80, use_ptx=True)
    text = ptx.read_text()
    assert ptx.suffix == ".ptx"
    assert re.search(r"\.target sm_80", text)
    assert re.search(r"\.entry gemm_[0-9a-f]{8}_cuda_kernel_forward", text)
    assert not re.search(r"\.extern \.func", text), "the product is linked in"
    assert record["linker"] == "warp_tiles"


def test_a_module_without_products_is_left_to_warp(cold: Path, tmp_path: Path) -> None:
    module = load("@wp.kernel(enable_backward=False)\ndef copy(x: wp.array(dtype=float)):\n    x[0] = 1.0\n")
    (cubin,) = wp.compile_aot_module(module, arch=90, module_dir=tmp_path / "out", use_ptx=False)
    assert kernels_in(Path(cubin)) == {"copy_forward"}
    assert warp_tiles.report() == {"modules": []}
    assert not cold.exists(), "the cache was not used"


def test_an_edited_kernel_is_planned_again(cold: Path, tmp_path: Path) -> None:
    decorator = "@wp.kernel(module=wp.get_module('edited'), enable_backward=False)"
    source = load(gemm(m=8, n=8, k=8, decorator=decorator))
    wp.get_module("edited").options["block_dim"] = 64
    first = compile_module(wp.get_module("edited"), tmp_path / "out")[1]
    del source
    edited = load(gemm(m=8, n=8, k=16, decorator=decorator))
    gc.collect()  # Warp's module keeps kernels that are still referenced
    second = compile_module(wp.get_module("edited"), tmp_path / "out")[1]
    assert [build["variant"]["k"] for build in first["builds"]] == [8]
    assert [build["variant"]["k"] for build in second["builds"]] == [16]
    assert first["output"] != second["output"]
    assert len(warp_tiles.plan("edited", arch=90).kernels) == 1
    del edited


def test_a_scalar_product_beside_another(cold: Path, tmp_path: Path) -> None:
    broadcast = f"""
{FORWARD_ONLY}
def scalar({ARRAYS}):
    a = wp.tile_broadcast(wp.tile_load(A, shape=(1, 8), storage="shared"), shape=(8, 8))
    b = wp.tile_load(B, shape=(8, 8), storage="shared")
    c = wp.tile_matmul(a, b){STORE}
"""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*using the scalar GEMM path")
        cubin, record = compile_module(load(TINY + broadcast), tmp_path / "out")
    assert kernels_in(cubin) == {"gemm_forward", "scalar_forward"}
    assert counts(record) == (1, 0)
    assert {v["provider"] for v in record["variants"] if v["function"] == "scalar" and v["needed"]} == {"scalar"}


# ---- the linker


def test_warp_links_with_the_setting(tmp_path: Path) -> None:
    own, _ = compile_module(load(TINY), tmp_path / "own")
    with warp_tiles.override(linker="warp"):
        cubin, record = compile_module(load(TINY), tmp_path / "warp")
    assert kernels_in(cubin) == kernels_in(own) == {"gemm_forward"}
    assert record["linker"] == "warp"
    assert record["linker_reason"].startswith("the setting linker ")
    assert counts(record) == (0, 1)
    assert cubin.stat().st_size > own.stat().st_size


def test_module_options_reach_the_compiler(tmp_path: Path) -> None:
    module = load(TINY, fast_math=True, lineinfo=True, optimization_level=1)
    cubin, record = compile_module(module, tmp_path / "out")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert record["linker"] == "warp_tiles"
    assert b".debug_line" in cubin.read_bytes()


# ---- the CPU


@pytest.mark.slow
def test_the_cpu_computes_forward_and_backward() -> None:
    case = Case(8, 12, 16, a_transposed=True, accumulate=True, alpha=2.0, beta=0.5)
    inputs = draw_inputs(case, 1, "cpu")
    got = run(case, make_kernel(case), inputs, "cpu")
    assert_close(case, got, reference(case, inputs), tolerance(case, inputs))
    assert np.abs(got.d).max() > 0


def test_unneeded_products_are_not_in_the_source(cold: Path, tmp_path: Path) -> None:
    module = load(TINY)
    _, record = compile_module(module, tmp_path / "out")
    source = (tmp_path / "out" / record["output"]).with_suffix("").with_suffix(".cu").read_text()
    names = set(re.findall(r"wt_\w+", source)) - {"wt_module"}  # the header of loads
    (symbol,) = (build["symbol"] for build in record["builds"])
    assert {name for name in names if not name.startswith("wt_site")} == {symbol}
    assert names_of(source, 0) == [symbol] * 3
    assert names == {symbol, *(f"wt_site0_{role}" for role in ("forward", "adjoint_a", "adjoint_b"))}
    assert roles(warp_tiles.plan(module, arch=90), needed=False) == ["adjoint_a", "adjoint_b"]
