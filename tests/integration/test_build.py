"""Building and linking ahead of time: what is built, what comes from the cache, who links, what happens if it fails."""

from __future__ import annotations

import gc
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import (
    ARRAYS,
    STORE,
    compile_module,
    cubin_symbols,
    gemm,
    load,
    roles,
    run_python,
    variant_of,
)
from tests.products import Case, assert_close, draw_inputs, make_kernel, reference, run, tolerance
from warp_tiles import api
from warp_tiles.compiler import LinkRequest
from warp_tiles.providers.cublasdx import promised
from warp_tiles.providers.nvrtc import kernels_folder

FORWARD_ONLY = "@wp.kernel(enable_backward=False)"
TINY = gemm(m=8, n=8, k=8, decorator=FORWARD_ONLY)

pytestmark = pytest.mark.usefixtures("enabled")


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Path]:
    """An empty LTO-IR cache for one test."""
    folder = tmp_path / "lto"
    with warp_tiles.override(cache_dir=folder, jobs=2):
        yield folder


def counts(record: dict[str, Any]) -> tuple[int, int]:
    """Variants built and variants found in the cache."""
    return record["lto_builds"], record["lto_hits"]


def kernels_in(cubin: Path) -> set[str]:
    """Kernels of a cubin without Warp's hashes, e.g. ``gemm_forward``."""
    symbols = cubin_symbols(cubin.read_bytes())
    assert symbols.undefined <= {"__assertfail", "vprintf"}, "a call to a function that not even the driver has"
    return {re.sub(r"_[0-9a-f]{8}_cuda_kernel", "", name) for name in symbols.functions}


# ---- what is built


@pytest.mark.parametrize("arch", [80, 90, 120])
def test_a_cubin(arch: int, cold: Path, tmp_path: Path) -> None:
    cubin, record = compile_module(load(TINY), tmp_path / "out", arch)
    assert cubin.name.endswith(f".sm{arch}.cubin")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert record["cubin_bytes"] == cubin.stat().st_size < 100_000
    assert (record["linker"], record["linker_reason"]) == ("warp_tiles", "")
    assert counts(record) == (1, 0)
    assert record["lto_bytes"] == sum(build["lto_bytes"] for build in record["builds"]) > 1000


def test_a_differentiable_kernel_builds_three_and_the_second_time_none(cold: Path, tmp_path: Path) -> None:
    module = load(gemm(m=8, n=16, k=24))
    first, record = compile_module(module, tmp_path / "first")
    assert counts(record) == (3, 0)
    assert kernels_in(first) == {"gemm_forward", "gemm_backward"}
    second, record = compile_module(module, tmp_path / "second")
    assert counts(record) == (0, 3)
    assert second.read_bytes() == first.read_bytes(), "the same inputs link to the same bytes"


def test_a_new_process_state_finds_the_cache(cold: Path, tmp_path: Path) -> None:
    assert counts(compile_module(load(TINY), tmp_path / "first")[1]) == (1, 0)
    warp_tiles.disable()
    warp_tiles.enable()
    assert counts(compile_module(load(TINY), tmp_path / "second")[1]) == (0, 1)


def test_the_plan_knows_what_is_cached(cold: Path, tmp_path: Path) -> None:
    module = load(TINY)
    before = warp_tiles.plan(module, arch=90)
    assert [v.cached for v in before.needed] == [False]
    record = compile_module(module, tmp_path / "out")[1]
    after = warp_tiles.plan(module, arch=90)
    assert [v.cached for v in after.needed] == [True]
    assert [b["key"] for b in record["builds"]] == [v.key for v in before.needed] == [v.key for v in after.needed]
    assert [v.cached for v in warp_tiles.plan(module, arch=80).needed] == [False], "another architecture"


def test_kernel_options_decide_what_is_skipped(cold: Path, tmp_path: Path) -> None:
    text = gemm("trained", 8, 8, 8) + gemm("inferred", 8, 8, 16, decorator=FORWARD_ONLY)
    cubin, record = compile_module(load(text), tmp_path / "out")
    assert kernels_in(cubin) == {"trained_forward", "trained_backward", "inferred_forward"}
    assert counts(record) == (4, 0)
    assert {(b["variant"]["k"], b["symbol"]) for b in record["builds"]} == {
        (v["k"], v["symbol"]) for v in record["variants"] if v["needed"]
    }


def test_equal_variants_of_two_kernels_are_built_once(cold: Path, tmp_path: Path) -> None:
    text = gemm("first", 8, 8, 8, decorator=FORWARD_ONLY) + gemm("second", 8, 8, 8, decorator=FORWARD_ONLY)
    cubin, record = compile_module(load(text), tmp_path / "out")
    assert kernels_in(cubin) == {"first_forward", "second_forward"}
    assert counts(record) == (1, 0)


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
    assert not re.search(r"\.extern \.func", text), "the product was linked in, not left as a call"
    assert record["linker"] == "warp_tiles"


