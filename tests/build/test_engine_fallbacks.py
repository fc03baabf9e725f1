"""Failed builds: the order of providers, one warning for each failure, and a named provider as the only one."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import ALIGNED, UNALIGNED, Bench, cublasdx, failing_libmathdx, libmathdx, mma, variant_of
from warp_tiles import settings
from warp_tiles.build.context import BuildContext
from warp_tiles.build.engine import Engine
from warp_tiles.build.records import Artifact
from warp_tiles.errors import BuildError, LockedError, ToolchainError, WarpTilesError, WorkerError
from warp_tiles.providers.fallbacks import COSTS, LIBMATHDX_TITLE
from warp_tiles.settings import current

# ---- fallbacks


@pytest.mark.parametrize(
    ("refused", "symbol", "instead"),
    [
        ([mma(ALIGNED)], ALIGNED.symbol, "; using cuBLASDx."),
        ([mma(ALIGNED), cublasdx(ALIGNED)], UNALIGNED.symbol, "; using cuBLASDx without alignment."),
    ],
)
def test_cublasdx_is_the_first_fallback(bench: Bench, refused: list[str], symbol: str, instead: str) -> None:
    bench.refuse(*refused)
    artifact, warned = bench.build_with_warnings(ALIGNED)
    assert (artifact.variant, artifact.symbol, artifact.provider) == (ALIGNED, symbol, "cublasdx")
    assert artifact.tile_config is None
    text = warned[-1]
    for part in (ALIGNED.describe(), "unsupported alignment", instead):
        assert part in text
    assert len(artifact.warnings) == len(warned) == len(refused)
    assert artifact.warnings[-1] in text


def test_warps_libmathdx_is_the_third_fallback(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    rejected_sources = (mma(ALIGNED), cublasdx(ALIGNED), cublasdx(UNALIGNED))
    bench.refuse(*rejected_sources)
    artifact, warned = bench.build_with_warnings(ALIGNED)
    assert (artifact.symbol, artifact.payload, artifact.provider) == ("dot_8", b"libmathdx LTO-IR", "libmathdx")
    steps = ("cuBLASDx", "cuBLASDx without alignment", f"Warp's libmathdx, {COSTS[LIBMATHDX_TITLE]}")
    for text, instead, rejected in zip(warned, steps, rejected_sources):
        message, _, command = text.partition(" To see it alone: ")
        assert message.endswith(f"; using {instead}.")
        source = Path(command.rpartition(" ")[2])
        assert command.startswith("python -m warp_tiles.compile.worker --reproduce ")
        assert source.name == f"{rejected}.cu"
        assert source.read_text().startswith("// flags: ")
    assert len(warned) == 3
    assert artifact.key == ""


def test_a_variant_without_weaker_promises_is_tried_once(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.refuse(mma(UNALIGNED), cublasdx(UNALIGNED))
    artifact, warned = bench.build_with_warnings(UNALIGNED)
    assert artifact.provider == "libmathdx"
    assert bench.pool.requests == [mma(UNALIGNED), cublasdx(UNALIGNED)]
    assert len(warned) == 2


def test_the_scalar_path_is_the_last_fallback(bench: Bench) -> None:
    bench.engine.use_libmathdx(failing_libmathdx)
    bench.refuse(mma(ALIGNED), cublasdx(ALIGNED), cublasdx(UNALIGNED))
    artifact, warned = bench.build_with_warnings(ALIGNED)
    assert (artifact.symbol, artifact.payload, artifact.provider) == ("", b"", "scalar")
    assert len(warned) == 4
    assert "libmathdx error: no" in warned[3]
    assert "using Warp's scalar path" in warned[3]
    assert len(artifact.warnings) == 4


def test_an_equal_warning_is_issued_once(bench: Bench) -> None:
    bench.refuse(mma(ALIGNED))
    assert len(bench.build_with_warnings(ALIGNED)[1]) == 1
    artifact, warned = bench.build_with_warnings(ALIGNED)
    assert warned == []
    assert len(artifact.warnings) == 1  # the record still has it
    other = variant_of(16)
    bench.refuse(mma(other))
    assert len(bench.build_with_warnings(other)[1]) == 1


def test_a_missing_toolchain_falls_back_to_libmathdx_with_one_warning(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.store.error = ToolchainError("NVRTC was not found", remedy="pip install nvidia-cuda-nvrtc-cu12")
    artifact, warned = bench.build_with_warnings(ALIGNED)
    assert artifact.provider == "libmathdx"
    (text,) = warned
    assert "NVRTC was not found" in text
    assert "pip install nvidia-cuda-nvrtc-cu12" in text
    assert "using Warp's libmathdx" in text
    assert bench.build_with_warnings(variant_of(16))[1] == []
    assert bench.pool.requests == []


@pytest.mark.parametrize(("policy", "error"), [("fast", ToolchainError), ("locked", LockedError)])
def test_fast_and_locked_do_not_replace_a_missing_toolchain(
    bench: Bench, policy: str, error: type[WarpTilesError]
) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.store.error = ToolchainError("NVRTC was not found", remedy="install it")
    with settings.override(policy=policy):
        with pytest.raises(error, match="NVRTC was not found") as caught:
            bench.build(ALIGNED)
        assert caught.value.remedy.startswith("install it; ")
        assert bench.build_with_warnings(replace(ALIGNED, threads=16))[0].provider == "scalar"


def test_fast_does_not_replace_an_unusable_compiler(bench: Bench) -> None:
    bench.pool.refuse[mma(ALIGNED)] = ToolchainError("NVRTC cannot be loaded", log="no such symbol")
    with settings.override(policy="fast"), pytest.raises(ToolchainError, match="NVRTC cannot be loaded") as caught:
        bench.build(ALIGNED)
    assert caught.value.log == "no such symbol"
    assert caught.value.remedy == 'call override(policy="auto")'


def test_an_nvrtc_newer_than_warps_linker_is_a_missing_toolchain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with settings.override(cache_dir=tmp_path, provider="auto"):
        engine = Engine(warp_toolkit=(12, 8))
        bench = Bench(engine, monkeypatch)
        assert engine.build_context(current()).try_toolchain() is None
        with pytest.raises(ToolchainError, match=r"12\.9.*12\.8"):
            engine.build_context(current()).toolchain()
        artifact, warned = bench.build_with_warnings(ALIGNED)
        assert artifact.provider == "scalar"
        assert "12.9" in warned[0]
        engine.close()


def test_an_unusable_compiler_falls_back_to_libmathdx(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.pool.refuse[mma(ALIGNED)] = ToolchainError("NVRTC cannot be loaded")
    artifact, warned = bench.build_with_warnings(ALIGNED)
    assert artifact.provider == "libmathdx"
    assert bench.pool.requests == [mma(ALIGNED)], "without a toolchain no other compiling provider is tried"
    assert len(warned) == 1


def test_a_crash_of_the_compiler_process_is_no_fallback(bench: Bench) -> None:
    # a fallback would stay in Warp's kernel cache under the hash of a healthy toolchain
    bench.engine.use_libmathdx(libmathdx)
    bench.pool.refuse[mma(ALIGNED)] = WorkerError("a compiler process ended with exit status -9")
    with pytest.raises(WorkerError, match="-9"):
        bench.engine.start([ALIGNED])[ALIGNED].result(20)
    assert bench.pool.requests == [mma(ALIGNED)] * 2, "the request is sent twice"


def test_an_unknown_architecture_falls_back_to_libmathdx(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.engine.use_libmathdx(libmathdx)
    toolchain = replace(bench.engine.build_context(current()).toolchain(), archs=(80, 90))
    monkeypatch.setattr(BuildContext, "toolchain", lambda self: toolchain)
    unknown = replace(ALIGNED, arch=110)
    artifact, warned = bench.build_with_warnings(unknown)
    assert artifact.provider == "libmathdx"
    assert bench.pool.requests == []
    assert "does not compile for sm_110" in warned[0]


def futures_done(*futures: Future[Artifact]) -> bool:
    return not wait(futures, timeout=20).not_done


def test_closing_cancels_waiting_builds_and_shared_ones(bench: Bench) -> None:
    bench.pool.gate = threading.Event()
    first = bench.engine.start([ALIGNED])[ALIGNED]
    second = bench.engine.start([ALIGNED])[ALIGNED]
    closer = threading.Thread(target=bench.engine.close)
    closer.start()
    bench.pool.gate.set()
    closer.join(20)
    assert not closer.is_alive()
    assert futures_done(first, second), "a future hangs"


# ---- a named provider


def test_a_forced_cublasdx_raises_its_first_error(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.refuse(cublasdx(ALIGNED), cublasdx(UNALIGNED))
    with settings.override(provider="cublasdx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning of the dropped alignment
        with pytest.raises(BuildError, match=ALIGNED.symbol) as caught:
            bench.build(ALIGNED)
    assert "unsupported alignment" in caught.value.log
    assert bench.pool.requests == [cublasdx(ALIGNED), cublasdx(UNALIGNED)]


@pytest.mark.parametrize("name", ["libmathdx", "scalar"])
def test_other_forced_providers_compile_nothing(bench: Bench, name: str) -> None:
    bench.engine.use_libmathdx(libmathdx)
    with settings.override(provider=name):
        assert bench.build(ALIGNED).provider == name
    assert bench.pool.requests == []


def test_a_forced_libmathdx_that_is_missing_raises(bench: Bench) -> None:
    with settings.override(provider="libmathdx"), pytest.raises(BuildError, match="no provider can build") as caught:
        bench.build(ALIGNED)
    assert 'call override(provider="auto")' in caught.value.remedy
