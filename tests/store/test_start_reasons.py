"""Why a module has no start key, or is not asked for: each reason has its code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import FORWARD_ONLY, gemm, load
from tests.store.warp_modules import text
from warp_tiles._warp import installed
from warp_tiles.gemm.rejected import Rejected

PRODUCT = gemm(decorator=FORWARD_ONLY)


def looked_up(source: str, **options: Any) -> object:
    """What is found for a kernel on sm_90, before its code is generated."""
    module = wp.get_module(load(source, block_dim=64).__name__)
    module.get_module_hash(64)
    return installed()._lookups.look_up(module, {**module.resolved_options[64], "output_arch": 90, **options})


@pytest.mark.parametrize(
    ("source", "settings", "options", "expected"),
    [
        (PRODUCT, {"modules": "auto"}, {}, Rejected("kept_nowhere")),
        (PRODUCT, {"policy": "max"}, {}, Rejected("tuned_first")),
        (PRODUCT, {}, {"deterministic": True}, Rejected("generation_has_effects", ("deterministic",))),
        (PRODUCT, {}, {"output_arch": None}, Rejected("no_calls")),
        (text(), {"modules": "tiles"}, {}, Rejected("no_calls")),
    ],
)
@pytest.mark.usefixtures("everything")
def test_settings_and_options(
    source: str, settings: Mapping[str, Any], options: Mapping[str, Any], expected: Rejected
) -> None:
    with warp_tiles.override(**settings):
        assert looked_up(source, **options) == expected


@pytest.mark.usefixtures("everything")
def test_a_module_that_is_left_to_warp_says_why() -> None:
    found = looked_up(PRODUCT, mode="debug")
    assert isinstance(found, Rejected)
    assert (found.code, "debug" in str(found)) == ("left_to_warp", True)


def test_kernels_that_warp_does_not_keep(everything: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp.config, "cache_kernels", False)
    assert looked_up(PRODUCT) == Rejected("kernels_not_cached")


def test_what_has_changed_since_the_hash_was_taken(everything: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed().engine, "choices", lambda resolved: "other records")
    module = wp.get_module(load(PRODUCT, block_dim=64).__name__)
    module.get_module_hash(64)
    monkeypatch.setattr(installed().engine, "choices", lambda resolved: "newer records")
    options = {**module.resolved_options[64], "output_arch": 90}
    assert installed()._lookups.look_up(module, options) == Rejected("changed_since_hash")
