"""Fakes of the store of records on disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from warp_tiles.tuning.key import TuningKey
from warp_tiles.tuning.record import Record, Timing


class MemoryStore:
    """Records in memory; ``busy`` is held while another process searches."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.merges: list[tuple[Timing, ...]] = []
        self.busy = threading.Lock()

    def load(self, key: TuningKey) -> Record | None:
        return self.records.get(key.digest)

    def merge(self, key: TuningKey, timings: Sequence[Timing]) -> Record:
        self.merges.append(tuple(timings))
        self.records[key.digest] = (self.load(key) or Record(key)).merged(timings)
        return self.records[key.digest]

    @contextmanager
    def single_flight(self, key: TuningKey, timeout_s: float | None = None) -> Iterator[bool]:
        free = self.busy.acquire(timeout=-1 if timeout_s is None else timeout_s)
        try:
            yield free
        finally:
            if free:
                self.busy.release()


class FileStore(MemoryStore):
    """Records in a file, which another process can read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        if path.exists():
            found = [Record.from_json(record) for record in json.loads(path.read_text())]
            self.records = {record.key.digest: record for record in found}

    def merge(self, key: TuningKey, timings: Sequence[Timing]) -> Record:
        record = super().merge(key, timings)
        self.path.write_text(json.dumps([record.to_json() for record in self.records.values()]))
        return record
