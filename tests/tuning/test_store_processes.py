"""One search per key across threads and processes; no record is lost, and a killed search is taken over."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tuning.tuning_records import CONFIGS, key, merge_many, read_damaged, timing, tune
from tests.waiting import in_threads, until
from warp_tiles.tuning.store import RecordStore

SPAWN = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
SPAWN.set_forkserver_preload(["warp_tiles.tuning.store", "filelock"])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    folder.mkdir()
    return folder


def noted(log: Path, what: str) -> list[str]:
    """The events that processes recorded, in order: ``<time>-<process>-<event>``."""
    return sorted(path.name for path in log.iterdir() if path.name.split("-", 2)[2].startswith(what))


def run_all(target: Callable[..., None], arguments: list[tuple[object, ...]]) -> list[int | None]:
    processes = [SPAWN.Process(target=target, args=given) for given in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    return [process.exitcode for process in processes]


def test_of_sixteen_processes_one_searches_and_all_take_its_winner(records: RecordStore, log: Path) -> None:
    start_at = time.time() + 1.0
    assert run_all(tune, [(str(records.root), str(log), start_at)] * 16) == [0] * 16
    assert len(noted(log, "searches")) == 1
    winners = Counter(name.split("-", 2)[2] for name in noted(log, "wins"))
    assert list(winners.values()) == [16]
    record = records.load(key())
    assert sorted(item.identity for item in record.timings) == sorted(timing(config).identity for config in CONFIGS)


def test_another_process_takes_over_from_a_killed_search(records: RecordStore, log: Path) -> None:
    processes = [SPAWN.Process(target=tune, args=(str(records.root), str(log), 0.0, 0.1)) for _ in range(4)]
    for process in processes:
        process.start()
    known = until(lambda: (found := records.load(key())) and len(found.timings) >= 2 and found)
    killed = int(noted(log, "searches")[0].split("-")[1])
    os.kill(killed, signal.SIGKILL)
    for process in processes:
        process.join(30)
    assert sorted(process.exitcode or 0 for process in processes) == [-signal.SIGKILL, 0, 0, 0]
    assert len(noted(log, "searches")) == 2
    (ended,) = noted(log, "ends")
    assert int(ended.split("-")[1]) != killed
    winners = {name.split("-", 2)[2] for name in noted(log, "wins")}
    assert (len(winners), len(noted(log, "wins"))) == (1, 3)
    record = records.load(key())
    assert len(record.timings) == len(CONFIGS)
    assert all(record.timing(item.config) == item for item in known.timings)  # timings of the killed search are kept


def test_sixteen_writers_lose_nothing(records: RecordStore) -> None:
    start_at = time.time() + 1.0
    assert run_all(merge_many, [(str(records.root), str(name), start_at) for name in range(16)]) == [0] * 16
    record = records.load(key())
    assert {(item.config["who"], item.config["step"]) for item in record.timings} == {
        (str(name), step) for name in range(16) for step in range(4)
    }
    assert [path.name for path in records.root.rglob(".tmp-*")] == []


def test_many_readers_set_a_damaged_record_aside_and_keep_new_ones(records: RecordStore) -> None:
    path = records.root / f"{key().file}.json"
    path.parent.mkdir(parents=True, mode=0o700)
    records.root.chmod(0o700)
    path.write_bytes(b"{")
    start_at = time.time() + 1.0
    assert run_all(read_damaged, [(str(records.root), start_at)] * 8) == [0] * 8
    record = records.load(key())
    assert len(record.timings) == 8
    assert path.with_suffix(".damaged").read_bytes() == b"{"


class TestSingleFlight:
    def test_threads_wait_for_the_one_that_searches(self, records: RecordStore) -> None:
        active = []

        def call() -> bool:
            with records.single_flight(key()) as may_search:
                if may_search:
                    active.append(1)
                    time.sleep(0.2)
                return may_search

        assert Counter(in_threads(6, call)) == {True: 1, False: 5}
        assert len(active) == 1
        with records.single_flight(key()) as may_search:
            assert may_search

    def test_after_a_search_that_raised_the_next_one_may_search(self, records: RecordStore) -> None:
        attempts: list[int] = []

        def call() -> object:
            try:
                with records.single_flight(key()) as may_search:
                    if may_search:
                        attempts.append(1)
                        time.sleep(0.2)
                        if len(attempts) == 1:
                            raise KeyboardInterrupt
                    return may_search
            except KeyboardInterrupt:
                return "interrupted"

        assert Counter(in_threads(4, call)) == {"interrupted": 1, False: 3}
        assert call() is True

    @pytest.mark.parametrize("timeout_s", [0.0, 0.1])
    def test_a_thread_that_does_not_wait_must_not_search(self, records: RecordStore, timeout_s: float) -> None:
        with records.single_flight(key()) as may_search:
            assert may_search

            def call() -> bool:
                with records.single_flight(key(), timeout_s) as may:
                    return may

            assert in_threads(2, call) == [False, False]

    def test_a_search_within_its_own_search_does_not_wait(self, records: RecordStore) -> None:
        with records.single_flight(key()) as outer, records.single_flight(key()) as inner:
            assert (outer, inner) == (True, False)

    def test_keys_do_not_wait_for_each_other(self, records: RecordStore) -> None:
        with records.single_flight(key()) as one, records.single_flight(key(m=1)) as other:
            assert (one, other) == (True, True)


def test_a_timeout_applies_between_processes_and_a_killed_search_frees_its_key(records: RecordStore, log: Path) -> None:
    process = SPAWN.Process(target=tune, args=(str(records.root), str(log), 0.0, 5.0))
    process.start()
    until(lambda: noted(log, "searches"))
    for timeout_s in (0.0, 0.2):
        with records.single_flight(key(), timeout_s) as may_search:
            assert not may_search
        assert not noted(log, "ends"), "the other one goes on"
    threading.Timer(0.2, process.kill).start()
    for expected in (False, True):  # the first one waits for the search that is killed
        with records.single_flight(key(), 20.0) as may_search:
            assert may_search is expected
    process.join(10)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside a thread is the case under test
@pytest.mark.filterwarnings("ignore:warp_tiles. searches are not coordinated")
def test_a_forked_child_does_not_wait_for_its_parents_thread(records: RecordStore) -> None:
    records.root.write_text("in the way")  # so that there is no file lock, for which the child would wait
    started, release = threading.Event(), threading.Event()

    def search() -> None:
        with records.single_flight(key()):
            started.set()
            release.wait(20)

    thread = threading.Thread(target=search)
    thread.start()
    assert started.wait(10)
    child = os.fork()
    if child == 0:
        with records.single_flight(key(), 5.0) as may_search:
            os._exit(0 if may_search else 1)
    _, status = os.waitpid(child, 0)
    release.set()
    thread.join(10)
    assert os.waitstatus_to_exitcode(status) == 0
