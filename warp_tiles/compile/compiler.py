"""Compiles C++ to LTO-IR with NVRTC and links LTO-IR with nvJitLink, through cuda-bindings.

Requests and results are plain frozen values that can be sent between processes. NVRTC holds a
process-wide lock, so only separate processes compile in parallel.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from warp_tiles.compile.flags import compiler_flags, linker_flags
from warp_tiles.compile.headers import HeaderFile, reserve_heap
from warp_tiles.errors import BuildError, LinkError, ToolchainError, WarpTilesError
from warp_tiles.toolchain.packages import load_library

T = TypeVar("T")


@dataclass(frozen=True)
class CompileRequest:
    """One translation unit to compile to LTO-IR.

    Attributes:
        name: File name that the compiler's messages show.
        source: C++ text.
        options: Keyword arguments of ``cuda.core.ProgramOptions``, as pairs.
        subject: Name of the compiled function or module, for messages.
        header: Precompiled headers to read or to write, or None.
    """

    name: str
    source: str
    options: tuple[tuple[str, Any], ...]
    subject: str
    header: HeaderFile | None = None

    @property
    def text(self) -> str:
        """The source after a line with the options, in the format of ``worker --reproduce``."""
        return f"// options: {dict(self.options)!r}\n{self.source}"


@dataclass(frozen=True)
class LinkRequest:
    """One module to link from LTO-IR.

    Attributes:
        name: Name of the module, for messages.
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
        payload: LTO-IR, cubin or PTX.
        seconds: Time spent in the compiler or linker.
        log: Its messages.
        compiler: Library and version, e.g. ``NVRTC 12.9``.
        header_written: True if the request's precompiled headers were written.
    """

    payload: bytes
    seconds: float
    log: str
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
    flags = compiler_flags(request.options)
    if request.header is not None and reserve_heap(nvrtc):
        with contextlib.suppress(BuildError):  # the file may be gone by now
            return _compile(nvrtc, request, [*flags, *request.header.flags], start)
    return _compile(nvrtc, request, flags, start)


def _compile(nvrtc: Any, request: CompileRequest, options: list[str], start: float) -> Compiled:
    flags = [option.encode("utf-8") for option in options]
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
        written = request.header is not None and request.header.create and _has_written_header(nvrtc, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    major, minor = _checked(nvrtc, nvrtc.nvrtcVersion())
    return Compiled(bytes(payload), time.perf_counter() - start, "", f"NVRTC {major}.{minor}", written)


def _has_written_header(nvrtc: Any, program: Any) -> bool:
    (status,) = nvrtc.nvrtcGetPCHCreateStatus(program)
    return bool(status == nvrtc.nvrtcResult.NVRTC_SUCCESS)


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    """The values of a call of NVRTC: one as it is, several as a tuple.

    Raises:
        RuntimeError: The call failed.
    """
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
    return Compiled(bytes(payload), time.perf_counter() - start, "", f"nvJitLink {major}.{minor}")


def _linker_log(nvjitlink: Any, handle: int) -> str:
    if not handle:
        return ""
    log = bytearray(nvjitlink.get_error_log_size(handle))
    if log:
        nvjitlink.get_error_log(handle, log)
    return bytes(log).rstrip(b"\0").decode("utf-8", "replace")


def guarded(function: Callable[[Any], T], request: object) -> T:
    """Call ``function(request)``, and convert any exception from outside this package to a ToolchainError.

    Raises:
        WarpTilesError: The error of ``function``, or the ToolchainError that wraps another exception.
    """
    try:
        return function(request)
    except WarpTilesError:
        raise
    except Exception as error:
        raise ToolchainError(
            f"the compiler process failed: {type(error).__name__}: {error}",
            remedy="`warp-tiles doctor` names what is missing",
        ) from error
