"""A module whose hash was computed under other settings is neither built nor planned."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

import warp_tiles
from warp_tiles._warp import reload as reload_module
from warp_tiles._warp import require_hooks
from warp_tiles._warp.hooks import Hooks
from warp_tiles._warp.reload import LoadAgain, this_thread
from warp_tiles.errors import PlanError
from warp_tiles.settings import Settings

BLOCK_DIM = 64


@pytest.fixture
def hooks(enabled: None, monkeypatch: pytest.MonkeyPatch) -> Hooks:
    installed = require_hooks("a test")
    state = SimpleNamespace(session=SimpleNamespace(settings=Settings()))
    monkeypatch.setattr(installed.sites, "state", lambda builder: state)
    return installed


def module_of(choices: str | None) -> Any:
    """A module that was hashed with some choices, or whose hash was discarded."""
    hasher = SimpleNamespace(get_hash=SimpleNamespace(choices=choices))
    module = SimpleNamespace(name="module", hashers={} if choices is None else {BLOCK_DIM: hasher}, modified=False)
    module.mark_modified = lambda: setattr(module, "modified", True)
    module.builder = SimpleNamespace(module=module, options={"block_dim": BLOCK_DIM})
    return module


@pytest.mark.parametrize(
    ("provider", "is_loading", "is_stale"),
    [("auto", False, False), ("scalar", False, True), (None, False, False), (None, True, True)],
    ids=["of the present settings", "of others", "discarded", "discarded during the load"],
)
def test_a_module_with_a_stale_hash_is_loaded_again(
    provider: Any, is_loading: bool, is_stale: bool, hooks: Hooks
) -> None:
    module = module_of(provider and hooks.engine.choices(Settings(provider=provider)))
    with this_thread(loading=is_loading), pytest.raises(LoadAgain) if is_stale else nullcontext():
        hooks._refuse_stale_hash(module.builder)
    assert not module.modified


def test_a_plan_with_a_stale_hash_is_an_error(hooks: Hooks) -> None:
    stale = module_of(hooks.engine.choices(Settings(provider="scalar")))
    with this_thread(planning=True), pytest.raises(PlanError, match="settings changed while module module was being"):
        hooks._refuse_stale_hash(stale.builder)
    assert stale.modified


def test_settings_that_keep_changing_are_an_error(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload_module, "hash_again", lambda module: True)
    loads: list[None] = []

    def load(module: Any) -> None:
        loads.append(None)
        raise LoadAgain

    with pytest.raises(PlanError, match="the settings kept changing while module module was being loaded"):
        hooks.reloads._load_again(LoadAgain(), load, module_of(None))
    assert len(loads) == 4


# ---- settings that discard hashes


@pytest.fixture
def discarded(enabled: None, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    calls: list[None] = []
    monkeypatch.setattr("warp_tiles._warp.modules.hash_all_again", lambda: calls.append(None))
    return calls


@pytest.mark.parametrize("change", [{"jobs": 1}, {"build_wait_s": 1}, {"progress": "off"}], ids=str)
def test_a_setting_without_effect_on_code_discards_nothing(discarded: list[None], change: dict[str, Any]) -> None:
    with warp_tiles.override(**change):
        pass
    assert discarded == []


def test_a_provider_discards_hashes_even_if_it_is_the_default(discarded: list[None]) -> None:
    with warp_tiles.override(provider="own"):
        assert len(discarded) == 1
    with warp_tiles.override(provider=Settings().provider):  # overrides the options of modules
        assert len(discarded) == 3