def test_a_module_without_products_is_warps_alone(cold: Path, tmp_path: Path) -> None:
    module = load("@wp.kernel(enable_backward=False)\ndef copy(x: wp.array(dtype=float)):\n    x[0] = 1.0\n")
    (cubin,) = wp.compile_aot_module(module, arch=90, module_dir=tmp_path / "out", use_ptx=False)
    assert kernels_in(Path(cubin)) == {"copy_forward"}
    assert warp_tiles.report() == {"modules": []}
    assert not cold.exists(), "nothing was needed from the cache"


def test_a_kernel_that_was_edited_is_planned_again(cold: Path, tmp_path: Path) -> None:
    decorator = "@wp.kernel(module=wp.get_module('edited'), enable_backward=False)"
    source = load(gemm(m=8, n=8, k=8, decorator=decorator))
    wp.get_module("edited").options["block_dim"] = 64
    first = compile_module(wp.get_module("edited"), tmp_path / "out")[1]
    del source
    edited = load(gemm(m=8, n=8, k=16, decorator=decorator))
    gc.collect()  # a module keeps what anything still refers to
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


# ---- who links


def test_warp_links_if_the_settings_say_so(tmp_path: Path) -> None:
    own, _ = compile_module(load(TINY), tmp_path / "own")
    with warp_tiles.override(linker="warp"):
        cubin, record = compile_module(load(TINY), tmp_path / "warp")
    assert kernels_in(cubin) == kernels_in(own) == {"gemm_forward"}
    assert record["linker"] == "warp"
    assert record["linker_reason"].startswith("the setting linker ")
    assert counts(record) == (0, 1)
    assert cubin.stat().st_size > own.stat().st_size


def test_warp_links_debug_builds(tmp_path: Path) -> None:
    module = load(TINY, mode="debug")
    cubin, record = compile_module(module, tmp_path / "out")
    assert kernels_in(cubin) >= {"gemm_forward"}
    assert record["linker"] == "warp"
    assert "debug" in record["linker_reason"]
    with warp_tiles.override(linker="own"), pytest.raises(warp_tiles.LinkError, match="debug build"):
        compile_module(module, tmp_path / "own")


def test_warp_links_if_this_linker_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(name: str, inputs: tuple[bytes, ...], *rest: Any) -> LinkRequest:
        return LinkRequest(name, tuple(data[:100] for data in inputs), *rest)

    monkeypatch.setattr("warp_tiles.module_build.LinkRequest", damaged)
    with pytest.warns(RuntimeWarning, match="Warp links module .* itself"):
        cubin, record = compile_module(load(TINY), tmp_path / "out")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert record["linker"] == "warp"
    assert "could not be linked" in record["linker_reason"]
    with warp_tiles.override(linker="own"), pytest.raises(warp_tiles.LinkError):
        compile_module(load(TINY), tmp_path / "own")


def test_the_own_linker(tmp_path: Path) -> None:
    with warp_tiles.override(linker="own"):
        cubin, record = compile_module(load(TINY), tmp_path / "out")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert record["linker"] == "warp_tiles"


@pytest.mark.parametrize("options", [{"fast_math": True}, {"lineinfo": True}, {"optimization_level": 1}])
def test_module_options_reach_the_compiler(options: dict[str, Any], tmp_path: Path) -> None:
    cubin, record = compile_module(load(TINY, **options), tmp_path / "out")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert record["linker"] == "warp_tiles"
    if "lineinfo" in options:
        assert b".debug_line" in cubin.read_bytes()


# ---- other providers


@pytest.mark.parametrize("name", ["mma", "cublasdx"])
def test_the_provider_of_a_module(name: str, cold: Path, tmp_path: Path) -> None:
    cubin, record = compile_module(load(TINY, warp_tiles_provider=name), tmp_path / "out")
    assert kernels_in(cubin) == {"gemm_forward"}
    (build,) = record["builds"]
    assert (build["provider"], record["provider"]) == (name, name)
    assert (build["tile_config"] is not None) == (name == "mma")
    forward = record["variants"][0]
    assert f"{name}: the setting provider (module option warp_tiles_provider of module " in forward["reason"]
    assert (build["symbol"], build["key"]) == (forward["symbol"], forward["key"])


