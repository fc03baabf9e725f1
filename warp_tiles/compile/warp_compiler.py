"""Warp's own compiler in a compiler process: the native library of Warp, which never touches CUDA there.

The bytes are those that Warp writes, because the same function of the same library gets the same arguments.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from warp_tiles.compile.compiler import Compiled
from warp_tiles.compile.module import KNOWN_KEYWORDS, ModuleSource
from warp_tiles.errors import LinkError

_LTOIR, _FATBIN = 3, 4  # of nvJitLink.h
SWITCHES = ("verify_fp", "fast_math", "fuse_fp", "use_precompiled_headers")
# of wp_cuda_compile_program() in Warp 1.17 to 1.19
_ARGUMENTS: Any = [
    *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p),
    *(ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_bool, ctypes.c_int),
    *[ctypes.c_bool] * 7,
    *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p)),
    *(ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_int)),
]
_COMMENT = re.compile(r"^\s*//(?!.*\*/).*$", re.MULTILINE)
_CONTINUED = re.compile(r"\\[ \t\r\f\v]*\n")  # a line that goes on, also for compilers that ignore spaces there
_INCLUDE = re.compile(r'^#include "([\w.]+\.h)"$', re.MULTILINE)  # all of Warp's files that keys cover
_READS_FILES = re.compile(r"(?:#|%:|\?\?=)(?:\s|/\*.*?\*/)*(?:include|import|embed)|__has_(?:include|embed)", re.DOTALL)


@functools.cache
def warp_headers_folder() -> Path | None:
    """Folder of the headers of the installed Warp, which is not imported; None without Warp."""
    spec = importlib.util.find_spec("warp")
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(locations[0]) / "native" if locations else None


def warp_library() -> Path:
    """The native library of the installed Warp, which contains its compiler.

    Raises:
        OSError: There is no Warp.
    """
    headers = warp_headers_folder()
    if headers is None:
        raise FileNotFoundError("Warp is not installed")
    return headers.parent / "bin" / "warp.so"


@dataclass(frozen=True)
class WarpCompileRequest:
    """One module to compile with Warp's own compiler.

    Attributes:
        native_library: Path of Warp's native library.
        name: File name of the source, which symbols of the binary contain.
        output: ``cubin`` or ``ptx``.
        switches: ``verify_fp``, ``fast_math``, ``fuse_fp`` and ``use_precompiled_headers``.
        ltoirs: LTO-IR to link, e.g. of FFTs.
        fatbins: Fat binaries to link.
    """

    native_library: str
    name: str
    source: bytes
    arch: int
    suffix: str
    output: str
    native_dir: str
    optimization_level: int
    switches: tuple[bool, ...]
    ltoirs: tuple[bytes, ...] = ()
    fatbins: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, module: ModuleSource, library: Path, source: bytes, ltoirs: Sequence[bytes]) -> WarpCompileRequest:
        """The request of a module.

        Args:
            module: The module, with the arguments of Warp's ``build_cuda()``.
            ltoirs: LTO-IR to link.
        """
        given = module.keywords
        return cls(
            str(library),
            module.name,
            source,
            module.arch,
            given.get("arch_suffix", ""),
            module.output,
            module.native_dir,
            int(given.get("optimization_level", 3)),
            tuple(bool(given.get(name, name not in SWITCHES[:2])) for name in SWITCHES),
            tuple(ltoirs),
            tuple(given.get("fatbins") or ()),
        )

    @property
    def options(self) -> list[str]:
        """The options as text, for a key."""
        return [f"optimization_level={self.optimization_level}", *map("{}={}".format, SWITCHES, self.switches)]


def names_in_code(name: str, native_dir: str, *, verify_fp: bool) -> list[str]:
    """The names of files that the binary of a release build contains, for a key."""
    return [name, native_dir] if verify_fp else [name]


def reason_left_to_warp(options: Mapping[str, Any]) -> str:
    """Why Warp compiles a module in its own process and nothing is kept; empty if a worker compiles it.

    Args:
        options: The resolved options of the module.
    """
    if options.get("mode") == "debug":
        return "debug builds name files of this machine"
    for name in ("lineinfo", "compile_time_trace", "llvm_cuda", "strip_hash"):
        if options.get(name):
            return f"the option {name} is on"
    return "they have include folders of their own" if options.get("extra_cuda_include_dirs") else ""


def reason_without_key(module: ModuleSource, source: str) -> str:
    """Why no key covers a generated module; empty if a key does."""
    if unknown := sorted(set(module.keywords) - KNOWN_KEYWORDS):
        return f"this Warp has unknown build options: {', '.join(unknown)}"

    def is_covered(found: re.Match[str]) -> str:
        return "" if Path(module.native_dir, found[1]).is_file() else found[0]

    code = _COMMENT.sub("", _CONTINUED.sub("", source))
    if _READS_FILES.search(_INCLUDE.sub(is_covered, code)):
        return "their code may include files that no key covers"
    return ""


def compile_with_warp(request: WarpCompileRequest) -> Compiled:
    """Compile a module as Warp does, in this process, which must not use CUDA.

    Raises:
        LinkError: Warp's compiler rejected it. Its log is attached.
        MemoryError: There is no memory for the compiler.
        OSError: The library cannot be loaded, or there is no space for the output.
    """
    started = time.perf_counter()
    function = ctypes.CDLL(request.native_library).wp_cuda_compile_program
    function.argtypes, function.restype = _ARGUMENTS, ctypes.c_size_t
    links = [*request.ltoirs, *request.fatbins]
    kinds = [_LTOIR] * len(request.ltoirs) + [_FATBIN] * len(request.fatbins)
    verify_fp, fast_math, fuse_fp, precompiles = request.switches
    with tempfile.TemporaryDirectory(prefix="warp_tiles_") as folder, _log_of_process() as log:
        output = Path(folder, f"module.{request.output}")
        status = function(
            request.source, request.name.encode(), request.arch, request.suffix.encode(), request.native_dir.encode(),
            0, None, False, request.optimization_level, False, verify_fp, fast_math, fuse_fp, False, False, precompiles,
            os.fsencode(output), os.fsencode(folder), len(links), (ctypes.c_char_p * len(links))(*links),
            (ctypes.c_size_t * len(links))(*map(len, links)), (ctypes.c_int * len(links))(*kinds),
        )  # fmt: skip
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
        if status and "unable to obtain mapped memory" in text:
            raise MemoryError("unable to obtain mapped memory")
        if status or not output.exists():
            raise LinkError(f"Warp's compiler rejects {request.name}: error {status}", log=text)
        return Compiled(output.read_bytes(), time.perf_counter() - started, text, "Warp")


@contextmanager
def _log_of_process() -> Iterator[IO[bytes]]:
    """Collect what the native library prints."""
    with tempfile.TemporaryFile() as log:
        kept = {stream: os.dup(stream) for stream in (1, 2)}
        try:
            for stream in kept:
                os.dup2(log.fileno(), stream)
            yield log
        finally:
            for stream, copy in kept.items():
                os.dup2(copy, stream)
                os.close(copy)
