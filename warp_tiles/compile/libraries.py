"""NVRTC and nvJitLink, called through ctypes.

A library is opened by its path, so the file that is used is the one that was chosen. ``cuda.bindings`` would take any
release that the process has loaded already, such as that of torch.

Sources of the functions: https://docs.nvidia.com/cuda/nvrtc/ and https://docs.nvidia.com/cuda/nvjitlink/
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from warp_tiles.errors import BuildError, LinkError, ToolchainError
from warp_tiles.util.threads import suppressed, unless_signalled

_LTOIR = 10  # NVJITLINK_INPUT_LTOIR


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
        """Compile one translation unit.

        Args:
            output: The form of the payload: ``LTOIR``, ``CUBIN`` or ``PTX``.

        Raises:
            BuildError: The source or a flag is wrong. Its log is attached.
        """
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
