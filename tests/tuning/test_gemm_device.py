"""Measuring on a GPU: batches, leaders, and a GPU that a candidate breaks. One test needs a GPU, the others fake it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench import variant_of
from warp_tiles import settings
from warp_tiles.build.engine import Engine
from warp_tiles.errors import BuildError, ToolchainError
from warp_tiles.tuning import gemm_device as module
from warp_tiles.tuning.gemm_bench import layout
from warp_tiles.tuning.gemm_build import Benchmark, FailedBuild
from warp_tiles.tuning.gemm_device import GpuMeasurer
from warp_tiles.tuning.record import Config, Timing
from warp_tiles.tuning.snapshots import TunedSnapshots

HALF = variant_of(64, "float16", threads=128)
CONFIGS: list[Config] = [{"provider": "mma", "number": number} for number in range(20)]


class FakeGpu(module._Gpu):
    """A device that answers until a candidate has broken it."""

    def __init__(self, device: Any) -> None:
        self.device, self.lost_to, self.usable = device, None, True

    def _is_usable(self) -> bool:
        return self.usable


class FakeClock:
    """A clock with given times."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def reserve(self) -> None:
        if self.lab.is_full:
            raise RuntimeError("Failed to allocate 268435456 bytes on device 'cuda:1'")

    def sample_us(self, candidate: Any, runs: int) -> list[float]:
        number = candidate.config["number"]
        self.lab.ran.append(number)
        if number == self.lab.breaks:
            self.lab.gpu.usable = False
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
        return [self.lab.time_us(number) + step * 0.001 for step in range(runs)]


class Lab:
    """A measurer whose candidates are built at once and never launched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time_us: Callable[[int], float] = lambda number: 20.0 - number
        self.breaks: int | None = None
        self.is_full = False
        self.unbuilt: set[int] = set()
        self.wrong: set[int] = set()
        self.ran: list[int] = []
        self.batches: list[list[Timing]] = []
        monkeypatch.setattr(module, "_Gpu", FakeGpu)
        monkeypatch.setattr(module, "EventClock", lambda device: FakeClock(self))
        monkeypatch.setattr(module, "build_in_parallel", self._build)
        monkeypatch.setattr(module._Launches, "_load", lambda launches: None)
        monkeypatch.setattr(module._Launches, "_check", self._check())
        context: Any = SimpleNamespace(pool=SimpleNamespace(jobs=2))
        self.measurer = GpuMeasurer(context, SimpleNamespace(alias="cuda:1"))
        self.gpu: Any = self.measurer._gpu

    def _build(self, context: Any, variant: Any, configs: Sequence[Config], deadline: float) -> Iterator[Any]:
        for config in configs:
            broken = config["number"] in self.unbuilt
            yield FailedBuild(config, "it was refused") if broken else Benchmark(config, b"", False)

    def _check(self) -> Callable[[Any], None]:
        def check(launches: Any) -> None:
            if launches.config["number"] in self.wrong:
                raise BuildError("wrong result: C[0, 0] is 1 in place of 2")

        return check

    def measure(self, configs: Sequence[Config] = CONFIGS, **options: Any) -> dict[int, Timing]:
        self.measurer.measure(HALF, configs, on_timings=lambda timings: self.batches.append(list(timings)), **options)
        return self.known()

    def known(self) -> dict[int, Timing]:
        return {timing.config["number"]: timing for batch in self.batches for timing in batch}


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def test_every_candidate_has_a_timing_and_the_fastest_is_known(lab: Lab) -> None:
    found = lab.measure()
    assert set(found) == set(range(20))
    assert found[19].status == "ok"
    assert min(found.values(), key=lambda timing: timing.median_us).config == CONFIGS[19]
    assert {timing.shared_bytes for timing in found.values()} == {layout(HALF).size_bytes}


def test_the_best_of_a_batch_race_the_next_one(lab: Lab) -> None:
    lab.time_us = lambda number: 10.0 + number * 0.001
    lab.measure()
    first, second, third = ([timing.config["number"] for timing in batch] for batch in lab.batches)
    assert first == list(range(8))
    assert set(range(8, 16)) < set(second)
    assert set(second) - set(range(8, 16)) < set(first)
    assert {16, 17, 18, 19} < set(third)


def test_unbuilt_and_wrong_candidates_have_failed(lab: Lab) -> None:
    lab.unbuilt, lab.wrong = {3}, {5}
    found = lab.measure()
    assert (found[3].status, found[3].reason) == ("failed", "it was refused")
    assert found[5].status == "failed"
    assert "wrong result" in found[5].reason
    assert not {3, 5} & set(lab.ran)


def test_a_lost_gpu_ends_the_search_and_blames_one_candidate_alone(lab: Lab) -> None:
    lab.breaks = 10
    with pytest.raises(
        ToolchainError, match=r"cannot be used any more since 64x64x64 .* ran with .*'number': 10"
    ) as lost:
        lab.measure()
    assert "continues after that candidate" in lost.value.remedy
    known = lab.known()
    assert set(known) == {*range(8), 10}
    assert known[10].status == "failed"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in known[10].reason


def test_a_gpu_without_memory_is_not_a_failure_of_a_candidate(lab: Lab) -> None:
    lab.is_full = True
    with pytest.raises(ToolchainError, match="measured on the GPU cuda:1: RuntimeError: Failed to allocate") as full:
        lab.measure()
    assert "--devices" in full.value.remedy
    assert lab.known() == {}
    lab.is_full = False
    assert set(lab.measure()) == set(range(20))


def test_a_search_ends_at_its_deadline(lab: Lab) -> None:
    assert lab.measure(deadline=time.monotonic() - 1) == {}


@pytest.mark.gpu
def test_a_variant_is_tuned_on_a_gpu_and_a_second_engine_uses_its_record(gpu: str, tmp_path: Path) -> None:
    from warp_tiles.tuning.gemm import default_tuner, tune_variant

    with settings.override(cache_dir=tmp_path / "cache", progress="off"):
        first = Engine(warp_toolkit=(13, 4), tuned=TunedSnapshots())
        tuner = default_tuner(first, settings.current())
        variant = variant_of(64, "float16", threads=128)
        assert variant.arch == tuner.arch, "the variant is meant for sm_90"
        record = tune_variant(first, variant, tuner.store, tuner.environment, budget_s=20)
        first.close()
        winner = record.winner()
        assert winner is not None
        assert not [timing for timing in record.timings if "wrong result" in timing.reason]
        second = Engine(warp_toolkit=(13, 4), tuned=TunedSnapshots())
        artifact = second.start([variant])[variant].result(60)
        second.close()
        assert artifact.hit, "the measured build is used"
        assert artifact.provider == winner.config["provider"]
        assert (artifact.tile_config.to_json() if artifact.tile_config else None) == winner.config.get("tile_config")
