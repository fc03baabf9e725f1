"""From variants to artifacts: one build each, fallbacks in order, nothing told twice."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import ALIGNED, UNALIGNED, Bench, cublasdx, failing_libmathdx, libmathdx, mma, variant_of
from warp_tiles import settings
from warp_tiles.cache import CacheKey
from warp_tiles.choose import choose
from warp_tiles.engine import Engine
from warp_tiles.errors import BuildError, ToolchainError, WorkerError
from warp_tiles.planning import ModulePlan, Session, resolve
from warp_tiles.providers import CublasdxProvider
from warp_tiles.records import Artifact
from warp_tiles.settings import current
from warp_tiles.variant import GemmVariant, Role
from warp_tiles.workshop import SettledWorkshop

# ---- builds and hits


def test_a_build_then_a_hit(bench: Bench) -> None:
    built = bench.build(ALIGNED)
    assert (built.variant, built.symbol, built.provider, built.hit) == (ALIGNED, ALIGNED.symbol, "mma", False)
    assert built.payload == f"LTO-IR of {mma(ALIGNED)}".encode()
    assert built.tile_config == choose(ALIGNED)
    hit = bench.build(ALIGNED)
    assert hit.hit
    assert (hit.payload, hit.key, hit.symbol) == (built.payload, built.key, built.symbol)
    assert hit.tile_config == built.tile_config
    assert hit.warnings == ()
    assert bench.pool.requests == [mma(ALIGNED)]


def test_the_manifest_says_what_was_built(bench: Bench) -> None:
    built = bench.build(ALIGNED)
    entry = bench.engine.cache.manifest(built.key)
    assert entry is not None
    assert entry.info["symbol"] == ALIGNED.symbol
    assert entry.info["variant"] == ALIGNED.to_json()
    assert entry.info["build_seconds"] == 0.5
    assert entry.info["compiler"] == "NVRTC 12.9"
    assert entry.info["tile_config"] == choose(ALIGNED).to_json()
    assert entry.info["provider"] == "mma"
    with settings.override(provider="cublasdx"):
        other = bench.engine.cache.manifest(bench.build(ALIGNED).key)
    assert other is not None
    assert (other.info["provider"], other.info["mathdx"]) == ("cublasdx", "25.6.0")


def test_equal_variants_asked_by_many_threads_are_built_once(bench: Bench) -> None:
    bench.pool.gate = threading.Event()
    found: list[Artifact] = []
    others = [variant_of(size) for size in (12, 16)]

    def ask() -> None:
        futures = bench.engine.start([ALIGNED, *others, replace(ALIGNED)])
        found.extend(future.result(20) for future in futures.values())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    bench.pool.gate.set()
    for thread in threads:
        thread.join(20)
    assert sorted(bench.pool.requests) == sorted(mma(v) for v in (ALIGNED, *others))
    assert len(found) == 8 * 3


def test_an_in_flight_build_is_shared(bench: Bench) -> None:
    bench.pool.gate = threading.Event()
    first, second = bench.engine.start([ALIGNED]), bench.engine.start([ALIGNED])
    bench.pool.gate.set()
    built, found = first[ALIGNED].result(20), second[ALIGNED].result(20)
    assert (built.hit, found.hit) == (False, True), "the second module built nothing"
    assert replace(found, hit=False) == built
    assert len(bench.pool.requests) == 1
    end = time.monotonic() + 10
    while bench.engine._in_flight and time.monotonic() < end:
        time.sleep(0.005)
    assert bench.engine._in_flight == {}  # a finished one is forgotten


class Immediate(Executor):
    """Runs what it is given before submit() returns, as a thread that wins every race does."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


def test_a_build_that_ends_before_start_returns_does_not_lock_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    artifact = Artifact(ALIGNED, "", b"", "scalar", "", False, 0.0)
    monkeypatch.setattr(bench.engine, "_build", lambda *_: artifact)
    bench.engine.resources._waiters = Immediate()  # type: ignore[assignment]

    def ask() -> None:
        assert bench.engine.start([ALIGNED])[ALIGNED].result(1) is artifact
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    finished = done.wait(3)
    if not finished:
        bench.engine._lock = threading.Lock()  # so that the fixture can close the engine
    assert finished, "start() waits for a lock that it holds"
    assert bench.engine._in_flight == {}


def test_errors_are_not_cached(bench: Bench) -> None:
    with settings.override(provider="cublasdx"):
        bench.refuse(cublasdx(UNALIGNED))
        with pytest.raises(BuildError):
            bench.build(UNALIGNED)
        with pytest.raises(BuildError):
            bench.build(UNALIGNED)
        assert bench.pool.requests == [cublasdx(UNALIGNED)] * 2
        bench.pool.refuse.clear()
        assert bench.build(UNALIGNED).payload


