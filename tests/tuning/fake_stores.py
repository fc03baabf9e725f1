"""A fake of the store of records on disk."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from warp_tiles.tuning.record import Record, Timing, TuningKey


class MemoryStore:
    """Records in memory; ``busy`` is held while another process searches. ``waits`` is set once a caller waits."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.busy, self.waits = threading.Lock(), threading.Event()

    def load(self, key: TuningKey) -> Record | None:
        return self.records.get(key.digest)

    def merge(self, key: TuningKey, timings: Sequence[Timing]) -> Record:
        self.records[key.digest] = (self.load(key) or Record(key)).merged(timings)
        return self.records[key.digest]

    def searches(self, key: TuningKey) -> bool:
        return False

    @contextmanager
    def single_flight(self, key: TuningKey, timeout_s: float | None = None) -> Iterator[bool]:
        free = self.busy.acquire(blocking=False)
        if not free:
            self.waits.set()
        if not free and self.busy.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self.busy.release()  # the other search has ended
        try:
            yield free
        finally:
            if free:
                self.busy.release()
