"""Where a build fails: providers in order, nothing told twice, and a named provider is the only one."""

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
from warp_tiles.errors import BuildError, ToolchainError, WorkerError
from warp_tiles.settings import current

# ---- fallbacks


def test_without_a_failure_nothing_is_told(bench: Bench) -> None:
    assert bench.heard(ALIGNED)[1] == []


def test_first_cublasdx_is_asked(bench: Bench) -> None:
    bench.refuse(mma(ALIGNED))
    artifact, told = bench.heard(ALIGNED)
    assert (artifact.variant, artifact.symbol, artifact.provider) == (ALIGNED, ALIGNED.symbol, "cublasdx")
    assert artifact.tile_config is None
    (text,) = told
    assert ALIGNED.describe() in text
    assert "unsupported alignment" in text
    assert "; using cuBLASDx." in text
    assert len(artifact.warnings) == 1
    assert artifact.warnings[0] in text


def test_then_the_alignment_is_dropped(bench: Bench) -> None:
    bench.refuse(mma(ALIGNED), cublasdx(ALIGNED))
    artifact, told = bench.heard(ALIGNED)
    assert (artifact.variant, artifact.symbol, artifact.provider) == (ALIGNED, UNALIGNED.symbol, "cublasdx")
    text = told[1]
    assert ALIGNED.describe() in text
    assert "unsupported alignment" in text
    assert "using cuBLASDx without alignment" in text
    assert len(artifact.warnings) == 2
    assert artifact.warnings[1] in text