def test_two_settings_of_the_provider_do_not_share_a_build(bench: Bench) -> None:
    bench.pool.gate = threading.Event()
    first = bench.engine.start([ALIGNED])[ALIGNED]
    with settings.override(provider="scalar"):
        assert bench.engine.start([ALIGNED])[ALIGNED].result(20).provider == "scalar"
    bench.pool.gate.set()
    assert first.result(20).provider == "mma"


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
        assert command.startswith("python -m warp_tiles.worker --reproduce ")
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
    monkeypatch.setattr(SettledWorkshop, "toolchain", lambda self: toolchain)
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
    assert "WARP_TILES_PROVIDER=auto" in caught.value.remedy


def test_a_forced_scalar_path_builds_nothing(bench: Bench) -> None:
    with settings.override(provider="scalar"):
        assert bench.build(ALIGNED).payload == b""
    assert bench.pool.requests == []


# ---- the salt of Warp's module hash


def test_the_salt_is_stable(bench: Bench) -> None:
    assert bench.engine.salt() == bench.engine.salt()
    assert bench.engine.salt()


@pytest.mark.parametrize("provider", ["mma", "cublasdx", "libmathdx", "scalar"])
def test_the_salt_follows_the_provider(bench: Bench, provider: str) -> None:
    before = bench.engine.salt()
    with settings.override(provider=provider):
        assert bench.engine.salt() != before


@pytest.mark.parametrize("linker", ["own", "warp"])
def test_the_salt_follows_the_linker(bench: Bench, linker: str) -> None:
    before = bench.engine.salt()
    with settings.override(linker=linker):
        assert bench.engine.salt() != before


@pytest.mark.parametrize("name", ["source", "compiler"])
def test_the_salt_follows_the_digests(bench: Bench, name: str) -> None:
    before = bench.engine.salt()
    setattr(bench.store, name, "another digest")
    assert bench.engine.salt() != before


def test_the_salt_follows_a_toolchain_that_goes_missing(bench: Bench) -> None:
    before = bench.engine.salt()
    bench.store.error = ToolchainError("gone")
    assert bench.engine.salt() != before


def test_the_salt_of_the_scalar_path_ignores_the_compiler(bench: Bench) -> None:
    with settings.override(provider="scalar"):
        before = bench.engine.salt()
        bench.store.compiler = "another digest"
        assert bench.engine.salt() == before


# ---- plans


def plan_of(*variants: GemmVariant) -> ModulePlan:
    session = Session("module", 90, 32)
    for variant in variants:
        session.add("tile_matmul", "k", {Role.FORWARD: variant})
    return resolve(session, "", ["k"], [])


def test_a_plan_is_annotated_with_provider_key_and_cache_state(bench: Bench) -> None:
    before = bench.engine.annotate(plan_of(ALIGNED))
    forward = before.needed[0]
    assert (forward.provider, forward.cached, len(forward.key)) == ("mma", False, 64)
    assert (forward.symbol, forward.tile_config) == (ALIGNED.symbol, choose(ALIGNED))
    skipped = next(item for item in before.variants if not item.needed)
    assert (skipped.provider, skipped.key, skipped.symbol, skipped.tile_config) == ("", "", "", None)
    built = bench.build(ALIGNED)
    after = bench.engine.annotate(plan_of(ALIGNED)).needed[0]
    assert after.cached
    assert after.key == built.key == forward.key


def test_planning_builds_nothing(bench: Bench) -> None:
    bench.engine.annotate(plan_of(ALIGNED))
    assert bench.pool.requests == []


@pytest.mark.parametrize("there", [True, False])
def test_a_plan_without_a_toolchain_says_who_builds_instead(bench: Bench, there: bool) -> None:
    if there:
        bench.engine.use_libmathdx(libmathdx)
    bench.store.error = ToolchainError("NVRTC was not found")
    (item,) = bench.engine.annotate(plan_of(ALIGNED)).needed
    assert item.provider == ("libmathdx" if there else "scalar")
    assert "NVRTC was not found" in item.reason
    assert item.key == ""


def test_a_plan_for_a_forced_cublasdx_without_a_toolchain_raises(bench: Bench) -> None:
    bench.store.error = ToolchainError("NVRTC was not found")
    with settings.override(provider="cublasdx"), pytest.raises(ToolchainError):
        bench.engine.annotate(plan_of(ALIGNED))


