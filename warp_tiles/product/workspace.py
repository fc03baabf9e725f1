"""Memory for slices of K, which is kept for each stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

KEPT_BYTES = 256 << 20  # of one stream; larger workspaces are freed after each use


@dataclass
class _Kept:
    """The workspace of a stream. Its users take turns, so that the stream runs each one's kernels one after another.

    Attributes:
        array: The memory, as bytes.
        older: Smaller ones, to which the graphs of other libraries may still write.
        lock: Held from the first kernel that writes to it to the last one that reads it.
    """

    array: Any = None
    older: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


_kept: dict[tuple[str, int], _Kept] = {}


@contextmanager
def workspace(size_bytes: int, device: Any) -> Iterator[int]:
    """Yields the address of memory for kernels that the caller launches in the block, on the device's current stream.

    A graph that Warp captures gets memory of its own, because it may run on another stream.

    Args:
        size_bytes: Size of the memory.
        device: Warp's device.
    """
    import warp as wp

    if not device.is_cuda or size_bytes > KEPT_BYTES or device.captures:
        array = wp.empty(size_bytes, dtype=wp.uint8, device=device)
        yield array.ptr
        return
    kept = _kept.setdefault((device.alias, device.stream.cuda_stream), _Kept())
    with kept.lock:
        if kept.array is None or kept.array.capacity < size_bytes:
            if kept.array is not None:
                kept.older.append(kept.array)
            size = min(KEPT_BYTES, 1 << (size_bytes - 1).bit_length())
            kept.array = wp.empty(size, dtype=wp.uint8, device=device)
        yield kept.array.ptr
