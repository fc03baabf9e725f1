"""Configurations to kernels, and what a key holds beside source and arguments."""

from __future__ import annotations

from typing import Any

import pytest

import warp_tiles
from tests.tuning.fake_stores import MemoryStore
from tests.tuning.test_candidate import QUICK, add, array
from warp_tiles import SettingError, TuningError

CONFIGS = [{"step": 1}, {"step": 2}]
BASE: dict[str, Any] = {"key": ("x",), "dim": lambda config, args: args.x.shape[0], "effort": QUICK, "block_dim": 32}


def tuned(store: MemoryStore, **options: Any) -> Any:
    return warp_tiles.autotune(CONFIGS, **{**BASE, **options}, store=lambda now: store)(add)


@pytest.mark.parametrize(
    "change",
    [
        {"block_dim": 64},
        {"tiled": True},
        {"flush_l2": True},
        {"reference": "first"},
        {"reference": lambda args: args.x.numpy() + args.y.numpy()},
    ],
    ids=["block_dim", "tiled", "flush_l2", "first", "function"],
)
def test_what_configurations_share_is_part_of_the_key(change: dict[str, Any]) -> None:
    store, args = MemoryStore(), [array(1.0), array(2.0)]
    assert tuned(store).key(args, "cpu") == tuned(store).key(args, "cpu")
    assert tuned(store).key(args, "cpu").digest != tuned(store, **change).key(args, "cpu").digest


def test_a_tolerance_is_part_of_the_key_where_results_are_compared() -> None:
    store, args = MemoryStore(), [array(1.0), array(2.0)]
    assert tuned(store, rtol=0.1).key(args, "cpu") == tuned(store).key(args, "cpu")
    loose, strict = (tuned(store, reference="first", rtol=rtol).key(args, "cpu") for rtol in (0.1, 1e-5))
    assert loose.digest != strict.digest


def test_another_block_dim_is_measured() -> None:
    store, args = MemoryStore(), {"x": array(1.0), "y": array(2.0)}
    tuned(store).launch(**args, device="cpu")
    other = tuned(store, block_dim=64)
    other.launch(**args, device="cpu")
    assert other.counters.measurements == 2


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"warp_tiles_nothing": 1}, "warp_tiles_nothing is unknown.*warp_tiles_provider"),
        ({"warp_tiles_provider": "none"}, "warp_tiles_provider is 'none'.*cublasdx"),
    ],
)
def test_options_of_a_module_are_checked_at_once(option: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingError, match=f"(?s){text}"):
        warp_tiles.autotune([{"step": 1, **option}], **BASE)(add)


@pytest.mark.parametrize("jobs", [-1, 1.5, True])
def test_jobs_are_a_number(jobs: Any) -> None:
    with pytest.raises(TuningError, match="jobs is"):
        warp_tiles.autotune(CONFIGS, **BASE, jobs=jobs)


@pytest.mark.parametrize("effort", [3, {"runs": 2}])
def test_an_effort_is_one(effort: Any) -> None:
    with pytest.raises(TuningError, match="effort is"):
        warp_tiles.autotune(CONFIGS, **{**BASE, "effort": effort})
