"""Memory for slices of K and for copies of operands, which is kept for the streams that were used last."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

import warp as wp

from warp_tiles.array_products.matmul_problem import KEPT_BYTES
from warp_tiles.errors import MatmulError
from warp_tiles.util import driver
from warp_tiles.util.threads import acquire, held

COUNTERS = 1 << 16  # of one stream, for tiles whose slices several blocks compute


@dataclass(frozen=True)
class Workspace:
    """Addresses of memory for the kernels of one product.

    ``arrived`` counts the blocks of each tile. The counters are zero before and after each kernel.
    """

    start: int
    arrived: int


@dataclass
class _Kept:
    """The workspace of a stream. Its users take turns, so that the stream runs each one's kernels one after another.

    Attributes:
        lock: Held from the first kernel that writes to it to the last one that reads it.
        used: The number of its last use; see :func:`workspace`.
    """

    arrived: Any
    stream: Any
    array: Any = None
    size_bytes: int = 0
    memory: Workspace = Workspace(0, 0)
    used: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Workspace:
        acquire(self.lock)
        return self.memory

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    def grow(self, size_bytes: int, device: Any) -> None:
        """Makes the memory at least this large."""
        with held(self.lock):
            if self.size_bytes < size_bytes:
                size = min(KEPT_BYTES, 1 << (size_bytes - 1).bit_length())
                self.free()
                self.array, self.size_bytes = wp.empty(size, dtype=wp.uint8, device=device), size
                self.memory = Workspace(self.array.ptr, self.arrived.ptr)

    def free(self) -> None:
        """Frees the memory after the kernels that use it. Warp frees it in the order of the device's null stream."""
        if self.array is not None:
            self.stream.device.null_stream.wait_stream(self.stream)
        self.array, self.size_bytes = None, 0

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.free()


_kept: dict[tuple[str, int], _Kept] = {}
_growing = threading.Lock()
_uses = itertools.count(1)


def workspace(size_bytes: int, counters: int, device: Any) -> AbstractContextManager[Workspace]:
    """Memory for kernels that the caller launches in the block, on the device's current stream.

    A graph that is captured gets memory of its own, because it may run on another stream, and beside other graphs.
    """
    if not device.is_cuda or size_bytes > KEPT_BYTES or counters > COUNTERS or device.is_capturing:
        return temporary(size_bytes, counters, device)
    stream = (device.alias, device.stream.cuda_stream)
    kept = _kept.get(stream)
    if kept is None or kept.size_bytes < size_bytes:
        with held(_growing):
            kept = _kept.get(stream) or _Kept(wp.zeros(COUNTERS, dtype=wp.int32, device=device), device.stream)
            kept.grow(size_bytes, device)
            _kept[stream] = kept
            _drop_others(kept, device)
    kept.used = next(_uses)
    return kept


def _drop_others(kept: _Kept, device: Any) -> None:
    """Forgets the workspaces of a device that were not used for the longest time, until the rest is small enough."""
    left = KEPT_BYTES - kept.size_bytes
    for key, workspace in sorted(_kept.items(), key=lambda item: item[1].used, reverse=True):
        if key[0] == device.alias and workspace is not kept:
            left -= workspace.size_bytes
            if left < 0:
                del _kept[key]


@contextmanager
def temporary(size_bytes: int, counters: int, device: Any) -> Iterator[Workspace]:
    """Memory of its own for each use, with counters that are zero."""
    if device.is_cuda and device.is_capturing and not device.captures:
        with _of_a_graph(size_bytes, counters, device) as memory:
            yield memory
        return
    array = wp.empty(-(-size_bytes // 16), dtype=wp.vec4, device=device)  # Warp counts elements with 32 bits
    arrived = wp.zeros(counters, dtype=wp.int32, device=device)
    try:
        yield Workspace(array.ptr, arrived.ptr or 0)
    finally:
        if device.is_cuda and not device.is_capturing:
            device.null_stream.wait_stream(device.stream)  # where Warp frees the arrays


@contextmanager
def _of_a_graph(size_bytes: int, counters: int, device: Any) -> Iterator[Workspace]:
    """Memory that a graph of another library allocates and frees. Warp would free it on the null stream, which ends
    the capture of a blocking stream.
    """

    def checked(function: str, *arguments: Any) -> None:
        if error := driver.call(function, *arguments):
            raise MatmulError(
                f"the graph that {device} captures cannot allocate a workspace: {error}",
                remedy="capture the graph with Warp, or give matmul() fewer slices of K",
            )

    offset, counters = -(-size_bytes // 4) * 4, max(1, counters)
    start = c_uint64()
    with wp.ScopedDevice(device):
        stream = c_void_p(device.stream.cuda_stream)
        checked("cuMemAllocAsync", byref(start), c_size_t(offset + 4 * counters), stream)
        checked("cuMemsetD32Async", c_uint64(start.value + offset), c_uint(0), c_size_t(counters), stream)
    try:
        yield Workspace(start.value, start.value + offset)
    finally:
        checked("cuMemFreeAsync", start, stream)
