"""Tuning on the workers of a real Dask cluster, with fake GPUs: who measures what, interruptions, lost workers."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.bench import variant_of
from tests.cluster import lab
from tests.tuning.gemm_fakes import H200
from warp_tiles import settings
from warp_tiles.build.installation import Installation
from warp_tiles.cli.tune_script import _tune_all
from warp_tiles.errors import RefusedWorkerError, ToolchainError
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.toolchain.store import ToolchainStore
from warp_tiles.tuning.cluster import Lab, assigned, cluster_tuners
from warp_tiles.tuning.cluster_worker import ClusterGpu
from warp_tiles.tuning.gemm import Tuner
from warp_tiles.tuning.gemm_key import source_of
from warp_tiles.tuning.gemm_space import candidates
from warp_tiles.tuning.open_store import open_store
from warp_tiles.tuning.record import Record, identity

VARIANTS = [variant_of(size, threads=64) for size in (16, 32, 48, 64)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "measured"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ToolchainStore:
    return ToolchainStore(tmp_path_factory.mktemp("facts"), "toolchain")


@pytest.fixture(autouse=True)
def own_records(tmp_path: Path) -> Any:
    with settings.override(cache_dir=tmp_path / "cache"):
        yield


def tuners(client: Any, store: ToolchainStore, used: Lab) -> list[Tuner]:
    return cluster_tuners(client, Installation(store), source_of(store), settings.current(), used)


def equal_gpus(log: Path, seconds: float = 0.0) -> Lab:
    return Lab(lab.equal_gpus, functools.partial(lab.measure, log=log, seconds=seconds))


def lines(log: Path) -> list[tuple[int, str, str]]:
    """Process, variant and candidate of each measurement."""
    found = [line.split(" ", 2) for line in log.read_text().splitlines()]
    return [(int(process), symbol, name) for process, symbol, name in found]


def names_of(variant: GemmProblem) -> set[str]:
    return {identity(config) for config in candidates(variant)}


def is_complete(record: Record, variant: GemmProblem) -> bool:
    return {timing.identity for timing in record.timings} == names_of(variant)


def test_workers_share_the_variants_and_their_records_are_the_users(
    workers: Any, store: ToolchainStore, log: Path
) -> None:
    (tuner,) = tuners(workers, store, equal_gpus(log, 0.02))
    found = tuner.tune_all(VARIANTS)
    assert all(item.winner and not item.error and is_complete(item.record, item.variant) for item in found)
    processes = {symbol: {p for p, s, _ in lines(log) if s == symbol} for _, symbol, _ in lines(log)}
    assert [len(found) for found in processes.values()] == [1] * 4, "each variant is measured on one GPU"
    assert set().union(*processes.values()) == set(workers.run(os.getpid).values())
    stored = open_store(settings.current()).records()
    assert {item.record.key.environment.device for item in stored} == {H200.device}
    assert len(stored) == 4
    assert all(timing.soft == H200.soft() for item in stored for timing in item.record.timings)


def test_an_interrupted_search_measures_nothing_again_but_the_best(
    workers: Any, store: ToolchainStore, log: Path
) -> None:
    (tuner,) = tuners(workers, store, equal_gpus(log))
    batches = []

    def interrupt(variant: GemmProblem, record: Record, device: str) -> None:
        batches.append(len(record.timings))
        if len(batches) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuner.tune_all(VARIANTS[:1], progress=interrupt)
    time.sleep(0.3)  # a batch that was under way ends without anybody who stores it
    known = {timing.identity for timing in tuner.record(VARIANTS[0]).timings}
    best = tuner.record(VARIANTS[0]).winner()
    assert best is not None
    assert 0 < len(known) < len(names_of(VARIANTS[0]))
    log.unlink()
    (item,) = tuners(workers, store, equal_gpus(log))[0].tune_all(VARIANTS[:1])
    assert is_complete(item.record, item.variant)
    again = {name for _, _, name in lines(log)}
    assert again & known == {best.identity}
    (item,) = tuner.tune_all(VARIANTS[:1])
    assert item.measured == 0


def test_the_best_of_a_batch_race_the_next_one(workers: Any, store: ToolchainStore, log: Path) -> None:
    (tuner,) = tuners(workers, store, equal_gpus(log))
    tuner.tune_all(VARIANTS[:1])
    counts = Counter(name for _, _, name in lines(log))
    batches = -(-len(names_of(VARIANTS[0])) // 8)
    assert sum(counts.values()) == len(counts) + 3 * (batches - 1)


def test_a_killed_worker_costs_one_batch_and_another_continues(workers: Any, store: ToolchainStore, log: Path) -> None:
    (tuner,) = tuners(workers, store, equal_gpus(log, 0.1))
    victim: list[int] = []

    def kill(*_: Any) -> None:
        if not victim and log.exists():
            victim.append(lines(log)[0][0])
            os.kill(victim[0], signal.SIGKILL)

    with pytest.warns(RuntimeWarning, match="is no longer used for tuning: the worker tcp://.* was lost"):
        found = tuner.tune_all(VARIANTS, progress=kill)
    assert victim
    assert all(not item.error and is_complete(item.record, item.variant) for item in found)


def test_each_kind_of_gpu_is_tuned_at_the_same_time(workers: Any, store: ToolchainStore, log: Path) -> None:
    used = Lab(lab.different_gpus, functools.partial(lab.measure, log=log))
    both = tuners(workers, store, used)
    assert {tuner.environment for tuner in both} == {H200, lab.H100}
    threads = set()

    def progress(*_: Any) -> None:
        threads.add(threading.current_thread().name)

    found = _tune_all(both, {90: VARIANTS[:2]}, 0.0, progress)
    assert len(found) == 4
    assert len(threads) == 2
    devices = Counter(item.record.key.environment.device for item in found)
    assert devices == {H200.device: 2, lab.H100.device: 2}
    assert all(is_complete(item.record, item.variant) for item in found)


def test_a_worker_with_other_packages_is_refused(workers: Any, store: ToolchainStore) -> None:
    (tuner,) = tuners(workers, store, Lab(lab.equal_gpus, lab.measure_elsewhere))
    with pytest.raises(RefusedWorkerError, match=r"tcp://.* is refused: its warp_tiles is 1.0"):
        tuner.tune_all(VARIANTS)
    assert open_store(settings.current()).records() == []


def test_workers_without_a_gpu_are_an_error(workers: Any, store: ToolchainStore) -> None:
    if workers.run(lambda: len(__import__("warp").get_cuda_devices())) != dict.fromkeys(workers.nthreads(), 0):
        pytest.skip("this machine has a GPU")
    with pytest.raises(ToolchainError, match="none of the 2 workers has one") as caught:
        tuners(workers, store, Lab())
    assert "CUDA_VISIBLE_DEVICES=0 dask worker" in caught.value.remedy


def test_a_gpu_that_several_workers_see_is_used_by_one() -> None:
    def gpu(uuid: str) -> ClusterGpu:
        return ClusterGpu("cuda:0", uuid, H200, 90)

    found = assigned({"a": [gpu("1"), gpu("2")], "b": [gpu("1"), gpu("2")], "c": [], "d": [gpu("3")]})
    assert [(worker, one.uuid) for worker, one in found] == [("a", "1"), ("b", "2"), ("d", "3")]
