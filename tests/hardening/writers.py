"""Processes that use one cache at once. They are forked, so that hundreds take seconds.

python -m tests.hardening.writers kill FOLDER COUNT SEED     kill each of COUNT writers at a random point
python -m tests.hardening.writers crowd FOLDER COUNT         COUNT processes ask for the same keys of a cold cache
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.store.cache_workers import get_or_build
from tests.store.test_kinds import HELD
from tests.tuning.tuning_records import key as record_key
from tests.tuning.tuning_records import timing
from warp_tiles.store import MISSED_KEYS, MODULES, TOOLCHAIN_FACTS
from warp_tiles.store.cache import Cache
from warp_tiles.store.key import CacheKey
from warp_tiles.tuning.store import RecordStore

KEYS = 6


def key(name: object) -> CacheKey:
    return CacheKey.of({"name": str(name)})


def payload(name: object) -> bytes:
    return random.Random(f"payload {name}").randbytes(50_000)


def write(root: Path, draw: random.Random, most: int = 1_000_000) -> None:
    """Write to every part of the cache."""
    cache = Cache(root, max_bytes=600_000)
    for count in range(1, most):
        name = draw.randrange(20)
        get_or_build(cache, key(name), lambda name=name: (payload(name), {"n": name}))  # type: ignore[misc]
        RecordStore(root, folder="tuning").merge(record_key("gemm"), [timing({"x": name}, 1.0 + count)])
        for kind in (MISSED_KEYS, TOOLCHAIN_FACTS):
            HELD[kind].write(HELD[kind].open(root), count % 5)
        Cache(root, MODULES).put(key(name % 3), payload(name), {})
        if count % 7 == 0:
            cache.gc()


def child(run: Callable[[], None]) -> int:
    """Run a function in a forked process, and return its number."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        run()
        status = 0
    finally:
        os._exit(status)


def at_once(count: int, run: Callable[[], None], forked: Callable[[], object] = lambda: None) -> int:
    """Run a function in forked processes at once, and return how many of them failed.

    Args:
        count: The number of processes.
        run: The function.
        forked: Called in this process when all of them have been forked.
    """
    reader, writer = os.pipe()

    def wait_and_run() -> None:
        os.close(writer)
        os.read(reader, 1)  # returns when the parent closes the other end
        run()

    pids = [child(wait_and_run) for _ in range(count)]
    forked()
    os.close(writer)
    failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    os.close(reader)
    return failed


def kill_writers(root: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    write(root, draw, 3)  # the writers find every module imported
    for number in range(count):
        pids = [child(lambda n=number, k=k: write(root, random.Random(n * 2 + k))) for k in range(2)]  # type: ignore[misc]
        time.sleep(draw.uniform(0.0, 0.15))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def ask(root: Path, log: Path) -> None:
    """Ask for every key. Each build leaves a mark."""
    cache = Cache(root)
    for name in range(KEYS):

        def build(name: int = name) -> tuple[bytes, dict[str, object]]:
            (log / f"{name} {os.getpid()}").touch()
            time.sleep(0.01)
            return payload(name), {"n": name}

        entry, _ = get_or_build(cache, key(name), build)
        assert entry.payload == payload(name)
    assert not cache.faults, cache.faults


def crowd(folder: Path, count: int) -> None:
    (folder / "log").mkdir()
    get_or_build(Cache(folder / "other"), key(0), lambda: (b"x", {}))  # the processes find every module imported
    failed = at_once(count, lambda: ask(folder / "cache", folder / "log"))
    print(f"{failed} failed, {len(list((folder / 'log').iterdir()))} builds", flush=True)


def main(command: str, folder: str, count: str, seed: str = "0") -> None:
    """Entry point."""
    if command == "kill":
        kill_writers(Path(folder), int(count), int(seed))
    else:
        crowd(Path(folder), int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