def test_code_comes_before_the_module_option_and_that_before_the_environment(
    cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(TINY, warp_tiles_provider="cublasdx")
    monkeypatch.setenv("WARP_TILES_PROVIDER", "libmathdx")
    record = compile_module(module, tmp_path / "option")[1]
    assert [build["provider"] for build in record["builds"]] == ["cublasdx"]
    with warp_tiles.override(provider="mma"):
        record = compile_module(module, tmp_path / "code")[1]
    assert [build["provider"] for build in record["builds"]] == ["mma"]


def test_a_changed_module_option_builds_again(cold: Path, tmp_path: Path) -> None:
    module = load(TINY)
    first, record = compile_module(module, tmp_path / "out")
    assert [build["provider"] for build in record["builds"]] == ["mma"]
    wp.set_module_options({"warp_tiles_provider": "cublasdx"}, module=module)
    second, record = compile_module(module, tmp_path / "out")
    assert first != second, "Warp's own cache keeps both"
    assert [build["provider"] for build in record["builds"]] == ["cublasdx"]


def test_an_unknown_module_option(tmp_path: Path) -> None:
    with pytest.raises(warp_tiles.SettingError, match="option warp_tiles_provider is 'cutlass'") as caught:
        compile_module(load(TINY, warp_tiles_provider="cutlass"), tmp_path / "out")
    assert "auto, mma, cublasdx, libmathdx, scalar" in caught.value.remedy


def test_a_block_of_no_whole_warps_is_built_by_cublasdx(cold: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cubin, record = compile_module(load(TINY, block_dim=48), tmp_path / "out")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert [build["provider"] for build in record["builds"]] == ["cublasdx"]
    assert "cublasdx: mma cannot serve threads=48" in record["variants"][0]["reason"]


def test_a_block_of_less_than_a_warp_takes_the_scalar_path(cold: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cubin, record = compile_module(load(TINY, block_dim=16), tmp_path / "out")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert [build["provider"] for build in record["builds"]] == ["scalar"]
    assert "mma cannot serve threads=16" in record["variants"][0]["reason"]


@pytest.mark.parametrize("arch", [75, 80, 90, 120])
@pytest.mark.parametrize("case", [
    Case(16, 24, 32, "bfloat16", "bfloat16", "float32"),
    Case(16, 24, 32, "bfloat16", "bfloat16", "bfloat16", accumulate=True, alpha=2.0, beta=0.5),
    Case(16, 24, 32, "bfloat16", "float32", "float32", a_transposed=True, pad=8),
], ids=lambda case: f"{case.a} {case.b} {case.c}")  # fmt: skip
def test_bfloat16_with_a_backward_pass(case: Case, arch: int, cold: Path, tmp_path: Path) -> None:
    kernel = make_kernel(case)
    kernel.module.options["block_dim"] = case.threads
    cubin, record = compile_module(kernel.module, tmp_path / "out", arch)
    assert kernels_in(cubin) == {"product_forward", "product_backward"}
    assert {build["provider"] for build in record["builds"]} == {"mma"}
    assert counts(record)[0] == len({build["symbol"] for build in record["builds"]})
    assert {build["variant"]["c_dtype"] for build in record["builds"]} == {case.a, case.b, case.c}


def test_the_scalar_provider_builds_nothing(cold: Path, tmp_path: Path) -> None:
    with warp_tiles.override(provider="scalar"):
        (cubin,) = wp.compile_aot_module(load(TINY), arch=90, module_dir=tmp_path / "out", use_ptx=False)
        (module,) = warp_tiles.report()["modules"]
    assert kernels_in(Path(cubin)) == {"gemm_forward"}
    assert module["builds"] == []
    assert not list(cold.rglob("*.json")) or not any(cold.rglob("payload*"))


@pytest.mark.slow
def test_the_libmathdx_provider(cold: Path, tmp_path: Path) -> None:
    with warp_tiles.override(provider="libmathdx"):
        cubin, record = compile_module(load(TINY), tmp_path / "out")
    assert kernels_in(cubin) == {"gemm_forward"}
    (build,) = record["builds"]
    assert build["provider"] == "libmathdx"
    assert build["lto_bytes"] > 1000
    assert record["linker"] == "warp"
    assert "libmathdx" in record["linker_reason"]


# ---- failures


SOURCES = {"mma": "gemm/block_gemm.cuh", "cublasdx": "cublasdx/gemm.cuh"}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Device sources that no compiler takes."""
    folder = tmp_path / "kernels"
    shutil.copytree(kernels_folder(), folder)
    for source in (folder / name for name in SOURCES.values()):
        source.write_text(source.read_text() + '\n#error "broken on purpose"\n')
    monkeypatch.setattr("warp_tiles.providers.nvrtc.kernels_folder", lambda: folder)
    return folder


def test_a_compile_error_falls_back_and_says_why(
    broken: Path, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> tuple[str, bytes]:
        raise warp_tiles.BuildError("libmathdx refuses too")

    assert api._hooks is not None
    monkeypatch.setattr(api._hooks.engine, "_libmathdx", refuse)
    with pytest.warns(RuntimeWarning) as caught:
        cubin, record = compile_module(load(TINY), tmp_path / "out")
    said = [str(warning.message) for warning in caught]
    aligned = promised(variant_of(warp_tiles.plan(load(TINY), arch=90).needed[0]))
    expected = ["cuBLASDx"]
    expected += ["cuBLASDx without alignment"] if aligned != aligned.without_alignment() else []
    expected += ["Warp's libmathdx", "Warp's scalar path"]
    assert len(said) == len(expected)
    for text, instead in zip(said, expected):
        assert "8x8x8 float32" in text
        assert text.partition(" To see it alone:")[0].endswith(f"using {instead}.")
    assert all("broken on purpose" in text for text in said[:-1])
    assert "libmathdx refuses too" in said[-1]
    assert kernels_in(cubin) == {"gemm_forward"}
    (build,) = record["builds"]
    assert (build["provider"], build["lto_bytes"]) == ("scalar", 0)
    assert len(build["warnings"]) == len(expected)
    source = (tmp_path / "out" / record["output"]).with_suffix("").with_suffix(".cu").read_text()
    assert "wt_gemm" not in source, "the source that is kept calls what was built"


@pytest.mark.slow
def test_a_compile_error_falls_back_to_libmathdx(broken: Path, cold: Path, tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning) as caught:
        cubin, record = compile_module(load(TINY), tmp_path / "out")
    assert "broken on purpose" in str(caught[-1].message)
    assert str(caught[-1].message).partition(" To see it alone:")[0].endswith("using Warp's libmathdx.")
    assert kernels_in(cubin) == {"gemm_forward"}
    assert [build["provider"] for build in record["builds"]] == ["libmathdx"]


def test_a_warning_is_given_once(broken: Path, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api._hooks is not None
    monkeypatch.setattr(api._hooks.engine, "_libmathdx", None)
    with pytest.warns(RuntimeWarning) as first:
        compile_module(load(TINY), tmp_path / "first")
    compile_module(load(TINY), tmp_path / "second")  # a second warning would be an error
    assert first


@pytest.mark.parametrize("provider", SOURCES)
def test_a_compile_error_of_the_only_provider(provider: str, broken: Path, cold: Path, tmp_path: Path) -> None:
    with warp_tiles.override(provider=provider), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it is tried again without alignment, if it had any
        with pytest.raises(warp_tiles.BuildError) as caught:
            compile_module(load(TINY), tmp_path / "out")
    error = caught.value
    with warp_tiles.override(provider="scalar"):  # a failure leaves nothing behind that another build trips over
        wp.compile_aot_module(load(TINY), arch=90, module_dir=tmp_path / "scalar", use_ptx=False)
    text = str(error)
    assert "8x8x8 float32 x float32 -> float32, 64 threads, sm_90" in text
    assert "broken on purpose" in error.log
    assert "python -m warp_tiles.worker --reproduce " in error.remedy
    # the command, as told: everything after the first line of the remedy goes into a file
    file = Path(error.remedy.rpartition(" ")[2])
    again = run_python(["-m", "warp_tiles.worker", "--reproduce", str(file)])
    assert again.returncode == 1
    assert "broken on purpose" in again.stderr
    source = broken / SOURCES[provider]
    source.write_text(source.read_text().replace('#error "broken on purpose"', ""))
    repaired = run_python(["-m", "warp_tiles.worker", "--reproduce", str(file)])
    assert repaired.returncode == 0, repaired.stderr
    assert "bytes of LTO-IR" in repaired.stdout


def test_a_mistake_in_a_kernel_is_warps_error(cold: Path, tmp_path: Path) -> None:
    module = load(TINY.replace("B, shape=(8, 8)", "B, shape=(16, 8)"))
    with pytest.raises(ValueError, match="consistent for a matmul"):
        compile_module(module, tmp_path / "out")
    assert not list((tmp_path).rglob("*.cubin"))


# ---- the CPU


def test_the_cpu_computes_forward_and_backward() -> None:
    case = Case(8, 12, 16, a_transposed=True, accumulate=True, alpha=2.0, beta=0.5)
    inputs = draw_inputs(case, 1, "cpu")
    got = run(case, make_kernel(case), inputs, "cpu")
    assert_close(case, got, reference(case, inputs), tolerance(case, inputs))
    assert np.abs(got.d).max() > 0


def test_unneeded_products_leave_no_trace_in_the_source(cold: Path, tmp_path: Path) -> None:
    module = load(TINY)
    _, record = compile_module(module, tmp_path / "out")
    source = (tmp_path / "out" / record["output"]).with_suffix("").with_suffix(".cu").read_text()
    names = set(re.findall(r"wt_\w+", source))
    assert names == {build["symbol"] for build in record["builds"]}
    assert roles(warp_tiles.plan(module, arch=90), needed=False) == ["adjoint_a", "adjoint_b"]
