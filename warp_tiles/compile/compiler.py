"""Compiles C++ to LTO-IR with NVRTC and links LTO-IR with nvJitLink.

Requests and results are plain frozen values that can be sent between processes. NVRTC holds a
process-wide lock, so only separate processes compile in parallel.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, field

from warp_tiles.compile.find import dotted
from warp_tiles.compile.libraries import NvJitLink, Nvrtc
from warp_tiles.errors import BuildError, LinkError

REPRODUCE = "// flags: "  # begins the first line of a source that is kept after an error
LTO_FLAGS = ("--relocatable-device-code=true", "--dlink-time-opt")


@dataclass(frozen=True)
class CompileRequest:
    """One translation unit to compile to LTO-IR.

    Attributes:
        flags: The flags of NVRTC that affect the code, without those for relocatable LTO-IR.
        subject: Name of the compiled function or module, for messages.
        optimization_level: That of Warp's module, by which the flags were made.
    """

    name: str
    source: str
    flags: tuple[str, ...]
    include_dirs: tuple[str, ...]
    subject: str
    optimization_level: int = 3

    @property
    def all_flags(self) -> tuple[str, ...]:
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
        inputs: LTO-IR of the module and of its GEMM functions.
        arch: Real or virtual architecture, e.g. ``sm_90``.
        max_registers: Largest number of registers per thread, or None for the hardware's limit.
    """

    name: str
    inputs: tuple[bytes, ...]
    arch: str
    output: str
    max_registers: int | None = None


@dataclass(frozen=True)
class Compiled:
    """The result of a request. The compiler is a library and its version, e.g. ``NVRTC 12.9``.

    It ended at a time of ``time.perf_counter()``, a clock that the processes of a machine share.
    """

    payload: bytes
    seconds: float
    compiler: str
    ended_at_s: float = field(default_factory=time.perf_counter, compare=False)


def compile_to_ltoir(request: CompileRequest, nvrtc: Nvrtc) -> Compiled:
    """Compile one translation unit to LTO-IR, in this process. A BuildError has the log of the compiler."""
    start = time.perf_counter()
    try:
        made = nvrtc.compile(request.source, request.name, (*LTO_FLAGS, *request.all_flags))
    except BuildError as error:
        raise BuildError(
            f"{request.subject} could not be compiled",
            remedy="`python -m warp_tiles.compile.worker --reproduce FILE` compiles it alone, with this in FILE:\n"
            f"{request.text}",
            log=error.log,
        ) from error
    seconds = time.perf_counter() - start
    return Compiled(made.payload, seconds, f"NVRTC {dotted(nvrtc.version)}")


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
