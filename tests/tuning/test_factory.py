"""Kernel factories, and the entries of a key besides source and arguments."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.tuning.fake_stores import MemoryStore
from tests.tuning.test_launches import QUICK, add, array
from warp_tiles import SettingError, TuningError

DEVICE = wp.get_device("cpu")
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
def test_shared_options_are_part_of_the_key(change: dict[str, Any]) -> None:
    store, args = MemoryStore(), [array(1.0), array(2.0)]
    assert tuned(store).key(args, "cpu") == tuned(store).key(args, "cpu")
    assert tuned(store).key(args, "cpu").digest != tuned(store, **change).key(args, "cpu").digest


def test_a_tolerance_is_part_of_the_key_if_results_are_compared() -> None:
    store, args = MemoryStore(), [array(1.0), array(2.0)]
    assert tuned(store, rtol=0.1).key(args, "cpu") == tuned(store).key(args, "cpu")
    loose, strict = (tuned(store, reference="first", rtol=rtol).key(args, "cpu") for rtol in (0.1, 1e-5))
    assert loose.digest != strict.digest


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


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("dim", value) for value in (None, 4, (4, 4))),
        *(
            (name, value)
            for name in ("rtol", "atol")
            for value in (-1e-9, math.nan, math.inf, 10**400, "0.1", None, True)
        ),
        *(("jobs", value) for value in (-1, 1.5, True)),
        *(("effort", value) for value in (3, {"runs": 2})),
        *(("restore", value) for value in (3, [3])),
        ("configs", 5),
        ("space", {"step": [1, 2]}),
        ("search", "some"),
        ("reference", 3),
    ],
    ids=lambda value: str(value)[:9],
)
def test_the_decorator_refuses_invalid_options(option: str, value: Any) -> None:
    configs = None if option == "space" else CONFIGS
    with pytest.raises(TuningError, match=f"{option} is") as caught:
        warp_tiles.autotune(**{**BASE, "configs": configs, option: value})
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("devices", "listed"),
    [("cuda:0", ("cuda:0",)), (["cuda:1", "cuda:0"], ("cuda:1", "cuda:0")), (DEVICE, (DEVICE,)), ((), ()), (None, ())],
    ids=["text", "list", "device", "empty", "none"],
)
def test_one_device_is_a_list_of_one(devices: Any, listed: tuple[Any, ...]) -> None:
    assert tuned(MemoryStore(), devices=devices)._measurement.devices == listed


def test_a_tolerance_does_not_depend_on_its_type() -> None:
    store, args = MemoryStore(), [array(1.0), array(2.0)]
    keys = {
        tuned(store, reference="first", rtol=rtol, atol=0).key(args, "cpu").digest
        for rtol in (0.5, np.float32(0.5), Fraction(1, 2))
    }
    assert len(keys) == 1
