"""Tuning on the workers of a real Dask cluster, with fake GPUs: who measures what, interruptions, lost workers."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import distributed
import pytest

import warp_tiles
from tests.cluster import lab
from tests.tuning.place_fakes import H200, placed, question, variant
from warp_tiles import settings
from warp_tiles.cli.cluster_tuning import ClusterDevice, ClusterGpu, SentScript, assigned, cluster_tuners
from warp_tiles.cli.tune import _tune_all
from warp_tiles.errors import ToolchainError
from warp_tiles.tuning.answers import Place, loop_place
from warp_tiles.tuning.in_place import Tuner
from warp_tiles.tuning.record import DEFAULTS, Record, identity
from warp_tiles.tuning.store import open_store

PLACES = [loop_place(question(variant(128, 128, 64, 256))), loop_place(question(variant(64, 64, 32, 128, "float32")))]
PLACED = [placed(place) for place in PLACES]
SCRIPT = SentScript("train.py", b"")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "measured"


@pytest.fixture(autouse=True)
def own_records(tmp_path: Path) -> Any:
    with settings.override(cache_dir=tmp_path / "cache"), warp_tiles.enabled():
        yield


def tuners(client: Any, **used: Any) -> list[Tuner]:
    return cluster_tuners(client, SCRIPT, settings.current(), **used)


def equal_gpus(log: Path, seconds: float = 0.0) -> dict[str, Any]:
    return {"gpus": lab.equal_gpus, "perform": functools.partial(lab.perform, log=log, seconds=seconds)}


def lines(log: Path) -> list[tuple[int, str, int, str]]:
    """Process, place, runs and answer of each task; a task without runs is a build."""
    found = [line.split(" ", 3) for line in log.read_text().splitlines()]
    return [(int(process), place, int(runs), name) for process, place, runs, name in found]


def names_of(place: Place) -> set[str]:
    return {identity(config) for config in place.configs}


def is_complete(record: Record, place: Place) -> bool:
    return {timing.identity for timing in record.timings} == names_of(place)


def test_workers_share_the_answers_and_their_records_are_the_users(workers: Any, log: Path) -> None:
    (tuner,) = tuners(workers, **equal_gpus(log))
    found = tuner.tune_all(PLACED)
    assert all(item.winner and not item.error and is_complete(item.record, item.place) for item in found)
    assert {process for process, *_ in lines(log)} == set(workers.run(os.getpid).values())
    stored = open_store(settings.current()).records()
    assert {item.record.key.environment.device for item in stored} == {H200.device}
    assert len(stored) == 2
    assert all(timing.soft == H200.soft() for item in stored for timing in item.record.timings)


def test_a_killed_worker_costs_nothing_and_another_continues(workers: Any, log: Path) -> None:
    (tuner,) = tuners(workers, **equal_gpus(log, 0.02))
    victim: list[int] = []

    def kill() -> None:
        while not log.exists() or len(lines(log)) < 6:
            time.sleep(0.02)
        victim.append(lines(log)[0][0])
        os.kill(victim[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.warns(RuntimeWarning, match="is no longer used for tuning: the worker tcp://.* was lost"):
        found = tuner.tune_all(PLACED)
    thread.join()
    assert victim
    assert all(not item.error and is_complete(item.record, item.place) for item in found)
    assert not [timing for item in found for timing in item.record.timings if timing.status == "failed"]


def test_a_result_that_is_lost_with_its_worker_is_not_waited_for() -> None:
    """Dask calls the future of such a task lost, and not pending."""

    class LostFuture:
        status = "lost"
        is_cancelled = False

        def result(self, timeout: float) -> Any:
            raise distributed.TimeoutError

        def done(self) -> bool:
            return False

        def cancel(self) -> None:
            self.is_cancelled = True

    sent = LostFuture()
    client = SimpleNamespace(submit=lambda *_, **__: sent, nthreads=dict)
    device = ClusterDevice(client, "tcp://gone", ClusterGpu("cuda:0", "1", H200, 90), lab.perform)
    with pytest.raises(ToolchainError, match="tcp://gone was lost while it measured: it left the cluster"):
        device.for_place(SCRIPT, "0").build(DEFAULTS["loop"])
    assert sent.is_cancelled
    assert device.is_lost


def test_each_kind_of_gpu_is_tuned_at_the_same_time(workers: Any, log: Path) -> None:
    both = tuners(workers, gpus=lab.different_gpus, perform=functools.partial(lab.perform, log=log))
    assert {tuner.environment for tuner in both} == {H200, lab.H100}
    threads = set()

    def progress(*_: Any) -> None:
        threads.add(threading.current_thread().name)

    found = _tune_all([(tuner, PLACED) for tuner in both], 0.0, progress)
    assert len(found) == 4
    assert len(threads) == 2
    devices = Counter(item.record.key.environment.device for item in found)
    assert devices == {H200.device: 2, lab.H100.device: 2}
    assert all(is_complete(item.record, item.place) for item in found)


def test_a_gpu_that_several_workers_see_is_used_by_one() -> None:
    def gpu(uuid: str) -> ClusterGpu:
        return ClusterGpu("cuda:0", uuid, H200, 90)

    found = assigned({"a": [gpu("1"), gpu("2")], "b": [gpu("1"), gpu("2")], "c": [], "d": [gpu("3")]})
    assert [(worker, one.uuid) for worker, one in found] == [("a", "1"), ("b", "2"), ("d", "3")]
