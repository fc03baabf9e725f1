"""Compiles C++ to LTO-IR with NVRTC and links LTO-IR with nvJitLink.

Requests and results are plain frozen values that can be sent between processes. NVRTC holds a
process-wide lock, so only separate processes compile in parallel.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from warp_tiles.compile.find import dotted
from warp_tiles.compile.libraries import NvJitLink, Nvrtc
from warp_tiles.errors import BuildError, LinkError

#: First version of NVRTC with precompiled headers.
FIRST_VERSION = (12, 8)
REPRODUCE = "// flags: "  # begins the first line of a source that is kept after an error
HEAP_END = 0x6000_0000_0000  # below every library, above every executable
_PROT_NONE = 0
_LEFT_FREE = 64 << 20  # bytes of each large range, for the other memory that NVRTC allocates meanwhile
_MAP_FLAGS = 0x02 | 0x20 | 0x4000 | 0x10_0000  # private, anonymous, no reserve, fixed without replacement
LTO_FLAGS = ("--relocatable-device-code=true", "--dlink-time-opt")


@dataclass(frozen=True)
class HeaderFile:
    """A file of precompiled headers, which one compilation writes (``create``) or reads."""

    path: str
    create: bool = False

    @property
    def flag(self) -> str:
        return f"--{'create' if self.create else 'use'}-pch={self.path}"


@dataclass(frozen=True)
class CompileRequest:
    """One translation unit to compile to LTO-IR.

    Attributes:
        flags: The flags of NVRTC that affect the code, without those for relocatable LTO-IR.
        include_dirs: The folders of its includes, in the order in which they are searched.
        subject: Name of the compiled function or module, for messages.
        prefix: Number of characters at the beginning of a module's source, up to its first declaration, that other
            modules share, so that its headers may be precompiled; 0 to precompile none.
        optimization_level: That of Warp's module, by which the flags were made.
    """

    name: str
    source: str
    flags: tuple[str, ...]
    include_dirs: tuple[str, ...]
    subject: str
    header: HeaderFile | None = None
    prefix: int = 0
    optimization_level: int = 3

    @property
    def all_flags(self) -> tuple[str, ...]:
        """The flags, and those of the include folders."""
        return (*self.flags, *(f"--include-path={folder}" for folder in self.include_dirs))

    @property
    def text(self) -> str:
        """The source after a line with the flags, in the format of ``worker --reproduce``."""
        return f"{REPRODUCE}{shlex.join(self.all_flags)}\n{self.source}"

    @classmethod
    def from_text(cls, text: str, name: str) -> CompileRequest:
        """Rebuild the request of a :attr:`text`. Raises a ValueError if its first line has no flags."""
        first = text.partition("\n")[0]
        if not first.startswith(REPRODUCE):
            raise ValueError(f"the first line must be '{REPRODUCE}...', as in the error")
        return cls(name, text, tuple(shlex.split(first.removeprefix(REPRODUCE))), (), name)


@dataclass(frozen=True)
class LinkRequest:
    """One module to link from LTO-IR.

    Attributes:
        inputs: LTO-IR of the module and of its GEMM variants.
        arch: Real or virtual architecture, e.g. ``sm_90``.
        output: ``cubin`` or ``ptx``.
        max_registers: Largest number of registers per thread, or None for the hardware's limit.
    """

    name: str
    inputs: tuple[bytes, ...]
    arch: str
    output: str
    max_registers: int | None = None


@dataclass(frozen=True)
class Compiled:
    """The result of a request.

    Attributes:
        compiler: Library and version, e.g. ``NVRTC 12.9``.
    """

    payload: bytes
    seconds: float
    compiler: str
    header_written: bool = False


def compile_to_ltoir(request: CompileRequest, nvrtc: Nvrtc) -> Compiled:
    """Compile one translation unit to LTO-IR, in this process.

    If it cannot be compiled with precompiled headers, it is compiled without.

    Raises:
        BuildError: The compiler rejected the source. Its log is attached.
    """
    start = time.perf_counter()
    if request.header is not None and reserve_heap(nvrtc):
        with contextlib.suppress(Exception):  # the file may be gone by now
            return _compile(nvrtc, request, start, request.header.flag)
    return _compile(nvrtc, request, start)


def _compile(nvrtc: Nvrtc, request: CompileRequest, start: float, *more: str) -> Compiled:
    try:
        made = nvrtc.compile(request.source, request.name, (*LTO_FLAGS, *request.all_flags, *more))
    except BuildError as error:
        raise BuildError(
            f"{request.subject} could not be compiled",
            remedy="`python -m warp_tiles.compile.worker --reproduce FILE` compiles it alone, with this in FILE:\n"
            f"{request.text}",
            log=error.log,
        ) from error
    seconds = time.perf_counter() - start
    return Compiled(made.payload, seconds, f"NVRTC {dotted(nvrtc.version)}", made.header_written)


def link_module(request: LinkRequest, linker: NvJitLink) -> Compiled:
    """Link LTO-IR to a cubin or PTX, in this process.

    The link drops unused variables. The cuBLASDx headers leave thousands of constants in each LTO-IR,
    and their names alone fill more than nine tenths of the cubin from Warp's own link.

    Raises:
        LinkError: The linker rejected an input. Its log is attached.
    """
    start = time.perf_counter()
    inputs = [(f"{request.name} {number}", data) for number, data in enumerate(request.inputs)]
    try:
        payload = linker.link(inputs, linker_flags(request.arch, request.output, request.max_registers))
    except LinkError as error:
        message = f"module {request.name} could not be linked for {request.arch}"
        raise LinkError(message, log=error.log) from error
    return Compiled(payload, time.perf_counter() - start, f"nvJitLink {dotted(linker.version)}")


def linker_flags(arch: str, output: str, max_registers: int | None) -> list[str]:
    """The flags of nvJitLink for a link that drops unused variables; see :class:`LinkRequest`.

    The linker uses one thread per core. Any number of threads but one gives the same bytes; one alone gives code that
    uses more stack.
    """
    flags = [f"-arch={arch}", "-lto", "-optimize-unused-variables", "-split-compile=0"]
    if max_registers is not None:
        flags.append(f"-maxrregcount={max_registers}")
    return [*flags, "-ptx"] if output == "ptx" else flags


# ---- precompiled headers that processes share
#
# A file of precompiled headers is an image of NVRTC's heap for them. NVRTC only accepts it if that heap lies at the
# address that it had when the file was written, and Linux gives each process other addresses. So a compiler process
# occupies all large free ranges above HEAP_END for a moment. Linux places a mapping in the highest free range that is
# large enough, so the heap then lies directly below HEAP_END.
# https://docs.nvidia.com/cuda/nvrtc/#precompiled-header-pch-cuda-12-8


@functools.cache
def reserve_heap(nvrtc: Nvrtc) -> bool:
    """Place NVRTC's heap for precompiled headers below :data:`HEAP_END`, once in a process.

    True if it lies there. Otherwise, files of other processes are of no use.
    """
    with contextlib.suppress(Exception):  # without it, headers are read again
        return sys.platform == "linux" and _reserve(nvrtc)
    return False


def _reserve(nvrtc: Nvrtc) -> bool:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    large = [(start, size - _LEFT_FREE) for start, size in _gaps() if size > _LEFT_FREE]
    filled = [(start, size) for start, size in large if libc.mmap(start, size, _PROT_NONE, _MAP_FLAGS, -1, 0) == start]
    try:
        # NVRTC allocates the heap, and then finds that it cannot write this file
        with contextlib.suppress(BuildError):
            nvrtc.compile("__device__ int x;", "reserve.cu", ["--create-pch=/dev/null"], "PTX")
    finally:
        for start, size in filled:
            libc.munmap(start, size)
    size = nvrtc.pch_heap_bytes
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
