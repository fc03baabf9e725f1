"""Whole Warp modules: flags for compiling and linking them here, and Warp's own compiler in a compiler process.

Warp's own link has no option that drops unused variables. With the constants of the cuBLASDx
headers it takes seconds and writes cubins of megabytes. So warp_tiles compiles a module's source to
LTO-IR in parallel to the GEMM builds and links it, if every input allows it. docs/templates.md has
the measurements.

A module without functions of warp_tiles is compiled by the native library of Warp, which never touches CUDA in a
compiler process. The bytes are those that Warp writes, because the same function of the same library gets the same
arguments.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import importlib.util
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from warp_tiles.compile.compiler import Compiled
from warp_tiles.compile.find import Toolchain, Version, dotted
from warp_tiles.errors import LinkError
from warp_tiles.gemm.hardware import TEXTURE_WORKAROUND_ARCH

# every keyword of build_cuda() in Warp 1.17 to 1.19; an unknown keyword could change the code
KNOWN_KEYWORDS = frozenset({
    "pch_dir", "config", "optimization_level", "verify_fp", "fast_math", "fuse_fp", "lineinfo", "compile_time_trace",
    "ltoirs", "fatbins", "arch_suffix", "llvm_cuda", "use_precompiled_headers", "extra_include_dirs",
})  # fmt: skip
_OFAST = {0: "max", 1: "mid", 2: "min"}
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
# sources can come from a start list that others wrote, so no pattern may take longer than its input is long
_COMMENT = re.compile(r"^[ \t\r\f\v]*//(?!.*\*/).*$", re.MULTILINE)
_CONTINUED = re.compile(r"\\[ \t\r\f\v]*\n")  # a line that goes on, also for compilers that ignore spaces there
_INCLUDE = re.compile(r'^#include "([\w.]+\.h)"$', re.MULTILINE)  # all of Warp's files that keys cover
_DIRECTIVE = re.compile(r"#|%:|\?\?=")
_SPACE, _CLOSE = re.compile(r"\s*"), re.compile(r"\*/")
_READING = ("include", "import", "embed")  # directives


@dataclass(frozen=True)
class ModuleSource:
    """A module as Warp passes it to its compiler.

    Attributes:
        output: ``cubin`` or ``ptx``.
        suffix: ``a`` if its code needs instructions of ``sm_90a`` alone, else empty.
    """

    name: str
    arch: int
    output: str
    native_dir: str
    keywords: Mapping[str, Any]
    suffix: str = ""

    @property
    def optimization_level(self) -> int:
        """From 0 to 3, which is Warp's default."""
        return int(self.keywords.get("optimization_level", 3))

    @property
    def include_dirs(self) -> tuple[str, ...]:
        """The folders of Warp's headers and those of the user."""
        return (self.native_dir, *map(str, self.keywords.get("extra_include_dirs", ())))

    @property
    def target(self) -> str:
        """``sm_90`` for a cubin, ``compute_90`` for PTX, with Warp's suffix."""
        kind = "compute" if self.output == "ptx" else "sm"
        return f"{kind}_{self.arch}{self.suffix or self.keywords.get('arch_suffix', '')}"


@dataclass(frozen=True)
class BuildCall:
    """A call of Warp's ``build_cuda()``, in whose place a module is built.

    Attributes:
        source: The generated source. It is written again if a product fell back.
        output: The ``.cubin`` or ``.ptx`` to write.
        inputs: LTO-IR that Warp built itself, for solvers and FFTs.
        build: Runs Warp's own build with the given LTO-IR.
    """

    source: Path
    output: Path
    module: ModuleSource
    inputs: Sequence[bytes]
    build: Callable[[list[bytes]], None]


def module_flags(module: ModuleSource, nvrtc_version: Version) -> tuple[str, ...]:
    """Warp's flags of NVRTC for a module.

    Source: ``wp_cuda_compile_program`` and ``append_common_nvrtc_compile_options`` of Warp's
    ``native/warp.cu``. Precompiled headers are omitted, because they change the time and not the code.
    """
    keywords = module.keywords
    level = module.optimization_level
    flags = [
        f"-arch={module.target}", "--std=c++17", f"--fmad={str(bool(keywords.get('fuse_fp', True))).lower()}",
        "--device-as-default-execution-space", "--extra-device-vectorization", "--restrict",
        "--diag-suppress=177", "--diag-suppress=550", "--define-macro=NDEBUG", "--define-macro=WP_ENABLE_MATHDX=1",
    ]  # fmt: skip
    # NVRTC 12.8 and 12.9 miscompile texture sampling for these targets; this macro makes Warp's headers avoid it
    affected = (
        module.output == "cubin" and module.arch >= TEXTURE_WORKAROUND_ARCH and (12, 8) <= nvrtc_version < (13, 0)
    )
    if affected and (level > 0 or nvrtc_version < (12, 9)):
        flags.append("--define-macro=WP_WORKAROUND_CUDA_TEXTURE_CUBIN")
    if nvrtc_version >= (12, 9):
        is_broken = level == 0 and nvrtc_version >= (13, 1)  # as Warp does: they corrupt later builds at "max"
        flags.append(f"--Ofast-compile={'mid' if is_broken else _OFAST.get(level, '0')}")
    flags.append(f"--{'define' if keywords.get('verify_fp') else 'undefine'}-macro=WP_VERIFY_FP")
    if keywords.get("lineinfo"):
        flags.append("--generate-line-info")
    if keywords.get("fast_math"):
        flags.append("--use_fast_math")
    return tuple(flags)