def test_then_warps_libmathdx_is_asked(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    rejected_sources = (mma(ALIGNED), cublasdx(ALIGNED), cublasdx(UNALIGNED))
    bench.refuse(*rejected_sources)
    artifact, told = bench.heard(ALIGNED)
    assert (artifact.symbol, artifact.payload, artifact.provider) == ("dot_8", b"libmathdx LTO-IR", "libmathdx")
    steps = ("cuBLASDx", "cuBLASDx without alignment", "Warp's libmathdx")
    for text, instead, rejected in zip(told, steps, rejected_sources):
        said, _, command = text.partition(" To see it alone: ")
        assert said.endswith(f"; using {instead}.")
        source = Path(command.rpartition(" ")[2])
        assert command.startswith("python -m warp_tiles.compile.worker --reproduce ")
        assert source.name == f"{rejected}.cu"
        assert source.read_text().startswith("// options: ")
    assert len(told) == 3
    assert artifact.key == ""


def test_a_weaker_variant_is_not_tried_where_there_is_none(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.refuse(mma(UNALIGNED), cublasdx(UNALIGNED))
    artifact, told = bench.heard(UNALIGNED)
    assert artifact.provider == "libmathdx"
    assert bench.pool.requests == [mma(UNALIGNED), cublasdx(UNALIGNED)]
    assert len(told) == 2


def test_last_comes_the_scalar_path(bench: Bench) -> None:
    bench.engine.use_libmathdx(failing_libmathdx)
    bench.refuse(mma(ALIGNED), cublasdx(ALIGNED), cublasdx(UNALIGNED))
    artifact, told = bench.heard(ALIGNED)
    assert (artifact.symbol, artifact.payload, artifact.provider) == ("", b"", "scalar")
    assert len(told) == 4
    assert "libmathdx error: no" in told[3]
    assert "using Warp's scalar path" in told[3]
    assert len(artifact.warnings) == 4


def test_without_libmathdx_the_scalar_path_comes_at_once(bench: Bench) -> None:
    bench.refuse(mma(UNALIGNED), cublasdx(UNALIGNED))
    artifact, told = bench.heard(UNALIGNED)
    assert artifact.provider == "scalar"
    assert len(told) == 2


def test_the_same_is_told_once(bench: Bench) -> None:
    bench.refuse(mma(ALIGNED))
    assert len(bench.heard(ALIGNED)[1]) == 1
    artifact, told = bench.heard(ALIGNED)
    assert told == []
    assert len(artifact.warnings) == 1  # the record still says it
    other = variant_of(16)
    bench.refuse(mma(other))
    assert len(bench.heard(other)[1]) == 1


def test_a_missing_toolchain_goes_to_libmathdx_at_once_and_is_told_once_for_all(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.store.error = ToolchainError("NVRTC was not found", remedy="pip install nvidia-cuda-nvrtc-cu12")
    artifact, told = bench.heard(ALIGNED)
    assert artifact.provider == "libmathdx"
    (text,) = told
    assert "NVRTC was not found" in text
    assert "pip install nvidia-cuda-nvrtc-cu12" in text
    assert "using Warp's libmathdx" in text
    assert bench.heard(variant_of(16))[1] == []
    assert bench.pool.requests == []


def test_an_nvrtc_newer_than_warps_linker_is_a_missing_toolchain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with settings.override(cache_dir=tmp_path, provider="auto"):
        engine = Engine(warp_toolkit=(12, 8))
        bench = Bench(engine, monkeypatch)
        assert engine.at(current()).try_toolchain() is None
        with pytest.raises(ToolchainError, match=r"12\.9.*12\.8"):
            engine.at(current()).toolchain()
        artifact, told = bench.heard(ALIGNED)
        assert artifact.provider == "scalar"
        assert "12.9" in told[0]
        engine.close()


def test_an_unusable_compiler_goes_to_libmathdx(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.pool.refuse[mma(ALIGNED)] = ToolchainError("NVRTC cannot be loaded")
    artifact, told = bench.heard(ALIGNED)
    assert artifact.provider == "libmathdx"
    assert bench.pool.requests == [mma(ALIGNED)], "what one provider that compiles lacks, the other lacks too"
    assert len(told) == 1


def test_a_compiler_process_that_dies_decides_nothing(bench: Bench) -> None:
    # a fallback would stay in Warp's kernel cache under the hash of a healthy toolchain
    bench.engine.use_libmathdx(libmathdx)
    bench.pool.refuse[mma(ALIGNED)] = WorkerError("a compiler process ended with exit status -9")
    with pytest.raises(WorkerError, match="-9"):
        bench.engine.start([ALIGNED])[ALIGNED].result(20)
    assert bench.pool.requests == [mma(ALIGNED)] * 2, "it is tried twice"


def test_an_architecture_that_the_compiler_does_not_know_goes_to_libmathdx(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.engine.use_libmathdx(libmathdx)
    toolchain = replace(bench.engine.at(current()).toolchain(), archs=(80, 90))
    monkeypatch.setattr(BuildContext, "toolchain", lambda self: toolchain)
    unknown = replace(ALIGNED, arch=110)
    artifact, told = bench.heard(unknown)
    assert artifact.provider == "libmathdx"
    assert bench.pool.requests == []
    assert "does not compile for sm_110" in told[0]


def futures_done(*futures: Future[Artifact]) -> bool:
    return not wait(futures, timeout=20).not_done


def test_closing_cancels_what_waits_and_those_who_share_it(bench: Bench) -> None:
    bench.pool.gate = threading.Event()
    first = bench.engine.start([ALIGNED])[ALIGNED]
    second = bench.engine.start([ALIGNED])[ALIGNED]
    closer = threading.Thread(target=bench.engine.close)
    closer.start()
    bench.pool.gate.set()
    closer.join(20)
    assert not closer.is_alive()
    assert futures_done(first, second), "neither hangs"


# ---- a provider that the user names


def test_a_forced_cublasdx_raises_what_it_met_first(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.refuse(cublasdx(ALIGNED), cublasdx(UNALIGNED))
    with settings.override(provider="cublasdx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the alignment was dropped
        with pytest.raises(BuildError, match=ALIGNED.symbol) as caught:
            bench.build(ALIGNED)
    assert "unsupported alignment" in caught.value.log
    assert bench.pool.requests == [cublasdx(ALIGNED), cublasdx(UNALIGNED)]


def test_a_forced_cublasdx_without_a_toolchain_raises(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    bench.store.error = ToolchainError("NVRTC was not found")
    with settings.override(provider="cublasdx"), pytest.raises(ToolchainError, match="NVRTC was not found"):
        bench.build(ALIGNED)


def test_a_forced_libmathdx_starts_there(bench: Bench) -> None:
    bench.engine.use_libmathdx(libmathdx)
    with settings.override(provider="libmathdx"):
        assert bench.build(ALIGNED).provider == "libmathdx"
    assert bench.pool.requests == []


def test_a_libmathdx_that_is_not_there_is_said(bench: Bench) -> None:
    with settings.override(provider="libmathdx"), pytest.raises(BuildError, match="no provider can build") as caught:
        bench.build(ALIGNED)
    assert 'call override(provider="auto")' in caught.value.remedy


def test_a_forced_scalar_path_builds_nothing(bench: Bench) -> None:
    with settings.override(provider="scalar"):
        assert bench.build(ALIGNED).payload == b""
    assert bench.pool.requests == []
