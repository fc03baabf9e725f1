"""Compiles C++ to LTO-IR with NVRTC and links LTO-IR with nvJitLink, called through ctypes.

Requests and results are plain frozen values that can be sent between processes. NVRTC holds a
process-wide lock, so only separate processes compile in parallel.

A library is opened by its path, so the file that is used is the one that was chosen. ``cuda.bindings`` would take any
release that the process has loaded already, such as that of torch.

Sources of the functions: https://docs.nvidia.com/cuda/nvrtc/ and https://docs.nvidia.com/cuda/nvjitlink/
"""

from __future__ import annotations

import ctypes
import os
import pickle
import shlex
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

from warp_tiles.errors import BuildError, LinkError, ToolchainError, suppressed, unless_signalled

REPRODUCE = "// flags: "  # begins the first line of a source that is kept after an error
LTO_FLAGS = ("--relocatable-device-code=true", "--dlink-time-opt")
_LTOIR = 10  # NVJITLINK_INPUT_LTOIR


# ---- the libraries


class _Library:
    """One of the two libraries, with its (major, minor) version. Raises ToolchainError if the loader refuses it."""

    name: ClassVar[str]
    _version_function: ClassVar[str]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        major, minor = c_int(), c_int()
        try:
            self._functions = ctypes.CDLL(os.fspath(path))
            self._checked(self._version_function, byref(major), byref(minor))
        except unless_signalled(OSError, AttributeError, RuntimeError) as error:  # no library, or another one
            raise ToolchainError(
                f"{path} cannot be loaded: {error}",
                remedy=f"install the package of {self.name} for this platform again, in a folder that is not mounted "
                "with noexec",
            ) from error
        self.version: tuple[int, int] = (major.value, minor.value)

    def __str__(self) -> str:
        """Its name and version, e.g. ``NVRTC 12.9``."""
        return f"{self.name} {self.version[0]}.{self.version[1]}"

    def _call(self, function: str, *arguments: Any) -> int:
        status: int = getattr(self._functions, function)(*arguments)
        return status

    def _checked(self, function: str, *arguments: Any) -> None:
        if status := self._call(function, *arguments):
            raise RuntimeError(f"{self.name}: {function} failed with error {status}")

    def _bytes(self, function: str, handle: c_void_p) -> bytes:
        """What a pair of functions, ``functionSize`` and ``function``, returns for a handle."""
        size = c_size_t()
        self._checked(f"{function}Size", handle, byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._checked(function, handle, buffer)
        return buffer.raw


class Translation(NamedTuple):
    """What NVRTC makes of a translation unit; the log has warnings, and what ``--ptxas-options=-v`` asks for."""

    payload: bytes
    log: str


class Nvrtc(_Library):
    """The compiler. It serialises compilations within a process."""

    name = "NVRTC"
    _version_function = "nvrtcVersion"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        for builtins in self.path.parent.glob("libnvrtc-builtins.so*"):
            with suppressed(OSError):  # NVRTC 13.0 does not look for them beside itself
                ctypes.CDLL(os.fspath(builtins), os.RTLD_NOW | os.RTLD_GLOBAL)

    def archs(self) -> tuple[int, ...]:
        """The compute capabilities that it compiles for, e.g. 90."""
        count = c_int()
        self._checked("nvrtcGetNumSupportedArchs", byref(count))
        archs = (c_int * count.value)()
        self._checked("nvrtcGetSupportedArchs", archs)
        return tuple(archs)

    def compile(self, source: str, name: str, flags: Sequence[str], output: str = "LTOIR") -> Translation:
        """Compile one translation unit to ``LTOIR``, ``CUBIN`` or ``PTX``. A BuildError has the log."""
        program = c_void_p()
        self._checked("nvrtcCreateProgram", byref(program), source.encode(), name.encode(), 0, None, None)
        try:
            encoded = [flag.encode() for flag in flags]
            status = self._call("nvrtcCompileProgram", program, len(encoded), (c_char_p * len(encoded))(*encoded))
            log = _text(self._bytes("nvrtcGetProgramLog", program))
            if status:
                raise BuildError(f"NVRTC rejects {name}", log=log or f"error {status} of nvrtcCompileProgram")
            payload = self._bytes(f"nvrtcGet{output}", program)
            return Translation(payload, log)
        finally:
            self._call("nvrtcDestroyProgram", byref(program))


class NvJitLink(_Library):
    name = "nvJitLink"
    _version_function = "nvJitLinkVersion"

    def link(self, inputs: Sequence[tuple[str, bytes]], flags: Sequence[str]) -> bytes:
        """Link LTO-IR, named for messages, to a cubin, or to PTX by the flag ``-ptx``. A LinkError has the log."""
        with self._linking(flags) as handle:
            for name, data in inputs:
                self._step("nvJitLinkAddData", handle, _LTOIR, data, c_size_t(len(data)), name.encode())
            self._step("nvJitLinkComplete", handle)
            return self._bytes("nvJitLinkGetLinkedPtx" if "-ptx" in flags else "nvJitLinkGetLinkedCubin", handle)

    @contextmanager
    def _linking(self, flags: Sequence[str]) -> Iterator[c_void_p]:
        handle, encoded = c_void_p(), [flag.encode() for flag in flags]
        if status := self._call("nvJitLinkCreate", byref(handle), len(encoded), (c_char_p * len(encoded))(*encoded)):
            raise LinkError(f"nvJitLink rejects a flag of {' '.join(flags)}", log=f"error {status} of nvJitLinkCreate")
        try:
            yield handle
        finally:
            self._call("nvJitLinkDestroy", byref(handle))

    def _step(self, function: str, handle: c_void_p, *arguments: Any) -> None:
        if status := self._call(function, handle, *arguments):
            log = _text(self._bytes("nvJitLinkGetErrorLog", handle))
            raise LinkError("nvJitLink rejects its input", log=f"error {status} of {function}\n{log}".strip())


def _text(log: bytes) -> str:
    return log.rstrip(b"\0").decode("utf-8", "replace")


# a process opens each path once
open_nvrtc, open_nvjitlink = cache(Nvrtc), cache(NvJitLink)


# ---- requests


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
    return Compiled(made.payload, seconds, str(nvrtc))


def link_module(request: LinkRequest, linker: NvJitLink) -> Compiled:
    """Link LTO-IR to a cubin or PTX, in this process. A LinkError has the log.

    The link drops unused variables. The cuBLASDx headers leave thousands of constants in each LTO-IR,
    and their names alone fill more than nine tenths of the cubin from Warp's own link.
    """
    start = time.perf_counter()
    inputs = [(f"{request.name} {number}", data) for number, data in enumerate(request.inputs)]
    try:
        payload = linker.link(inputs, linker_flags(request.arch, request.output, request.max_registers))
    except LinkError as error:
        message = f"module {request.name} could not be linked for {request.arch}"
        raise LinkError(message, log=error.log) from error
    return Compiled(payload, time.perf_counter() - start, str(linker))


def linker_flags(arch: str, output: str, max_registers: int | None) -> list[str]:
    """The flags of nvJitLink for a link that drops unused variables; see :class:`LinkRequest`.

    The linker uses one thread per core. Any number of threads but one gives the same bytes; one alone gives code that
    uses more stack.
    """
    flags = [f"-arch={arch}", "-lto", "-optimize-unused-variables", "-split-compile=0"]
    if max_registers is not None:
        flags.append(f"-maxrregcount={max_registers}")
    return [*flags, "-ptx"] if output == "ptx" else flags


# ---- messages between a compiler process and its parent
#
# A message is an 8-byte little-endian length and a pickled value: a request with its limit of memory in bytes, or a
# reply. Both ends are this package, in one process tree. No other process can open the pipes between them, and data
# from disk or from another user is never unpickled.

_LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, message: object) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message. Raises an EOFError if the other end has closed the pipe."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError("the other end closed the pipe")
    (size,) = _LENGTH.unpack(header)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other end closed the pipe within a message")
    return pickle.loads(data)
