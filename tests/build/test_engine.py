"""From functions to artifacts: one build each, hits, resources created at their first use."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench import ALIGNED, TOOLCHAIN, UNALIGNED, Bench, annotated, cublasdx, own, plan_of, problem_of
from tests.waiting import in_threads, until
from warp_tiles import settings
from warp_tiles.build import engine
from warp_tiles.build.engine import STARTED_AHEAD, Engine
from warp_tiles.build.log import Artifact
from warp_tiles.codegen.trace import Session
from warp_tiles.errors import BuildError, ToolchainError
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan.planner import resolve
from warp_tiles.settings import Settings, current

# ---- builds and hits


def test_the_second_build_is_a_hit_and_the_manifest_describes_it(bench: Bench) -> None:
    built = bench.build(ALIGNED)
    assert (built.problem, built.symbol, built.provider, built.hit) == (ALIGNED, ALIGNED.symbol, "own", False)
    assert built.payload == f"LTO-IR of {own(ALIGNED)}".encode()
    assert built.tile_config == choose(ALIGNED)
    hit = bench.build(ALIGNED)
    assert hit.hit
    assert (hit.payload, hit.key, hit.symbol) == (built.payload, built.key, built.symbol)
    assert (hit.tile_config, hit.warnings) == (built.tile_config, ())
    assert bench.pool.requests == [own(ALIGNED)]
    info = bench.cache.manifest(built.key).info  # type: ignore[union-attr]
    assert (info["symbol"], info["problem"]) == (ALIGNED.symbol, ALIGNED.to_json())
    assert (info["build_seconds"], info["compiler"], info["provider"]) == (0.5, "NVRTC 12.9", "own")
    assert info["tile_config"] == choose(ALIGNED).to_json()
    with settings.override(provider="cublasdx"):
        other = bench.cache.manifest(bench.build(ALIGNED).key).info  # type: ignore[union-attr]
    assert (other["provider"], other["mathdx"]) == ("cublasdx", "25.6.0")


def test_equal_problems_of_many_threads_are_built_once(bench: Bench) -> None:
    bench.pool.gate = threading.Event()
    first, second = bench.engine.start([ALIGNED]), bench.engine.start([ALIGNED])
    others = [problem_of(size) for size in (12, 16)]
    opener = threading.Timer(0.05, bench.pool.gate.set)
    opener.start()
    found = in_threads(8, lambda: bench.engine.start([ALIGNED, *others, replace(ALIGNED)]))
    assert {future.result(20).problem for futures in found for future in futures.values()} == {ALIGNED, *others}
    assert sorted(bench.pool.requests) == sorted(own(v) for v in (ALIGNED, *others))
    built, shared = first[ALIGNED].result(20), second[ALIGNED].result(20)
    assert (built.hit, shared.hit) == (False, True), "the second module built nothing"
    assert (built.shared, shared.shared) == (False, True)
    assert replace(shared, hit=False, shared=False) == built
    until(lambda: not bench.engine._running)  # a finished one is forgotten


class Immediate:
    """Runs each call before submit() returns, like a thread that wins every race."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future

    def close(self) -> None:
        pass


def test_a_build_that_ends_before_start_returns_causes_no_deadlock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()
    artifact = Artifact(ALIGNED, "", b"", "scalar", "", False, 0.0)
    monkeypatch.setattr(bench.engine, "_build", lambda *_: artifact)
    bench.engine.resources._made["waiters",] = Immediate()

    def ask() -> None:
        assert bench.engine.start([ALIGNED])[ALIGNED].result(1) is artifact
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    finished = done.wait(3)
    if not finished:
        bench.engine._lock = threading.RLock()  # so that the fixture can close the engine
    assert finished, "start() waits for a lock that it holds"
    assert not bench.engine._running


def test_a_build_that_fails_to_start_is_forgotten(bench: Bench) -> None:
    bench.engine.resources.waiters.close()
    with pytest.raises(RuntimeError, match="were closed"):
        bench.engine.start([ALIGNED])
    assert not bench.engine._running


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


# ---- folders and resources


def test_an_engine_creates_no_files_and_a_shared_cache_has_a_toolchain_store_of_its_own(tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path / "cache", cache_shared=False):
        engine = Engine()
        assert engine.build_context(current()).cache.root == tmp_path / "cache"
        private = engine.build_context(current()).facts
        assert engine.build_context(current()).facts is private
        with settings.override(cache_shared=True):
            assert engine.build_context(current()).facts is not private
        engine.close()
    assert list(tmp_path.iterdir()) == []


def test_records_do_not_count_in_a_deterministic_module() -> None:
    tuned: Any = SimpleNamespace(snapshot=lambda *_: "records", tune_launch=lambda *_: pytest.fail("a search"))
    engine = Engine(tuned=tuned)
    deterministic = settings.current({"deterministic": 1})
    assert engine.measurements(settings.current()) == "records"
    assert engine.measurements(deterministic) is None
    assert engine.measurements(settings.current({"deterministic": 1, "warp_tiles_forced": "{}"})) == "records", (
        "a search"
    )
    engine.tune_launch(deterministic)


