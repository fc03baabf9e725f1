"""Two GPUs of one host tune GEMM variants together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import warp as wp

from tests.bench import variant_of
from warp_tiles import settings
from warp_tiles.build.engine import Engine
from warp_tiles.tuning.environment import sharing_gpus
from warp_tiles.tuning.gemm import default_tuner
from warp_tiles.tuning.open_store import open_store

pytestmark = pytest.mark.gpu


@pytest.fixture
def two_gpus(gpu: str) -> list[Any]:
    found = sharing_gpus(wp.get_device(gpu))
    if len(found) < 2:
        pytest.skip("needs two GPUs of one name")
    return found[:2]


def test_two_gpus_measure_a_variant_each_and_the_records_are_found(two_gpus: list[Any], tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path / "cache", progress="off"):
        engine = Engine(warp_toolkit=(13, 4))
        tuner = replace(default_tuner(engine, settings.current(), two_gpus), limit=6)
        variants = [replace(variant_of(size, threads=64), arch=tuner.arch) for size in (16, 32)]
        found = tuner.tune_all(variants)
        engine.close()
        assert {item.device for item in found} == {device.alias for device in two_gpus}
        assert [item.variant for item in found] == variants
        for item in found:
            assert item.winner is not None
            assert item.measured == len(item.record.timings)
            assert not [timing for timing in item.record.timings if "wrong result" in timing.reason]
            stored = open_store().load(item.record.key)
            assert stored is not None
            assert stored.winner() == item.winner
            assert {timing.identity for timing in stored.timings} == {timing.identity for timing in item.record.timings}
        again = tuner.tune_all(variants)
        assert [(item.measured, item.device) for item in again] == [(0, ""), (0, "")]
