"""Counts of a remote store's use, kept over processes beside the cache."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warp_tiles.cache.documents import Documents
from warp_tiles.util.trusted_folder import NoLocksError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FOLDER = "statistics"
_NAME = "remote"
_LOCK_S = 2.0
Counts = TypeVar("Counts", bound="DataclassInstance")


def summed(first: Counts, second: Counts) -> Counts:
    """The sums of the fields of two dataclasses of one kind."""
    return type(first)(**{f.name: getattr(first, f.name) + getattr(second, f.name) for f in fields(first)})


@dataclass(frozen=True)
class Statistics:
    """Counts of requests to a remote store.

    Attributes:
        hits: Entries that were fetched, verified and used.
        misses: Entries that the store does not have.
        refused: Answers that were not the requested entry, or not signed by a trusted key.
        failures: Requests without an answer in time, or with an error.
        pushed: Entries that were written.
        fetched_bytes: Payloads of the hits.
        pushed_bytes: Payloads of the written entries.
        waited_s: Seconds in which builds waited for the store.
        saved_s: Seconds that the builds of the fetched entries had taken, less those of the fetches; never negative for
            one entry.
    """

    hits: int = 0
    misses: int = 0
    refused: int = 0
    failures: int = 0
    pushed: int = 0
    fetched_bytes: int = 0
    pushed_bytes: int = 0
    waited_s: float = 0.0
    saved_s: float = 0.0

    def __add__(self, other: Statistics) -> Statistics:
        return summed(self, other)

    def __bool__(self) -> bool:
        return self != Statistics()

    @classmethod
    def from_json(cls, data: Any) -> Statistics:
        """Rebuild counts. Anything else than counts gives zeros."""
        names = {f.name for f in fields(cls)}
        if not isinstance(data, dict) or set(data) != names:
            return cls()
        sound = all(isinstance(value, (int, float)) and value >= 0 for value in data.values())
        return cls(**data) if sound else cls()


class StatisticsFile:
    """The counts of all processes of this user, and those of this process that are not in the file yet.

    Args:
        root: Folder of the cache.
        shared: True if other users can write the folder.
    """

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        self._documents = Documents(root, FOLDER, shared=shared)
        self._lock = threading.Lock()
        self._pending = Statistics()

    def read(self) -> Statistics:
        """The counts in the file; zeros if there are none, or if the folder cannot be used."""
        return Statistics.from_json((self._documents.read(_NAME) or {}).get("counts"))

    def clear(self) -> None:
        """Set the counts to zero."""
        self._documents.write(_NAME, {"counts": asdict(Statistics())})

    def add(self, counts: Statistics) -> None:
        """Keep counts until the next :meth:`write`."""
        with self._lock:
            self._pending += counts

    def write(self) -> None:
        """Add the counts of this process to the file. Does nothing if the folder cannot be used."""
        with self._lock:
            new, self._pending = self._pending, Statistics()
        if not new:
            return
        try:
            with self._documents.files.lock(f"{FOLDER}/{_NAME}.lock", _LOCK_S):
                self._documents.write(_NAME, {"counts": asdict(self.read() + new)})
        except (TimeoutError, NoLocksError, OSError):
            pass  # counts are worth no wait
