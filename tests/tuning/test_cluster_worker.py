"""The worker's side of tuning on a cluster, with a measurer that needs no GPU."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench import variant_of
from tests.tuning.gemm_fakes import H200, timing
from warp_tiles import settings
from warp_tiles.build.context import BuildContext, Resources
from warp_tiles.build.installation import CODE, COMPILER, Fact, Facts, Installation
from warp_tiles.errors import ToolchainError, WorkerError
from warp_tiles.tuning import cluster_worker
from warp_tiles.tuning.cluster_worker import Batch, gpus_here, measure_here
from warp_tiles.tuning.gemm_space import candidates

VARIANT = variant_of(16, threads=64)
CONFIGS = tuple(candidates(VARIANT, 4))


class Measurer:
    """Measures each candidate, and then fails if a test says so."""

    def __init__(self) -> None:
        self.deadlines: list[float] = []
        self.error: Exception | None = None

    def measure(
        self, variant: Any, configs: Sequence[Any], *, deadline: float, on_timings: Callable[[Any], None]
    ) -> None:
        self.deadlines.append(deadline)
        on_timings([timing(config, 10.0) for config in configs])
        if self.error is not None:
            raise self.error


@pytest.fixture
def measurer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Measurer]:
    found, resources = Measurer(), Resources((13, 4), None)
    monkeypatch.setattr(cluster_worker, "_measurer", lambda gpu, context: found)
    with settings.override(cache_dir=tmp_path):
        monkeypatch.setattr(cluster_worker, "_context", lambda: BuildContext(resources, settings.current()))
        yield found
    resources.close()


def batch(budget_s: float = math.inf, expected: Facts | None = None) -> Batch:
    if expected is None:
        store = cluster_worker._context().store
        expected = Installation(store).facts((CODE, COMPILER))
    return Batch("cuda:0", VARIANT, CONFIGS, budget_s, expected)


def test_timings_are_sent_with_the_facts(measurer: Measurer) -> None:
    sent = batch()
    answer = pickle.loads(pickle.dumps(measure_here(pickle.loads(pickle.dumps(sent)))))
    assert (answer.found, answer.lost, answer.failure) == (sent.expected, "", None)
    assert [item.config for item in answer.timings] == list(CONFIGS)
    assert measurer.deadlines == [math.inf]


def test_the_budget_is_a_deadline_of_the_worker(measurer: Measurer) -> None:
    measure_here(batch(budget_s=50.0))
    assert 45 < measurer.deadlines[0] - time.monotonic() <= 50


def test_another_installation_measures_nothing(measurer: Measurer) -> None:
    answer = measure_here(batch(expected=((CODE, Fact("0" * 64)),)))
    assert answer.timings == ()
    assert dict(answer.found)[CODE].digest not in ("", "0" * 64)
    assert measurer.deadlines == []


def test_timings_before_the_loss_of_a_gpu_are_sent(measurer: Measurer) -> None:
    measurer.error = ToolchainError("the GPU cuda:0 cannot be used any more")
    answer = measure_here(batch())
    assert len(answer.timings) == len(CONFIGS)
    assert "cannot be used any more" in answer.lost


def test_a_dead_compiler_process_says_nothing_about_the_gpu(measurer: Measurer) -> None:
    measurer.error = WorkerError("a compiler process ended with exit status -9")
    answer = measure_here(batch())
    assert answer.lost == ""
    assert isinstance(answer.failure, WorkerError)


def test_an_invalid_setting_of_the_worker_is_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_worker, "_context", lambda: BuildContext(Resources(None, None), settings.current()))
    monkeypatch.setenv("WARP_TILES_PROVIDER", "bogus")
    assert "bogus" in str(measure_here(batch(expected=((CODE, Fact("0")),))).failure)


def test_the_gpus_of_a_worker_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    import warp as wp

    device = SimpleNamespace(alias="cuda:1", uuid="GPU-7", get_cuda_compile_arch=lambda: 90)
    monkeypatch.setattr(wp, "get_cuda_devices", lambda: [device])
    monkeypatch.setattr(cluster_worker, "environment_of", lambda found: H200)
    (found,) = gpus_here()
    assert (found.alias, found.uuid, found.environment, found.arch) == ("cuda:1", "GPU-7", H200, 90)
    assert pickle.loads(pickle.dumps(found)) == found