def test_different_settings_have_different_resources(tmp_path: Path) -> None:
    engine = Engine()
    try:
        with settings.override(cache_dir=tmp_path, jobs=1):
            one = engine.build_context(current())
            assert engine.build_context(current()).pool is one.pool
            other = engine.build_context(current({"warp_tiles_jobs": 2, "warp_tiles_cache_max_bytes": "1MB"}))
            assert other.pool is one.pool, "override() beats a module's options"
            before = one.pool
            before.start_processes(1)
            with settings.override(jobs=2):
                newer = engine.build_context(current()).pool
                assert newer.jobs == 2
                assert one.pool is newer, "a build that began with another number takes the present pool"
                assert before._processes == [], "those of the other number have ended"
            assert (other.cache.max_bytes, one.cache.root) == (10**6, other.cache.root)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("changes", "started"),
    [
        *((change, True) for change in ({}, {"provider": "own"}, {"provider": "cublasdx"}, {"policy": "fast"})),
        *(({"provider": provider}, False) for provider in ("libmathdx", "scalar")),
        *(({"policy": policy}, False) for policy in ("scalar", "off", "locked")),
        ({"policy": "fast", "provider": "scalar"}, False),
    ],
)
def test_compilers_start_ahead_only_for_a_provider_that_compiles(
    bench: Bench, changes: dict[str, str], started: bool
) -> None:
    with settings.override(**changes):
        bench.engine.start_compilers(current(), "m")
    assert bench.pool.started == (STARTED_AHEAD if started else 0)


@pytest.mark.parametrize("provider", ["own", pytest.param("cublasdx", marks=pytest.mark.slow)])
def test_a_tiny_product_is_compiled_and_then_found(provider: str, tmp_path: Path) -> None:
    tiny = problem_of(4)
    with settings.override(cache_dir=tmp_path, provider=provider, jobs=1, progress="off"):
        for expected_hit in (False, True):
            engine = Engine()
            artifact = engine.start([tiny])[tiny].result(120)
            engine.close()
            assert artifact.hit is expected_hit
            assert artifact.payload.startswith(b"\xedCN\x7f")
            assert artifact.symbol == tiny.symbol
            assert len(artifact.payload) < 1_000_000


def test_a_forked_child_waits_for_no_lock_of_its_parents_threads(tmp_path: Path) -> None:
    engine = Engine()
    (tmp_path / "file").write_text("content")
    # as a thread has it that is no longer there
    with settings.override(cache_dir=tmp_path / "cache"), engine.progress._lock:
        engine.after_fork()

        def work() -> None:
            with engine.progress.counted("a build", "off"):
                engine.build_context(current()).facts.digests.digest(tmp_path / "file")

        child = threading.Thread(target=work, daemon=True)
        child.start()
        child.join(10)
        assert not child.is_alive()


# ---- before a build: plans with provider, key and cache state


def test_a_plan_is_annotated_with_provider_key_and_cache_state(bench: Bench) -> None:
    before = annotated(bench.engine, plan_of(ALIGNED))
    forward = before.needed[0]
    assert (forward.provider, forward.cached, len(forward.key)) == ("own", False, 64)
    assert (forward.symbol, forward.tile_config) == (ALIGNED.symbol, choose(ALIGNED))
    assert bench.pool.requests == [], "planning builds nothing"
    skipped = next(item for item in before.functions if not item.needed)
    assert (skipped.provider, skipped.key, skipped.symbol, skipped.tile_config) == ("", "", "", None)
    built = bench.build(ALIGNED)
    after = annotated(bench.engine, plan_of(ALIGNED)).needed[0]
    assert after.cached
    assert after.key == built.key == forward.key


def test_a_scalar_site_is_planned_as_scalar(bench: Bench) -> None:
    session = Session("module", None, 1)
    session.add("tile_matmul", "k", {}, scalar_reason=Rejected("cpu"))
    found = annotated(bench.engine, resolve(session, (), ["k"], []))
    assert [item.provider for item in found.functions if item.needed] == ["scalar"]


# ---- the text that is added to a module's hash: each input of the machine code changes it


CHANGES = (
    {"register_accumulators": False}, {"async_copies": False}, {"main_loop": "mma"}, {"mathdx_opt_out": "own"},
    {"solver_gradients": "own"}, {"linker": "warp"}, {"provider": "own"},
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_setting_that_affects_code_changes_it(bench: Bench, change: dict[str, Any]) -> None:
    usual, changed = Settings(), Settings(**change)
    assert bench.engine.fingerprint(changed) != bench.engine.fingerprint(usual) == bench.engine.fingerprint(Settings())
    assert bench.engine.choices(changed) != bench.engine.choices(usual)
    assert {name for change in CHANGES for name in change} == set(Settings().affecting_code())
    named, allowed = Settings(provider="scalar"), Settings(policy="scalar")
    assert named.providers == allowed.providers
    assert bench.engine.fingerprint(named) != bench.engine.fingerprint(allowed)


def test_another_linker_of_the_same_version_changes_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.facts.found = replace(TOOLCHAIN, nvjitlink=Path("libnvJitLink.so"))
    contents = "first"
    monkeypatch.setattr(bench.facts.digests, "digest", lambda path: f"{contents} {path.name}", raising=False)
    before = bench.engine.fingerprint(Settings())
    assert "linker=first libnvJitLink.so" in before
    contents = "second"
    assert bench.engine.fingerprint(Settings()) != before


def test_the_version_of_the_package_and_a_missing_toolchain_change_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bench.engine.fingerprint(Settings(provider="own"))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "__version__", "0.0.0")
        assert bench.engine.fingerprint(Settings(provider="own")) != before
    bench.facts.error = ToolchainError("NVRTC was not found")
    assert "own: NVRTC was not found" in bench.engine.fingerprint(Settings(provider="own")) != before
