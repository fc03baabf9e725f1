"""Each policy end to end, on small modules that are compiled for sm_90 without a GPU."""

import inspect
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from benchmarks.stand_in import StandIn
from tests._warp.generate import source_of
from tests.integration.helpers import compile_module, gemm, load
from tests.integration.test_hash import CHOLESKY, COPY, warp_hash
from warp_tiles import settings
from warp_tiles._warp import installed
from warp_tiles._warp.internals import find
from warp_tiles.build.engine import Engine

THREE = gemm(m=16, n=32, k=48)  # three different functions


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Path]:
    """warp_tiles with an empty LTO-IR cache."""
    warp_tiles.disable()
    with warp_tiles.override(cache_dir=tmp_path / "lto", progress="off"), warp_tiles.enabled():
        yield tmp_path / "lto"


def engine() -> Engine:
    return installed().engine


def providers(record: dict[str, Any]) -> list[str]:
    return [build["provider"] for build in record["builds"]]


@pytest.mark.parametrize("text", [gemm(), CHOLESKY])
@pytest.mark.parametrize("layer", ["process", "module"])
def test_off_leaves_hash_and_code_to_warp(layer: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[Any, ...]] = []

    def build_lto_dot(M: int, N: int, K: int, *rest: Any, **_: Any) -> tuple[str, bytes]:
        built.append((M, N, K))
        return f"dot_{M}_{N}_{K}", b""

    original = find("build.build_lto_dot")
    build_lto_dot.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    monkeypatch.setattr(find("build"), "build_lto_dot", build_lto_dot)
    monkeypatch.setattr(find("build"), "build_lto_solver", lambda *args, **kwargs: ("solver", b""))
    options = {"warp_tiles_policy": "off"} if layer == "module" else {}
    module = load(text, **options)

    warp_tiles.disable()
    expected, calls = (warp_hash(module), source_of(module)), list(built)
    assert calls
    built.clear()
    with warp_tiles.enabled(), warp_tiles.override(**({} if layer == "module" else {"policy": "off"})):
        assert (warp_hash(module), source_of(module)) == expected
        assert built == calls
        found = warp_tiles.plan(module, arch=90)
        assert (found.functions, found.settings.policy) == ((), "off")
        assert built == calls, "planning builds nothing"


def test_a_forbidden_provider_is_an_error_at_every_use_of_the_module(cold: Path, tmp_path: Path) -> None:
    module = load(gemm(), warp_tiles_provider="cublasdx")
    message = r"'fast' \(override.* does not allow .*'cublasdx' \(module option warp_tiles_provider of module"
    with warp_tiles.override(policy="fast"):
        for use in (warp_hash, warp_tiles.plan, lambda module: compile_module(module, tmp_path)):
            with pytest.raises(warp_tiles.SettingError, match=message):
                use(module)
        with warp_tiles.override(policy="off"), pytest.raises(warp_tiles.SettingError, match="'off'"):
            warp_hash(module)


@pytest.mark.slow
def test_a_module_has_its_own_policy_cache_and_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warp_tiles.disable()
    monkeypatch.delenv("WARP_TILES_CACHE_DIR", raising=False)
    monkeypatch.setenv("WARP_TILES_POLICY", "scalar")
    options = {"policy": "fast", "cache_dir": str(tmp_path / "own"), "jobs": 1, "progress": "off"}
    module = load(gemm(), enable_backward=False, **{f"warp_tiles_{name}": value for name, value in options.items()})
    with warp_tiles.enabled():
        _, record = compile_module(module, tmp_path / "out")
        assert (providers(record), record["policy"], record["lto_builds"]) == (["own"], "fast", 1)
        assert [made for made in engine().resources._made if made[0] == "pool"] == [("pool", 1)]
    assert (tmp_path / "own").is_dir()


def test_an_unknown_option_of_any_module_is_refused() -> None:
    module = load(COPY, warp_tiles_polcy="fast")
    with warp_tiles.enabled(), pytest.raises(warp_tiles.SettingError, match="option warp_tiles_polcy is unknown"):
        warp_hash(module)


@pytest.mark.slow
def test_locked_uses_builds_of_auto_and_warns_that_it_links(
    cold: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = load(THREE)
    first, _ = compile_module(module, tmp_path / "auto")
    with warp_tiles.override(policy="locked"), caplog.at_level(logging.WARNING, "warp_tiles"):
        wp.get_module(module.__name__).mark_modified()
        second, record = compile_module(module, tmp_path / "locked")
    assert second.name == first.name
    assert second.read_bytes() == first.read_bytes()
    assert (record["lto_builds"], record["lto_hits"]) == (0, 3)
    (warning,) = (item for item in caplog.records if item.levelno == logging.WARNING)
    assert f"module {module.__name__} was linked in" in warning.getMessage()
    assert "kernel cache" in warning.getMessage()


@pytest.mark.slow
def test_max_tunes_once_without_warps_lock(cold: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def take_and_release() -> None:
        with find("codegen._codegen_lock"):
            pass

    def tune(resolved: settings.Settings) -> None:
        calls.append(resolved.policy)
        other = threading.Thread(target=take_and_release)
        other.start()
        other.join(10)
        assert not other.is_alive(), "tuning compiles kernels on other threads"
        fingerprint = engine().fingerprint
        monkeypatch.setattr(engine(), "fingerprint", lambda resolved=None: fingerprint(resolved) + "records")

    monkeypatch.setattr(engine(), "tune_launch", tune)
    module = load(THREE)
    with warp_tiles.override(policy="max"):
        before = warp_hash(module)
        loaded = stand_in.load(module.__name__)
        assert warp_hash(module) == loaded.module_hash != before, "the records are in the hash"
        assert stand_in.load(module.__name__) is loaded
    assert calls == ["max"]


@pytest.mark.slow
def test_max_measures_nothing_for_a_build_ahead_of_time(
    cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is launched, so there is nothing to measure in place."""
    monkeypatch.setattr(engine(), "tune_launch", lambda resolved: pytest.fail("nothing is launched"))
    with warp_tiles.override(policy="max"):
        _, record = compile_module(load(gemm(), enable_backward=False), tmp_path / "out")
    assert providers(record) == ["own"]


@pytest.mark.slow
def test_no_other_policy_tunes(cold: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine(), "tune_launch", lambda *_: pytest.fail("only max measures"))
    for policy in ("auto", "locked", "fast"):
        with warp_tiles.override(policy=policy):
            stand_in.load(load(gemm(), enable_backward=False).__name__)


def test_settings_that_change_during_a_load_take_effect(
    cold: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARP_TILES_REGISTER_ACCUMULATORS", "1")
    monkeypatch.setattr(engine(), "tune_launch", lambda *_: monkeypatch.setenv("WARP_TILES_REGISTER_ACCUMULATORS", "0"))
    module = load(gemm(), enable_backward=False)
    with warp_tiles.override(policy="max"):
        loaded = stand_in.load(module.__name__)
        assert loaded.module_hash == warp_hash(module)