def warp_link_reason(keywords: Mapping[str, Any], *, toolchain: Toolchain | None, foreign_inputs: Sequence[str]) -> str:
    """The reason why Warp has to link a module; empty if warp_tiles can. Foreign inputs are of another compiler."""
    if toolchain is None:
        return "there is no toolchain except Warp's: see `warp-tiles doctor`"
    if not toolchain.can_link:
        linker, compiler = dotted(toolchain.nvjitlink_version), dotted(toolchain.nvrtc_version)
        return f"nvJitLink {linker} cannot read the LTO-IR of NVRTC {compiler}: see `warp-tiles doctor`"
    if foreign_inputs:
        inputs = f"it also links {', '.join(foreign_inputs)}, built by Warp's newer compiler"
        return f"{inputs}: put kernels with such calls into another module"
    if unknown := sorted(set(keywords) - KNOWN_KEYWORDS):
        return f"this Warp has unknown build options: {', '.join(unknown)}"
    if keywords.get("config") == "debug":
        return "it is a debug build: set the module option mode to 'release'"
    if keywords.get("compile_time_trace"):
        return "a compile-time trace of Warp's compiler was requested: set wp.config.compile_time_trace to False"
    if keywords.get("llvm_cuda"):
        return "LLVM compiles it: set wp.config.llvm_cuda to False"
    return ""


# ---- Warp's own compiler


@functools.cache
def warp_headers_folder() -> Path | None:
    """Folder of the headers of the installed Warp, which is not imported; None without Warp."""
    spec = importlib.util.find_spec("warp")
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(locations[0]) / "native" if locations else None


def warp_library() -> Path:
    """The native library of the installed Warp, which contains its compiler. Raises an OSError without Warp."""
    headers = warp_headers_folder()
    if headers is None:
        raise FileNotFoundError("Warp is not installed")
    return headers.parent / "bin" / "warp.so"


@dataclass(frozen=True)
class WarpCompileRequest:
    """One module to compile with Warp's own compiler.

    Attributes:
        name: File name of the source, which symbols of the binary contain.
        output: ``cubin`` or ``ptx``.
        switches: ``verify_fp``, ``fast_math``, ``fuse_fp`` and ``use_precompiled_headers``.
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
    def of(cls, module: ModuleSource, source: bytes, ltoirs: Sequence[bytes] = ()) -> WarpCompileRequest:
        given = module.keywords
        return cls(
            str(warp_library()),
            module.name,
            source,
            module.arch,
            given.get("arch_suffix", ""),
            module.output,
            module.native_dir,
            module.optimization_level,
            tuple(bool(given.get(name, name not in SWITCHES[:2])) for name in SWITCHES),
            tuple(ltoirs),
            tuple(given.get("fatbins") or ()),
        )

    @property
    def options(self) -> list[str]:
        return [f"optimization_level={self.optimization_level}", *map("{}={}".format, SWITCHES, self.switches)]


def names_in_code(name: str, native_dir: str, *, verify_fp: bool) -> list[str]:
    """The names of files that the binary of a release build contains, for a key."""
    return [name, native_dir] if verify_fp else [name]


def reason_left_to_warp(options: Mapping[str, Any]) -> str:
    """Why Warp compiles a module with these options in its own process, and keeps nothing; empty if a worker does."""
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

    def is_covered(match: re.Match[str]) -> str:
        return "" if Path(module.native_dir, match[1]).is_file() else match[0]

    code = _COMMENT.sub("", _CONTINUED.sub("", source))
    if _reads_files(_INCLUDE.sub(is_covered, code)):
        return "their code may include files that no key covers"
    return ""


def _reads_files(code: str) -> bool:
    """True if code may include files, or ask for them, in a time that grows as its length."""
    if "__has_include" in code or "__has_embed" in code:
        return True
    closed = [match.end() for match in _CLOSE.finditer(code)]  # comments
    known: dict[int, int] = {}  # where the spaces and comments end that begin at a position

    def end_of_spaces(start: int) -> int:
        passed = []
        while start not in known:
            passed.append(start)
            start = _SPACE.match(code, start).end()  # type: ignore[union-attr]  # it matches everywhere
            if not code.startswith("/*", start):
                break
            close = bisect.bisect_left(closed, start + 4)
            start = closed[close] if close < len(closed) else len(code)
        start = known.get(start, start)
        known.update(dict.fromkeys(passed, start))
        return start

    return any(code.startswith(_READING, end_of_spaces(match.end())) for match in _DIRECTIVE.finditer(code))


def compile_with_warp(request: WarpCompileRequest) -> Compiled:
    """Compile a module as Warp does, in this process, which must not use CUDA. A LinkError has the log.

    Raises a MemoryError if there is no memory for the compiler, and an OSError without its library, or without space.
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
        return Compiled(output.read_bytes(), time.perf_counter() - started, "Warp")


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
