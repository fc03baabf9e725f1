"""One build per key across threads and processes. A killed writer leaves the cache sound."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from tests.store.cache_workers import build_all, key, payload
from warp_tiles.store.cache import Cache


def in_threads(count: int, call: object) -> list[object]:
    results: list[object] = []
    barrier = threading.Barrier(count)

    def run() -> None:
        barrier.wait()
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return results


def test_threads_build_a_key_once(cache: Cache) -> None:
    built = []

    def build() -> tuple[bytes, dict[str, object]]:
        built.append(threading.get_ident())
        time.sleep(0.2)
        return payload("a"), {}

    results = in_threads(8, lambda: cache.get_or_build(key("a"), build))
    assert len(built) == 1
    assert [entry.payload for entry, _ in results] == [payload("a")] * 8
    assert Counter(hit for _, hit in results) == {False: 1, True: 7}


def test_a_build_may_request_another_key(cache: Cache) -> None:
    def build() -> tuple[bytes, dict[str, object]]:
        return cache.get_or_build(key("b"), lambda: (payload("b"), {}))[0].payload, {}

    assert cache.get_or_build(key("a"), build)[0].payload == payload("b")
    assert len(cache.entries()) == 2


def test_processes_on_a_cold_cache_build_each_key_once(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    names = [f"k{index}" for index in range(6)]
    context = multiprocessing.get_context("spawn")
    start_at = time.time() + 1.5
    processes = [
        context.Process(target=build_all, args=(str(root), str(log), names[start:] + names[:start], start_at))
        for start in (0, 0, 2, 4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert Counter(path.name.split("-")[0] for path in log.iterdir()) == dict.fromkeys(names, 1)
    cache = Cache(root)
    assert (len(cache.entries()), cache.verify().sound) == (6, 6)
    assert all(cache.get(key(name)).payload == payload(name) for name in names)


def test_a_lock_held_too_long_does_not_stop_the_build(root: Path) -> None:
    cache = Cache(root, build_wait_s=0.1)
    with Cache(root)._folder.lock(key("a").digest, 1.0):
        entry, hit = cache.get_or_build(key("a"), lambda: (payload("a"), {}))
    assert (hit, entry.payload) == (False, payload("a"))
    assert [problem.kind for problem in cache.problems] == ["lock"]
    assert cache.get(key("a")) is not None


def test_a_writer_killed_at_any_point_leaves_the_cache_sound(root: Path) -> None:
    here = str(Path(__file__).parents[2])
    work = f"from tests.store.cache_workers import *; write_forever({str(root)!r})"
    code = f"import sys; sys.path.insert(0, {here!r}); {work}"
    generator = random.Random(7)
    seen = 0
    for _ in range(12):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(generator.uniform(0.0, 0.25))
            writer.kill()
        assert writer.returncode == -9
        cache = Cache(root, build_wait_s=1.0)
        report = cache.verify()
        assert report.damaged == ()
        assert report.missing == ()
        for item in cache.entries():
            entry = cache.get(item.key)
            assert entry is not None
            assert len(entry.payload) == entry.manifest.payload_bytes
            seen += 1
        assert cache.problems == ()
        assert cache.get_or_build(key("after"), lambda: (payload("after"), {}))[0].payload == payload("after")
        cache.gc(200_000)
        assert cache.verify().unreferenced == 0
    assert seen > 20
