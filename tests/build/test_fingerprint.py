"""The text that warp_tiles adds to a module's hash: each input of the machine code changes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import TOOLCHAIN, Bench
from warp_tiles.build import engine
from warp_tiles.errors import ToolchainError
from warp_tiles.settings import Settings

CHANGES = (
    {"register_accumulators": False},
    {"async_copies": False},
    {"main_loop": "mma"},
    {"mathdx_opt_out": "own"},
    {"solver_gradients": "own"},
    {"linker": "warp"},
    {"provider": "mma"},
)


def test_the_settings_that_affect_code() -> None:
    assert {name for change in CHANGES for name in change} == set(Settings().affecting_code())


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_setting_that_affects_code_changes_it(bench: Bench, change: dict[str, Any]) -> None:
    usual, changed = Settings(), Settings(**change)
    assert bench.engine.fingerprint(changed) != bench.engine.fingerprint(usual) == bench.engine.fingerprint(Settings())
    assert bench.engine.choices(changed) != bench.engine.choices(usual)


def test_a_provider_that_is_named_differs_from_the_only_one_that_a_policy_allows(bench: Bench) -> None:
    named, allowed = Settings(provider="scalar"), Settings(policy="scalar")
    assert named.providers == allowed.providers
    assert bench.engine.fingerprint(named) != bench.engine.fingerprint(allowed)


def test_another_linker_of_the_same_version_changes_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.store.found = replace(TOOLCHAIN, nvjitlink=Path("libnvJitLink.so"))
    contents = "first"
    monkeypatch.setattr(bench.store.digests, "digest", lambda path: f"{contents} {path.name}", raising=False)
    before = bench.engine.fingerprint(Settings())
    assert "linker=first libnvJitLink.so" in before
    contents = "second"
    assert bench.engine.fingerprint(Settings()) != before


def test_another_version_of_the_package_changes_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    before = bench.engine.fingerprint(Settings())
    monkeypatch.setattr(engine, "__version__", "0.0.0")
    assert bench.engine.fingerprint(Settings()) != before


def test_a_missing_toolchain_changes_it(bench: Bench) -> None:
    before = bench.engine.fingerprint(Settings(provider="mma"))
    bench.store.error = ToolchainError("NVRTC was not found")
    assert "mma: NVRTC was not found" in bench.engine.fingerprint(Settings(provider="mma")) != before
