"""Precompiled headers of NVRTC that processes share.

A file of precompiled headers is an image of NVRTC's heap for them. NVRTC only accepts it if that heap lies at the
address that it had when the file was written, and Linux gives each process other addresses. So a compiler process
occupies all large free ranges above :data:`HEAP_END` for a moment. Linux places a mapping in the highest free range
that is large enough, so the heap then lies directly below :data:`HEAP_END`.
https://docs.nvidia.com/cuda/nvrtc/#precompiled-header-pch-cuda-12-8
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: First version of NVRTC with precompiled headers.
FIRST_VERSION = (12, 8)
HEAP_END = 0x6000_0000_0000  # below every library, above every executable
_PROT_NONE = 0
_LEFT_FREE = 64 << 20  # bytes of each large range, for the other memory that NVRTC allocates meanwhile
_MAP_FLAGS = 0x02 | 0x20 | 0x4000 | 0x10_0000  # private, anonymous, no reserve, fixed without replacement
_reserved: bool | None = None


@dataclass(frozen=True)
class HeaderFile:
    """A file of precompiled headers for one compilation.

    Attributes:
        path: The file.
        create: True to write the file, False to read it.
    """

    path: str
    create: bool = False

    @property
    def flags(self) -> list[str]:
        """The flags of NVRTC."""
        return [f"--{'create' if self.create else 'use'}-pch={self.path}"]


def reserve_heap(nvrtc: Any) -> bool:
    """Place NVRTC's heap for precompiled headers below :data:`HEAP_END`, once in a process.

    Args:
        nvrtc: The module ``cuda.bindings.nvrtc``.

    Returns:
        True if it lies there. Otherwise, files of other processes are of no use.
    """
    global _reserved
    if _reserved is None:
        _reserved = sys.platform == "linux" and _reserve(nvrtc)
    return _reserved


def _reserve(nvrtc: Any) -> bool:
    nvrtc.nvrtcVersion()  # loads the library, which must not take the place of the heap
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    large = [(start, size - _LEFT_FREE) for start, size in _gaps() if size > _LEFT_FREE]
    filled = [(start, size) for start, size in large if libc.mmap(start, size, _PROT_NONE, _MAP_FLAGS, -1, 0) == start]
    try:
        # NVRTC allocates the heap, and then finds that it cannot write this file
        _, program = nvrtc.nvrtcCreateProgram(b"__device__ int x;", b"reserve.cu", 0, [], [])
        nvrtc.nvrtcCompileProgram(program, 1, [b"--create-pch=/dev/null"])
        nvrtc.nvrtcDestroyProgram(program)
    finally:
        for start, size in filled:
            libc.munmap(start, size)
    _, size = nvrtc.nvrtcGetPCHHeapSize()
    return any(start <= HEAP_END - size and end >= HEAP_END for start, end in _mappings())


def _mappings() -> Iterator[tuple[int, int]]:
    """Start and end of each mapping of this process, in ascending order."""
    with open("/proc/self/maps", encoding="utf-8") as lines:
        for line in lines:
            start, end = line.split(" ", 1)[0].split("-")
            yield int(start, 16), int(end, 16)


def _gaps() -> list[tuple[int, int]]:
    """Start and size of the free ranges between :data:`HEAP_END` and the stack."""
    gaps, free = [], HEAP_END
    for start, end in _mappings():
        if start >= 1 << 63:  # the page for system calls of old kernels
            break
        if start > free:
            gaps.append((free, start - free))
        free = max(free, end)
    return gaps