def test_a_scalar_site_is_planned_as_scalar(bench: Bench) -> None:
    session = Session("module", None, 1)
    session.add("tile_matmul", "k", {}, scalar_reason="the target is a CPU")
    annotated = bench.engine.annotate(resolve(session, "", ["k"], []))
    assert [item.provider for item in annotated.variants if item.needed] == ["scalar"]


def test_a_variant_under_two_roles_is_built_once(bench: Bench) -> None:
    session = Session("module", 90, 32)
    session.add("tile_matmul", "k", {Role.FORWARD: ALIGNED, Role.ADJOINT_A: ALIGNED, Role.ADJOINT_B: ALIGNED})
    plan = resolve(session, "wp::adj_tile_matmul(wt_site0_forward);", ["k"], [])
    assert len(plan.needed) == 3
    futures = bench.engine.start(item.variant for item in plan.needed if item.variant)
    assert {future.result(20).symbol for future in futures.values()} == {ALIGNED.symbol}
    assert bench.pool.requests == [mma(ALIGNED)]


# ---- folders and parts


def test_making_an_engine_touches_nothing(tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path / "cache"):
        engine = Engine()
        assert engine.cache.root == tmp_path / "cache"
        engine.close()
    assert list(tmp_path.iterdir()) == []


def test_the_cache_follows_the_settings(bench: Bench, tmp_path: Path) -> None:
    first = bench.engine.cache
    assert bench.engine.cache is first
    with settings.override(cache_dir=tmp_path / "other"):
        assert bench.engine.cache.root == tmp_path / "other"
    with settings.override(cache_max_bytes=5):
        assert bench.engine.cache.max_bytes == 5
    assert bench.engine.cache is first


def test_resources_are_kept_apart_by_the_settings_that_name_them(tmp_path: Path) -> None:
    engine = Engine()
    try:
        with settings.override(cache_dir=tmp_path, jobs=1):
            one = engine.at(current())
            assert engine.at(current()).pool is one.pool
            assert engine.at(current(), patient=True).pool is not one.pool, "nobody waits behind a background build"
            other = engine.at(current({"warp_tiles_jobs": 2, "warp_tiles_cache_max_bytes": "1MB"}))
            assert other.pool is one.pool, "code comes before a module's options"
            with settings.override(jobs=2):
                assert engine.at(current()).pool is not one.pool
                assert engine.at(current()).pool.jobs == 2
            assert (other.cache.max_bytes, one.cache.root) == (10**6, other.cache.root)
    finally:
        engine.close()


def test_what_was_built_ahead_is_found_once(bench: Bench) -> None:
    artifact = bench.build(ALIGNED)
    bench.engine.keep([replace(artifact, payload=b"kept")], current())
    assert bench.build(ALIGNED).payload == b"kept"
    assert bench.build(ALIGNED).payload == artifact.payload


def test_the_toolchains_memory_follows_the_setting_of_a_shared_folder(tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path, cache_shared=False):
        engine = Engine()
        private = engine.at(current()).store
        assert engine.at(current()).store is private
        with settings.override(cache_shared=True):
            assert engine.at(current()).store is not private
        engine.close()


def test_a_cache_that_cannot_be_used_costs_the_caching_alone(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with settings.override(cache_dir=tmp_path / "file" / "cache"):
        assert bench.build(ALIGNED).payload
        assert not bench.build(ALIGNED).hit
        assert bench.engine.cache.problems
    assert len(bench.pool.requests) == 2


def test_the_key_of_the_weaker_variant_is_its_own(bench: Bench) -> None:
    bench.refuse(mma(ALIGNED), cublasdx(ALIGNED))
    artifact, _ = bench.heard(ALIGNED)
    provider = CublasdxProvider(bench.store)  # type: ignore[arg-type]
    key: CacheKey = provider.key(UNALIGNED)
    assert artifact.key == key.digest
    assert bench.engine.cache.get(provider.key(ALIGNED)) is None


# ---- for real


@pytest.mark.parametrize("provider", ["mma", "cublasdx"])
def test_a_tiny_product_is_built_for_real_and_then_found(provider: str, tmp_path: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core compiles")
    tiny = variant_of(4)
    with settings.override(cache_dir=tmp_path, provider=provider, jobs=1, progress="off"):
        for expected_hit in (False, True):
            engine = Engine()
            artifact = engine.start([tiny])[tiny].result(120)
            engine.close()
            assert artifact.hit is expected_hit
            assert artifact.payload.startswith(b"\xedCN\x7f")
            assert artifact.symbol == tiny.symbol
            assert len(artifact.payload) < 1_000_000
