"""Memory for slices of K and for copies of operands, which is kept for each stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import warp as wp

KEPT_BYTES = 256 << 20  # of one stream; larger workspaces are freed after each use
COUNTERS = 1 << 16  # of one stream, for tiles whose slices several blocks compute


@dataclass(frozen=True)
class Workspace:
    """Addresses of memory for the kernels of one product.

    Attributes:
        arrived: Counters of the blocks of each tile. They are zero before and after each kernel.
    """

    start: int
    arrived: int


@dataclass
class _Kept:
    """The workspace of a stream. Its users take turns, so that the stream runs each one's kernels one after another.

    Attributes:
        older: Smaller ones, to which the graphs of other libraries may still write.
        lock: Held from the first kernel that writes to it to the last one that reads it.
        size_bytes: Size of the memory. It never shrinks.
    """

    array: Any = None
    arrived: Any = None
    older: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    size_bytes: int = 0
    memory: Workspace = field(default_factory=lambda: Workspace(0, 0))

    def __enter__(self) -> Workspace:
        self.lock.acquire()
        return self.memory

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    def grow(self, size_bytes: int, device: Any) -> None:
        """Makes the memory at least this large."""
        with self.lock:
            if self.arrived is None:
                self.arrived = wp.zeros(COUNTERS, dtype=wp.int32, device=device)
            if self.size_bytes < size_bytes:
                size = min(KEPT_BYTES, 1 << (size_bytes - 1).bit_length())
                array = wp.empty(size, dtype=wp.uint8, device=device)
                if self.array is not None:
                    self.older.append(self.array)
                self.array, self.size_bytes = array, size
                self.memory = Workspace(array.ptr, self.arrived.ptr)


_kept: dict[tuple[str, int], _Kept] = {}


def workspace(size_bytes: int, counters: int, device: Any) -> AbstractContextManager[Workspace]:
    """Memory for kernels that the caller launches in the block, on the device's current stream.

    A graph that Warp captures gets memory of its own, because it may run on another stream. A graph that another
    library captures gets that of the stream, if there is enough: memory allocated during a capture serves this graph
    alone.
    """
    if not device.is_cuda or size_bytes > KEPT_BYTES or counters > COUNTERS or device.captures:
        return _temporary(size_bytes, counters, device)
    stream = (device.alias, device.stream.cuda_stream)
    kept = _kept.get(stream)
    if kept is None or kept.size_bytes < size_bytes:
        if device.is_capturing:
            return _temporary(size_bytes, counters, device)
        kept = _kept.setdefault(stream, _Kept())
        kept.grow(size_bytes, device)
    return kept


@contextmanager
def _temporary(size_bytes: int, counters: int, device: Any) -> Iterator[Workspace]:
    array = wp.empty(size_bytes, dtype=wp.uint8, device=device)
    arrived = wp.zeros(counters, dtype=wp.int32, device=device)
    yield Workspace(array.ptr, arrived.ptr or 0)
