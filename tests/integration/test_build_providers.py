"""Builds by each provider, and fallbacks if one fails."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.builds import TINY, counts, kernels_in
from tests.integration.helpers import FORWARD_ONLY, compile_module, gemm, gemm_loop, load, run_python, variant_of
from tests.integration.solvers import CALLS, IN_PLACE, solver
from tests.nightly import some
from tests.products import Case, make_kernel
from warp_tiles._warp import installed
from warp_tiles.build.module_build import ModuleBuild
from warp_tiles.compile.sources import kernels_folder
from warp_tiles.compile.toolchain import ToolchainStore
from warp_tiles.errors import LinkError, ToolchainError
from warp_tiles.providers.cublasdx import promised

pytestmark = pytest.mark.usefixtures("enabled")


# ---- other providers


@pytest.mark.slow
def test_code_overrides_the_module_option_which_overrides_the_environment(
    cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARP_TILES_PROVIDER", "libmathdx")
    module = load(TINY)
    cubins = set()
    for name in ("own", "cublasdx"):  # the changed option builds again
        wp.set_module_options({"warp_tiles_provider": name}, module=module)
        cubin, record = compile_module(module, tmp_path / "out")
        cubins.add(cubin)
        assert kernels_in(cubin) == {"gemm_forward"}
        (build,) = record["builds"]
        assert (build["provider"], record["provider"]) == (name, name)
        assert (build["tile_config"] is not None) == (name == "own")
        forward = record["variants"][0]
        assert (
            f"built by {name} (the setting provider (module option warp_tiles_provider of module " in forward["reason"]
        )
        assert (build["symbol"], build["key"]) == (forward["symbol"], forward["key"])
    assert len(cubins) == 2, "Warp's own cache keeps both"
    with warp_tiles.override(provider="own"):
        record = compile_module(module, tmp_path / "code")[1]
    assert [build["provider"] for build in record["builds"]] == ["own"]


@pytest.mark.slow
def test_a_block_with_a_partial_warp_is_built_by_cublasdx(cold: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cubin, record = compile_module(load(TINY, block_dim=48), tmp_path / "out")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert [build["provider"] for build in record["builds"]] == ["cublasdx"]
    assert "built by cublasdx (own cannot serve threads=48" in record["variants"][0]["reason"]


BFLOAT16 = [
    Case(16, 24, 32, "bfloat16", "bfloat16", "float32"),
    Case(16, 24, 32, "bfloat16", "bfloat16", "bfloat16", accumulate=True, alpha=2.0, beta=0.5),
    Case(16, 24, 32, "bfloat16", "float32", "float32", a_transposed=True, pad=8),
]
PAIRS = [(case, (75, 90, 80, 120)[(turn + number) % 4]) for turn in range(4) for number, case in enumerate(BFLOAT16)]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "arch"), some(PAIRS, 3), ids=lambda value: str(getattr(value, "c", value)))
def test_bfloat16_with_a_backward_pass(case: Case, arch: int, cold: Path, tmp_path: Path) -> None:
    kernel = make_kernel(case)
    kernel.module.options["block_dim"] = case.threads
    cubin, record = compile_module(kernel.module, tmp_path / "out", arch)
    assert kernels_in(cubin) == {"product_forward", "product_backward"}
    assert {build["provider"] for build in record["builds"]} == {"own"}
    assert counts(record)[0] == len({build["symbol"] for build in record["builds"]})
    assert {build["variant"]["c_dtype"] for build in record["builds"]} == {case.a, case.b, case.c}


def test_the_scalar_provider_builds_nothing(cold: Path, tmp_path: Path) -> None:
    with warp_tiles.override(provider="scalar"):
        (cubin,) = wp.compile_aot_module(load(TINY), arch=90, module_dir=tmp_path / "out", use_ptx=False)
        (module,) = warp_tiles.report()["modules"]
    assert kernels_in(Path(cubin)) == {"gemm_forward"}
    assert module["builds"] == []
    assert not list(cold.rglob("*.json")) or not any(cold.rglob("payload*"))


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
def test_a_compile_error_falls_back_with_a_warning(
    broken: Path, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> tuple[str, bytes]:
        raise warp_tiles.BuildError("libmathdx refuses too")

    monkeypatch.setattr(installed().engine, "_libmathdx", refuse)
    with pytest.warns(RuntimeWarning) as caught:
        cubin, record = compile_module(load(TINY), tmp_path / "out")
    messages = [str(warning.message) for warning in caught]
    aligned = promised(variant_of(warp_tiles.plan(load(TINY), arch=90).needed[0]))
    expected = ["cuBLASDx"]
    expected += ["cuBLASDx without alignment"] if aligned != aligned.without_alignment() else []
    expected += [LIBMATHDX, "Warp's scalar path, which uses no tensor cores"]
    assert len(messages) == len(expected)
    for text, fallback in zip(messages, expected):
        assert "8x8x8 float32" in text
        assert using(text) == fallback
    assert all("broken on purpose" in text for text in messages[:-1])
    assert "libmathdx refuses too" in messages[-1]
    assert kernels_in(cubin) == {"gemm_forward"}
    (build,) = record["builds"]
    assert (build["provider"], build["lto_bytes"]) == ("scalar", 0)
    assert len(build["warnings"]) == len(expected)
    source = (tmp_path / "out" / record["output"]).with_suffix("").with_suffix(".cu").read_text()
    assert "wt_gemm" not in source, "the source calls only built functions"


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
    again = run_python(["-m", "warp_tiles.compile.worker", "--reproduce", str(file)])
    assert again.returncode == 1
    assert "broken on purpose" in again.stderr
    source = broken / SOURCES[provider]
    source.write_text(source.read_text().replace('#error "broken on purpose"', ""))
    repaired = run_python(["-m", "warp_tiles.compile.worker", "--reproduce", str(file)])
    assert repaired.returncode == 0, repaired.stderr
    assert "bytes of LTO-IR" in repaired.stdout


# ---- functions in the module's source


EVERY_BUILTIN = "".join([
    gemm(), gemm_loop("loop", 32, 32, 16, decorator=FORWARD_ONLY, dtype="float64", total="float64"),
    *(solver(call, name=f"k{number}") for number, call in enumerate(CALLS) if call not in IN_PLACE),
])  # fmt: skip


@pytest.fixture
def no_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without NVRTC."""

    def missing(store: ToolchainStore) -> None:
        raise ToolchainError("NVRTC was not found", remedy="install it")

    monkeypatch.setattr(ToolchainStore, "toolchain", missing)


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
    needed = [variant for variant in record["variants"] if variant["needed"]]
    assert {variant["call"] for variant in needed} == {"tile_matmul", *CALLS} - IN_PLACE
    for variant in needed:
        assert "in the module's source (NVRTC was not found" in variant["reason"]
    source = next((tmp_path / "out").glob("*.cu")).read_text()
    (symbol,) = (variant["symbol"] for variant in needed if variant["kernels"] == ["loop"])
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
    (variant,) = (variant for variant in record["variants"] if variant["needed"])
    assert "Warp's CUDA 13.0 cannot read the LTO-IR of NVRTC" in variant["reason"]


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
