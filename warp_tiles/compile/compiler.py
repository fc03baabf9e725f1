"""Compiles C++ to LTO-IR with NVRTC and links LTO-IR with nvJitLink, through cuda-core.

Requests and results are plain frozen values that can be sent between processes. NVRTC holds a
process-wide lock, so only separate processes compile in parallel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from warp_tiles.errors import BuildError, LinkError, ToolchainError, WarpTilesError

T = TypeVar("T")


@dataclass(frozen=True)
class CompileRequest:
    """One translation unit to compile to LTO-IR.

    Attributes:
        name: File name that the compiler's messages show.
        source: C++ text.
        options: Keyword arguments of ``cuda.core.ProgramOptions``, as pairs.
        subject: Name of the compiled function or module, for messages.
    """

    name: str
    source: str
    options: tuple[tuple[str, Any], ...]
    subject: str

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
        threads: Threads that the linker may use; 0 for one per core. The result does not depend on it.
        max_registers: Largest number of registers per thread, or None for the hardware's limit.
    """

    name: str
    inputs: tuple[bytes, ...]
    arch: str
    output: str
    threads: int = 0
    max_registers: int | None = None


@dataclass(frozen=True)
class Compiled:
    """The result of a request.

    Attributes:
        payload: LTO-IR, cubin or PTX.
        seconds: Time spent in the compiler or linker.
        log: Its messages.
        compiler: Library and version, e.g. ``NVRTC 12.9``.
    """

    payload: bytes
    seconds: float
    log: str
    compiler: str


def compile_to_ltoir(request: CompileRequest) -> Compiled:
    """Compile one translation unit to LTO-IR, in this process.

    Raises:
        BuildError: The compiler rejected the source. Its log is attached.
        ToolchainError: The compiler could not be loaded.
    """
    from cuda.bindings import nvrtc
    from cuda.core import Program, ProgramOptions

    start = time.perf_counter()
    options = ProgramOptions(
        name=request.name, link_time_optimization=True, relocatable_device_code=True, **dict(request.options)
    )
    try:
        payload = Program(request.source, "c++", options).compile("ltoir").code
    except Exception as error:
        command = "python -m warp_tiles.compile.worker --reproduce FILE"
        raise BuildError(
            f"{request.subject} could not be compiled",
            remedy=f"`{command}` compiles it alone, with this in FILE:\n{request.text}",
            log=str(error),
        ) from error
    _, major, minor = nvrtc.nvrtcVersion()
    return Compiled(bytes(payload), time.perf_counter() - start, "", f"NVRTC {major}.{minor}")


def link_module(request: LinkRequest) -> Compiled:
    """Link LTO-IR to a cubin or PTX, in this process.

    The link drops unused variables. The cuBLASDx headers leave thousands of constants in each LTO-IR,
    and their names alone fill more than nine tenths of the cubin from Warp's own link.

    Raises:
        LinkError: The linker rejected an input. Its log is attached.
    """
    from cuda.bindings import nvjitlink
    from cuda.core import Linker, LinkerOptions, ObjectCode

    start = time.perf_counter()
    options = LinkerOptions(
        name=request.name,
        arch=request.arch,
        link_time_optimization=True,
        optimize_unused_variables=True,
        max_register_count=request.max_registers,
        split_compile=request.threads,
        ptx=True if request.output == "ptx" else None,
    )
    try:
        objects = [ObjectCode.from_ltoir(data) for data in request.inputs]
        payload = Linker(*objects, options=options).link(request.output).code
    except Exception as error:
        raise LinkError(f"module {request.name} could not be linked for {request.arch}", log=str(error)) from error
    major, minor = nvjitlink.version()
    return Compiled(bytes(payload), time.perf_counter() - start, "", f"nvJitLink {major}.{minor}")


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
