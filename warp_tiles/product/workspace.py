"""Memory for slices of K, which is kept for each stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

KEPT_BYTES = 256 << 20  # of one stream; larger workspaces are freed after each use
COUNTERS = 1 << 16  # of one stream, for tiles whose slices several blocks compute


@dataclass(frozen=True)
class Workspace:
    """Addresses of memory for the kernels of one product.

    Attributes:
        sums: Sums of slices.
        arrived: Counters of the blocks of each tile. They are zero before and after each kernel.
    """

    sums: int
    arrived: int


@dataclass
class _Kept:
    """The workspace of a stream. Its users take turns, so that the stream runs each one's kernels one after another.

    Attributes:
        sums: The memory, as bytes.
        arrived: The counters.
        older: Smaller ones, to which the graphs of other libraries may still write.
        lock: Held from the first kernel that writes to it to the last one that reads it.
    """

    sums: Any = None
    arrived: Any = None
    older: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


_kept: dict[tuple[str, int], _Kept] = {}


@contextmanager
def workspace(size_bytes: int, counters: int, device: Any) -> Iterator[Workspace]:
    """Yields memory for kernels that the caller launches in the block, on the device's current stream.

    A graph that Warp captures gets memory of its own, because it may run on another stream. A graph that another
    library captures gets that of the stream, if there is enough: memory allocated during a capture serves this graph
    alone.

    Args:
        size_bytes: Size of the sums.
        counters: The number of counters.
        device: Warp's device.
    """
    import warp as wp

    kept = _kept.setdefault((device.alias, device.stream.cuda_stream), _Kept()) if device.is_cuda else _Kept()
    is_enough = kept.arrived is not None and kept.sums is not None and kept.sums.capacity >= size_bytes
    is_kept = device.is_cuda and size_bytes <= KEPT_BYTES and counters <= COUNTERS and not device.captures
    if not is_kept or (not is_enough and device.is_capturing):
        sums = wp.empty(size_bytes, dtype=wp.uint8, device=device)
        arrived = wp.zeros(counters, dtype=wp.int32, device=device)
        yield Workspace(sums.ptr, arrived.ptr or 0)
        return
    with kept.lock:
        if kept.sums is None or kept.sums.capacity < size_bytes:
            if kept.sums is not None:
                kept.older.append(kept.sums)
            size = min(KEPT_BYTES, 1 << (size_bytes - 1).bit_length())
            kept.sums = wp.empty(size, dtype=wp.uint8, device=device)
        if kept.arrived is None:
            kept.arrived = wp.zeros(COUNTERS, dtype=wp.int32, device=device)
        yield Workspace(kept.sums.ptr, kept.arrived.ptr)
