"""Compiles C++ to LTO-IR with NVRTC and links LTO-IR with nvJitLink, through cuda-bindings.

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
from typing import Any

from warp_tiles.compile.search import load_library
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
        """The flag of NVRTC."""
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
    """

    name: str
    source: str
    flags: tuple[str, ...]
    include_dirs: tuple[str, ...]
    subject: str
    header: HeaderFile | None = None
    prefix: int = 0

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
        """Rebuild the request of a :attr:`text`.

        Raises:
            ValueError: Its first line has no flags.
        """
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


def compile_to_ltoir(request: CompileRequest) -> Compiled:
    """Compile one translation unit to LTO-IR, in this process.

    If it cannot be compiled with precompiled headers, it is compiled without.

    Raises:
        BuildError: The compiler rejected the source. Its log is attached.
        ToolchainError: The compiler could not be loaded.
    """
    load_library("nvrtc")
    from cuda.bindings import nvrtc

    start = time.perf_counter()
    if request.header is not None and reserve_heap(nvrtc):
        with contextlib.suppress(Exception):  # the file may be gone by now
            return _compile(nvrtc, request, start, request.header.flag)
    return _compile(nvrtc, request, start)


def _compile(nvrtc: Any, request: CompileRequest, start: float, *more: str) -> Compiled:
    flags = [flag.encode("utf-8") for flag in (*LTO_FLAGS, *request.all_flags, *more)]
    program = _checked(
        nvrtc, nvrtc.nvrtcCreateProgram(request.source.encode("utf-8"), request.name.encode(), 0, [], [])
    )
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
            _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
            raise BuildError(
                f"{request.subject} could not be compiled",
                remedy="`python -m warp_tiles.compile.worker --reproduce FILE` compiles it alone, with this in FILE:\n"
                f"{request.text}",
                log=bytes(log).rstrip(b"\0").decode("utf-8", "replace") or str(status),
            )
        payload = bytearray(_checked(nvrtc, nvrtc.nvrtcGetLTOIRSize(program)))
        _checked(nvrtc, nvrtc.nvrtcGetLTOIR(program, payload))
        written = False
        if request.header is not None and request.header.create:
            written = nvrtc.nvrtcGetPCHCreateStatus(program)[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    major, minor = _checked(nvrtc, nvrtc.nvrtcVersion())
    return Compiled(bytes(payload), time.perf_counter() - start, f"NVRTC {major}.{minor}", written)


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    """The values of a call of NVRTC: one as it is, several as a tuple. Raises a RuntimeError if it failed."""
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if len(values) == 1 else tuple(values)


def link_module(request: LinkRequest) -> Compiled:
    """Link LTO-IR to a cubin or PTX, in this process.

    The link drops unused variables. The cuBLASDx headers leave thousands of constants in each LTO-IR,
    and their names alone fill more than nine tenths of the cubin from Warp's own link.

    Raises:
        LinkError: The linker rejected an input. Its log is attached.
        ToolchainError: The linker could not be loaded.
    """
    load_library("nvJitLink")
    from cuda.bindings import nvjitlink

    start = time.perf_counter()
    flags = linker_flags(request.arch, request.output, request.max_registers)
    handle = 0
    try:
        handle = nvjitlink.create(len(flags), flags)
        for number, data in enumerate(request.inputs):
            nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, data, len(data), f"{request.name} {number}")
        nvjitlink.complete(handle)
        ptx = request.output == "ptx"
        size = (nvjitlink.get_linked_ptx_size if ptx else nvjitlink.get_linked_cubin_size)(handle)
        payload = bytearray(size)
        (nvjitlink.get_linked_ptx if ptx else nvjitlink.get_linked_cubin)(handle, payload)
    except Exception as error:
        message = f"module {request.name} could not be linked for {request.arch}"
        raise LinkError(message, log=f"{error}\n{_linker_log(nvjitlink, handle)}".strip()) from error
    finally:
        if handle:
            nvjitlink.destroy(handle)
    major, minor = nvjitlink.version()
    return Compiled(bytes(payload), time.perf_counter() - start, f"nvJitLink {major}.{minor}")


def _linker_log(nvjitlink: Any, handle: int) -> str:
    if not handle:
        return ""
    log = bytearray(nvjitlink.get_error_log_size(handle))
    if log:
        nvjitlink.get_error_log(handle, log)
    return bytes(log).rstrip(b"\0").decode("utf-8", "replace")


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
def reserve_heap(nvrtc: Any) -> bool:
    """Place NVRTC's heap for precompiled headers below :data:`HEAP_END`, once in a process.

    Returns:
        True if it lies there. Otherwise, files of other processes are of no use.
    """
    with contextlib.suppress(Exception):  # without it, headers are read again
        return sys.platform == "linux" and _reserve(nvrtc)
    return False


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
