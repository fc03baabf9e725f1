"""Building and linking ahead of time: the builds, the cache, the linker, and failures."""

import gc
from pathlib import Path

import pytest
import warp as wp

import warp_tiles
from tests.integration.builds import TINY, counts, kernels_in
from tests.integration.helpers import compile_module, gemm, load
from tests.nightly import some

pytestmark = pytest.mark.usefixtures("enabled")


@pytest.mark.parametrize("arch", some([90, 120], 1, "slow"))
def test_a_cubin(arch: int, cold: Path, tmp_path: Path) -> None:
    cubin, record = compile_module(load(TINY), tmp_path / "out", arch)
    assert cubin.name.endswith(f".sm{arch}.cubin")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert record["cubin_bytes"] == cubin.stat().st_size < 100_000
    assert (record["linker"], record["linker_reason"]) == ("warp_tiles", "")
    assert counts(record) == (1, 0)
    assert record["lto_bytes"] == sum(build["lto_bytes"] for build in record["builds"]) > 1000


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
