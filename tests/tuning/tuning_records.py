"""Helpers of the tests of tuning records, importable from processes that they spawn."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from warp_tiles.tuning.record import Environment, Timing, TuningKey
from warp_tiles.tuning.store import RecordStore

ENVIRONMENT = Environment("NVIDIA H200", 90, 132, "1.19.0", "13.0", "0.2.0")
CONFIGS = [{"tile_m": size, "block_dim": threads} for size in (16, 32, 64) for threads in (64, 128)]


def key(subject: str = "kernel:scripts.gemm.make", environment: Environment = ENVIRONMENT, **values: Any) -> TuningKey:
    return TuningKey.of(subject, values or {"m": 512, "dtype": "float16"}, "5" * 64, environment)


def timing(config: Any, median_us: float = 10.0, **fields: Any) -> Timing:
    """A measured candidate. Its interval is five per cent to both sides unless it is given."""
    given = {"low_us": median_us * 0.95, "high_us": median_us * 1.05, "samples": 30, "soft": ENVIRONMENT.soft()}
    return Timing(config, **{"status": "ok", "median_us": median_us, **given, **fields})


def failure(config: Any, reason: str = "needs 300 kB of shared memory, there are 227") -> Timing:
    return Timing(config, "failed", reason=reason, soft=ENVIRONMENT.soft())


def note(log: str, what: str) -> None:
    """Record an event of this process as a file. The names of the files sort by time."""
    Path(log, f"{time.time_ns()}-{os.getpid()}-{what}").touch()


def tune(root: str, log: str, start_at: float, slow_s: float = 0.01) -> None:
    """Do the steps of a tuned kernel's first launch: look up, search alone for missing timings, take the winner.

    As in real searches, each process measures other times.
    """
    store, record_key = RecordStore(Path(root)), key()
    time.sleep(max(0.0, start_at - time.time()))

    def missing() -> list[dict[str, int]]:
        known = store.load(record_key)
        return [config for config in CONFIGS if known is None or known.timing(config) is None]

    while missing():
        with store.single_flight(record_key) as may_search:
            if may_search and missing():
                note(log, "searches")
                for config in missing():
                    time.sleep(slow_s)
                    store.merge(record_key, [timing(config, 5.0 + os.getpid() * config["tile_m"] % 17)])
                note(log, "ends")
    record = store.load(record_key)
    winner = record.winner()
    note(log, f"wins {winner.identity} {winner.median_us}")


def merge_many(root: str, name: str, start_at: float) -> None:
    """Add timings of configurations that no other process has, one at a time, to a shared key."""
    store = RecordStore(Path(root))
    time.sleep(max(0.0, start_at - time.time()))
    for step in range(4):
        store.merge(key(), [timing({"who": name, "step": step})])


def read_damaged(root: str, start_at: float) -> None:
    """Read a damaged record while others read and replace it."""
    store = RecordStore(Path(root))
    time.sleep(max(0.0, start_at - time.time()))
    with suppress(RuntimeWarning):
        store.load(key())
    store.merge(key(), [timing({"pid": os.getpid()})])
