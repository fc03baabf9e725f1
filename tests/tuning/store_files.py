"""Files of a store, and a folder that cannot be written."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tuning.tuning_records import failure, timing
from warp_tiles.tuning.folder import slug
from warp_tiles.tuning.key import TuningKey
from warp_tiles.tuning.store import RecordStore

A, B, C = timing({"x": 1}, 10.0), timing({"x": 2}, 20.0), failure({"x": 3})


def file_of(store: RecordStore, record_key: TuningKey) -> Path:
    return store.root / slug(record_key.subject) / f"{record_key.digest}.json"


def future(record_key: TuningKey) -> bytes:
    return json.dumps({"schema": 2, "key": record_key.to_json(), "measurements": {}}).encode()


def write(path: Path, data: bytes) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return data


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """A folder in which nothing can be created, even by root, because a file has its name."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("in the way")
    yield
