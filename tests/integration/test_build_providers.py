"""Builds by each provider, and fallbacks if one fails."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.builds import TINY, counts, kernels_in
from tests.integration.helpers import FORWARD_ONLY, compile_module, gemm, gemm_loop, load
from tests.integration.solvers import CALLS, IN_PLACE, solver
from tests.interpreter import python
from tests.nightly import some
from warp_tiles._warp import installed
from warp_tiles.build.module_build import ModuleBuild
from warp_tiles.compile.sources import kernels_folder
from warp_tiles.errors import LinkError

pytestmark = pytest.mark.usefixtures("enabled")


# ---- failures


SOURCES = {"own": "gemm/block_gemm.cuh", "cublasdx": "cublasdx/gemm.cuh"}
LIBMATHDX = "Warp's libmathdx, which takes 5 to 18 s and 1 to 7 MB of LTO-IR for each function"


def using(warning: str) -> str:
    """What is used instead, and its cost, as the warning of a failed build says."""
    return warning.partition(" To see it alone:")[0].rpartition("; using ")[2].removesuffix(".")


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Device sources that do not compile."""
    folder = tmp_path / "kernels"
    shutil.copytree(kernels_folder(), folder)
    for source in (folder / name for name in SOURCES.values()):
        source.write_text(source.read_text() + '\n#error "broken on purpose"\n')
    monkeypatch.setattr("warp_tiles.compile.sources.kernels_folder", lambda: folder)
    return folder


@pytest.mark.slow
def test_a_compile_error_falls_back_to_libmathdx(broken: Path, cold: Path, tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning) as caught:
        cubin, record = compile_module(load(TINY), tmp_path / "out")
    assert "broken on purpose" in str(caught[-1].message)
    assert using(str(caught[-1].message)) == LIBMATHDX
    assert kernels_in(cubin) == {"gemm_forward"}
    (build,) = record["builds"]
    assert build["provider"] == "libmathdx"
    assert build["lto_bytes"] > 1000
    assert record["linker"] == "warp"
    assert "libmathdx" in record["linker_reason"]
    compile_module(load(TINY), tmp_path / "second")  # a second warning would be an error


@pytest.mark.slow
@pytest.mark.parametrize("provider", some(SOURCES, 1))
def test_a_compile_error_of_the_only_provider(provider: str, broken: Path, cold: Path, tmp_path: Path) -> None:
    with warp_tiles.override(provider=provider), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a warning about the retry without alignment
        with pytest.raises(warp_tiles.BuildError) as caught:
            compile_module(load(TINY), tmp_path / "out")
    error = caught.value
    with warp_tiles.override(provider="scalar"):  # the failure does not affect another build
        wp.compile_aot_module(load(TINY), arch=90, module_dir=tmp_path / "scalar", use_ptx=False)
    text = str(error)
    assert "8x8x8 float32 x float32 -> float32, 64 threads, sm_90" in text
    assert "broken on purpose" in error.log
    assert "python -m warp_tiles.compile.worker --reproduce " in error.remedy
    # run the command of the remedy
    file = Path(error.remedy.rpartition(" ")[2])
    again = python("-m", "warp_tiles.compile.worker", "--reproduce", file, status=1)
    assert "broken on purpose" in again.stderr
    source = broken / SOURCES[provider]
    source.write_text(source.read_text().replace('#error "broken on purpose"', ""))
    repaired = python("-m", "warp_tiles.compile.worker", "--reproduce", file)
    assert "bytes of LTO-IR" in repaired.stdout


# ---- functions in the module's source


EVERY_BUILTIN = "".join([
    gemm(), gemm_loop("loop", 32, 32, 16, decorator=FORWARD_ONLY, dtype="float64", total="float64"),
    *(solver(call, name=f"k{number}") for number, call in enumerate(CALLS) if call not in IN_PLACE),
])  # fmt: skip


def functions_of(record: dict[str, Any]) -> set[tuple[str, bool, int]]:
    """Providers of the functions of a module, if they stand in its source, and the bytes of their LTO-IR."""
    return {(build["provider"], build["in_source"], build["lto_bytes"]) for build in record["builds"]}


@pytest.mark.slow
def test_every_builtin_compiles_without_a_toolchain(no_toolchain: None, cold: Path, tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning) as caught:
        cubin, record = compile_module(load(EVERY_BUILTIN, warp_tiles_main_loop="double_buffered"), tmp_path / "out")
    (message,) = (str(warning.message) for warning in caught)
    assert message.startswith("warp_tiles: NVRTC was not found; using functions in the module's source, ")
    assert message.endswith(" Remedy: install it")
    assert {"gemm_forward", "gemm_backward", "loop_forward", "k0_backward", "k3_forward"} <= kernels_in(cubin)
    assert functions_of(record) == {("own", True, 0)}
    assert counts(record) == (0, 0)
    needed = [planned for planned in record["functions"] if planned["needed"]]
    assert {problem["call"] for problem in needed} == {"tile_matmul", *CALLS} - IN_PLACE
    for problem in needed:
        assert "in the module's source (NVRTC was not found" in problem["reason"]
    source = next((tmp_path / "out").glob("*.cu")).read_text()
    (symbol,) = (problem["symbol"] for problem in needed if problem["kernels"] == ["loop"])
    assert source.count(f"{symbol}_finish(") == 2, "the loop keeps its accumulators"
    assert source.count("void block_gemm(const void* alpha") == 1, "each header stands in the source once"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["auto", "fast"])
def test_a_debug_module_builds_with_an_nvrtc_newer_than_warps_linker(
    policy: str, toolchain: None, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed().engine.resources, "warp_toolkit", (13, 0))
    with warp_tiles.override(policy=policy):  # a warning would be an error
        cubin, record = compile_module(load(TINY, mode="debug"), tmp_path / "out")
    assert "gemm_forward" in kernels_in(cubin), "all functions of a debug build have symbols"
    assert functions_of(record) == {("own", True, 0)}
    assert "it is a debug build" in record["linker_reason"]
    (planned,) = (planned for planned in record["functions"] if planned["needed"])
    assert "Warp's CUDA 13.0 cannot read the LTO-IR of NVRTC" in planned["reason"]


@pytest.mark.slow
def test_a_failed_link_puts_functions_into_the_source_if_warp_cannot_link_them(
    toolchain: None, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(build: ModuleBuild, *_: Any) -> str:
        return "nvJitLink failed"

    monkeypatch.setattr(installed().engine.resources, "warp_toolkit", (13, 0))
    monkeypatch.setattr(ModuleBuild, "_link", fails)
    cubin, record = compile_module(load(TINY), tmp_path / "out")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert (record["linker"], record["linker_reason"]) == ("warp", "nvJitLink failed")
    assert functions_of(record) == {("own", True, 0)}
    wp.set_module_options({"block_dim": 48}, module=(odd := load(TINY)))
    with pytest.raises(LinkError, match=r"built by cublasdx: the linker of Warp's CUDA 13\.0 cannot read"):
        compile_module(odd, tmp_path / "odd")
