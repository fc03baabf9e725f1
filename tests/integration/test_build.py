"""Building and linking ahead of time: the builds, the cache, the linker, and failures."""

import gc
import re
from pathlib import Path

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.integration.builds import TINY, counts, kernels_in
from tests.integration.helpers import compile_module, gemm, load
from tests.nightly import some
from tests.products import Case, assert_close, draw_inputs, make_kernel, reference, run, tolerance

pytestmark = pytest.mark.usefixtures("enabled")


# ---- builds


@pytest.mark.parametrize("arch", some([90, 120], 1, "slow"))
def test_a_cubin(arch: int, cold: Path, tmp_path: Path) -> None:
    cubin, record = compile_module(load(TINY), tmp_path / "out", arch)
    assert cubin.name.endswith(f".sm{arch}.cubin")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert record["cubin_bytes"] == cubin.stat().st_size < 100_000
    assert (record["linker"], record["linker_reason"]) == ("warp_tiles", "")
    assert counts(record) == (1, 0)
    assert record["lto_bytes"] == sum(build["lto_bytes"] for build in record["builds"]) > 1000


@pytest.mark.slow
def test_several_architectures_at_once(cold: Path, tmp_path: Path) -> None:
    outputs = wp.compile_aot_module(load(TINY), arch=[80, 90], module_dir=tmp_path / "out", use_ptx=False)
    assert [Path(output).suffixes[-2:] for output in outputs] == [[".sm80", ".cubin"], [".sm90", ".cubin"]]
    assert [counts(record) for record in warp_tiles.report()["modules"] if record["builds"]] == [(1, 0), (1, 0)]


@pytest.mark.slow
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
    assert [build["problem"]["k"] for build in first["builds"]] == [8]
    assert [build["problem"]["k"] for build in second["builds"]] == [16]
    assert first["output"] != second["output"]
    assert len(warp_tiles.plan("edited", arch=90).kernels) == 1
    del edited


# ---- the linker


@pytest.mark.slow
def test_warp_links_with_the_setting(tmp_path: Path) -> None:
    own, _ = compile_module(load(TINY), tmp_path / "own")
    with warp_tiles.override(linker="warp"):
        cubin, record = compile_module(load(TINY), tmp_path / "warp")
    assert kernels_in(cubin) == kernels_in(own) == {"gemm_forward"}
    assert record["linker"] == "warp"
    assert record["linker_reason"].startswith("the setting linker ")
    assert counts(record) == (0, 1)
    assert cubin.stat().st_size > own.stat().st_size


# ---- the CPU


@pytest.mark.slow
def test_the_cpu_computes_forward_and_backward() -> None:
    case = Case(8, 12, 16, a_transposed=True, accumulate=True, alpha=2.0, beta=0.5)
    inputs = draw_inputs(case, 1, "cpu")
    got = run(case, make_kernel(case), inputs, "cpu")
    assert_close(case, got, reference(case, inputs), tolerance(case, inputs))
    assert np.abs(got.d).max() > 0
