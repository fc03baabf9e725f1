"""Finds the compiler, the linker and the headers: in NVIDIA's wheels first, then in conda and in CUDA toolkits.

Only the compiler is required. The headers are those that cuBLASDx code includes.

Several releases can be installed side by side, such as that of torch. :func:`choose_libraries` alone decides which
compiler and linker are used, and :func:`_find_cuda_headers` which folders of headers. Compiler processes get the paths.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warp_tiles.errors import ToolchainError, suppressed
from warp_tiles.gemm.hardware import BLACKWELL_ARCH
from warp_tiles.store import absolute

if TYPE_CHECKING:
    from warp_tiles.compile.compiler import NvJitLink, Nvrtc

Version = tuple[int, int]
L = TypeVar("L", "Nvrtc", "NvJitLink")

MIN_NVRTC = (12, 8)  # the oldest that is tested; it is that of torch 2.9
_CCCL_LIMIT = (3, 2)  # CCCL of CUDA 13.2: the CUTLASS of mathdx 25.6 does not compile with it
_ROOTS = ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH")  # variables that name folders of toolkits
_DEFAULT_ROOT = Path("/usr/local/cuda")


@dataclass(frozen=True)
class Toolchain:
    """Paths and versions of the compiler, the linker and the headers.

    Attributes:
        nvrtc: libnvrtc, which reads C++ and writes LTO-IR.
        nvjitlink: libnvJitLink, or None if it is missing and Warp has to link.
        include_dirs: Folders of cuBLASDx's and CUDA's headers, in the order in which they are searched.
        mathdx_version: Version of nvidia-mathdx, for display; keys use the headers' content.
        missing_headers: Message and remedy if headers are missing; ``include_dirs`` is empty then.
        passed_over: Compilers that were found and are not used, with the reasons.
    """

    nvrtc: Path
    nvrtc_version: Version
    nvjitlink: Path | None
    nvjitlink_version: Version | None
    include_dirs: tuple[Path, ...]
    mathdx_version: str
    archs: tuple[int, ...] = ()
    missing_headers: tuple[str, str] | None = None
    passed_over: tuple[str, ...] = ()

    def require_headers(self) -> tuple[Path, ...]:
        """The header folders. Raises ToolchainError if some are missing; the remedy names the package."""
        if self.missing_headers is not None:
            raise ToolchainError(*self.missing_headers)
        return self.include_dirs

    @property
    def paths(self) -> tuple[Path, ...]:
        """The compiler, and the linker if there is one."""
        return (self.nvrtc,) if self.nvjitlink is None else (self.nvrtc, self.nvjitlink)

    @property
    def libraries(self) -> dict[str, Path]:
        """Files whose content decides the LTO-IR: NVRTC and the built-ins that it loads, by name."""
        folder = self.nvrtc.parent
        builtins = [name for name in os.listdir(folder) if name.startswith("libnvrtc-builtins.so")]
        return {name: Path(os.path.realpath(folder / name)) for name in (self.nvrtc.name, *builtins)}

    @property
    def can_link(self) -> bool:
        """True if the linker can read the LTO-IR of the compiler."""
        return self.nvjitlink_version is not None and self.nvjitlink_version >= self.nvrtc_version

    def reason_unsupported(self, arch: int) -> str:
        """Why the compiler should not compile for a compute capability; empty if it can."""
        version = dotted(self.nvrtc_version)
        if self.archs and arch not in self.archs:
            known = ", ".join(f"sm_{known}" for known in self.archs)
            return f"NVRTC {version} does not compile for sm_{arch}, only for {known}"
        if arch >= BLACKWELL_ARCH and (13, 1) <= self.nvrtc_version < (13, 4):
            return f"NVRTC {version} rejects valid kernels for sm_{arch}, a fault of 13.1 to 13.3 (NVIDIA/warp#1118)"
        return ""

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(json.dumps(vars(self), default=str))
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Toolchain:
        linker, linker_version = data["nvjitlink"], data["nvjitlink_version"]
        missing = data["missing_headers"]
        return cls(
            Path(data["nvrtc"]),
            (int(data["nvrtc_version"][0]), int(data["nvrtc_version"][1])),
            Path(linker) if linker else None,
            (int(linker_version[0]), int(linker_version[1])) if linker_version else None,
            tuple(Path(folder) for folder in data["include_dirs"]),
            str(data["mathdx_version"]),
            tuple(int(arch) for arch in data["archs"]),
            (str(missing[0]), str(missing[1])) if missing else None,
            tuple(map(str, data.get("passed_over", ()))),
        )


def dotted(version: Version | None) -> str:
    return "none" if version is None else f"{version[0]}.{version[1]}"


def require_arch(toolchain: Toolchain, arch: int) -> None:
    """Refuse an architecture that NVRTC does not compile for. Warp's own compiler may be newer and support it."""
    if reason := toolchain.reason_unsupported(arch):
        raise ToolchainError(reason, "install a newer NVRTC: pip install --upgrade nvidia-cuda-nvrtc nvidia-nvjitlink")


def unlinkable_reason(toolchain: Toolchain, warp_toolkit: Version | None, linker_reason: str) -> str:
    """Why the linker cannot read NVRTC's LTO-IR, if Warp links (``linker_reason``); empty if it can."""
    if not linker_reason or warp_toolkit is None or toolchain.nvrtc_version <= warp_toolkit:
        return ""
    return (
        f"the linker of Warp's CUDA {dotted(warp_toolkit)} cannot read the LTO-IR of NVRTC "
        f"{dotted(toolchain.nvrtc_version)}, and Warp links the module: {linker_reason}"
    )


def find_toolchain(warp_toolkit: Version | None = None) -> Toolchain:
    """Search for NVRTC, nvJitLink and the headers. Raises ToolchainError if NVRTC is missing or unfit."""
    from warp_tiles.compile.compiler import open_nvjitlink, open_nvrtc  # which a stored toolchain does not need

    compilers, broken = _opened(_NVRTC, open_nvrtc)
    if broken and not compilers:
        raise broken[0]
    if not compilers:
        raise ToolchainError(
            "NVRTC (libnvrtc) was found neither where Python imports packages from (sys.path) nor below CUDA_HOME or "
            "in conda",
            remedy=f"{_install(_NVRTC.package)}, or set CUDA_HOME to a CUDA toolkit",
        )
    linkers, broken_linkers = _opened(_NVJITLINK, open_nvjitlink)
    passed_over = [error.message for error in (*broken, *broken_linkers)]
    nvrtc, nvjitlink, unfit = choose_libraries(compilers, linkers, warp_toolkit)
    include_dirs: tuple[Path, ...] = ()
    mathdx_version, missing = "none", None
    try:
        include_dirs, mathdx_version = find_headers(nvrtc.version)
    except ToolchainError as error:
        missing = (error.message, error.remedy)
    return Toolchain(
        nvrtc.path,
        nvrtc.version,
        nvjitlink.path if nvjitlink else None,
        nvjitlink.version if nvjitlink else None,
        include_dirs,
        mathdx_version,
        nvrtc.archs(),
        missing,
        (*passed_over, *unfit),
    )


def choose_libraries(
    compilers: Sequence[Nvrtc], linkers: Sequence[NvJitLink], warp_toolkit: Version | None
) -> tuple[Nvrtc, NvJitLink | None, tuple[str, ...]]:
    """The compiler and the linker that are used together, and why earlier candidates were skipped.

    The first compiler is used that has a linker of its version or a newer one, because a linker reads no LTO-IR of a
    newer compiler. Without such a linker, Warp links what the first compiler writes. Raises a ToolchainError that names
    each compiler if none is fit.
    """
    fit: list[Nvrtc] = []
    unfit: list[str] = []  # without paths, because hashes of modules contain the error
    passed_over: list[str] = []
    for compiler in compilers:
        if reason := _reason_unfit(compiler, warp_toolkit):
            passed_over.append(f"NVRTC {dotted(compiler.version)} ({compiler.path}): {reason}")
            unfit.append(f"NVRTC {dotted(compiler.version)}: {reason}")
        else:
            fit.append(compiler)
    if not fit:
        wheels = (
            '"warp-tiles[cu12]"' if warp_toolkit and warp_toolkit < (13, 0) else "nvidia-cuda-nvrtc nvidia-nvjitlink"
        )
        raise ToolchainError(f"no NVRTC can be used: {'; '.join(unfit)}", f"pip install {wheels}")
    usable = [linker for linker in linkers if not _is_too_new(linker.version, warp_toolkit)]
    for number, compiler in enumerate(fit):
        linker = next((linker for linker in usable if linker.version >= compiler.version), None)
        if linker is not None:
            passed_over += [
                f"NVRTC {dotted(newer.version)} ({newer.path}): no nvJitLink here reads its LTO-IR"
                for newer in fit[:number]
            ]
            return compiler, linker, tuple(passed_over)
    passed_over += [
        f"nvJitLink {dotted(linker.version)} ({linker.path}): "
        + ("its CUDA is newer than Warp's" if linker not in usable else "it is older than the compiler")
        for linker in linkers
    ]
    return fit[0], None, tuple(passed_over)


def _is_too_new(version: Version, warp_toolkit: Version | None) -> bool:
    """True if drivers for which this Warp was made may not load the code of a CUDA release."""
    return warp_toolkit is not None and version[0] > warp_toolkit[0]


def _reason_unfit(compiler: Nvrtc, warp_toolkit: Version | None) -> str:
    if compiler.version < MIN_NVRTC:
        return f"it is older than {dotted(MIN_NVRTC)}"
    if _is_too_new(compiler.version, warp_toolkit):
        return f"drivers for the CUDA {dotted(warp_toolkit)} of this Warp may not load its code"
    return ""


# ---- libraries


@dataclass(frozen=True)
class _LibraryFile:
    """A library: its package, the beginning of its file name, and its folders below ``nvidia`` in the wheels."""

    package: str
    name: str
    folders: tuple[str, ...]

    def paths(self) -> Iterator[Path]:
        """The files of this library, in the order of preference: wheels, then toolkits; in a folder, CUDA 13 first."""
        folders = [package / folder for package in package_folders() for folder in self.folders]
        for root in _roots():
            folders += [root / "lib64", root / "lib", *sorted(root.glob("targets/*/lib"))]
        folders += map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
        for folder in dict.fromkeys(map(absolute, folders)):
            yield from (path for major in (13, 12) if (path := folder / f"{self.name}.so.{major}").is_file())


_NVRTC = _LibraryFile("nvidia-cuda-nvrtc", "libnvrtc", ("cu13/lib", "cuda_nvrtc/lib"))
_NVJITLINK = _LibraryFile("nvidia-nvjitlink", "libnvJitLink", ("cu13/lib", "nvjitlink/lib"))


def _roots() -> list[Path]:
    """The folders of the active conda environment and of CUDA toolkits."""
    named = [Path(home) for variable in _ROOTS if (home := os.environ.get(variable))]
    return [root for root in (*named, _DEFAULT_ROOT) if root.is_dir()]


def _opened(file: _LibraryFile, open_path: Callable[[str], L]) -> tuple[list[L], list[ToolchainError]]:
    """The libraries that the loader accepts, in the order of preference, and the errors of the others."""
    opened: dict[str, L] = {}
    broken: list[ToolchainError] = []
    for path in file.paths():
        try:
            opened.setdefault(os.path.realpath(path), open_path(os.fspath(path)))
        except ToolchainError as error:
            broken.append(error)
    return list(opened.values()), broken


def _install(wheels: str) -> str:
    return f"pip install {wheels} for this Python, or add the folder of `pip install --target` to PYTHONPATH"


# ---- headers

_CUDA_HEADERS = ("crt/host_config.h", "cuda_runtime_api.h", "cuda/std/version")  # of crt, cudart and CCCL
_HEADER_WHEELS = "nvidia-cuda-nvcc-cu12 nvidia-cuda-runtime-cu12 nvidia-cuda-cccl-cu12"
# folders below ``nvidia`` that belong together
_HEADER_FOLDERS = (
    ("cuda_nvcc/include", "cuda_runtime/include", "cuda_cccl/include"),
    ("cu13/include", "cu13/include/cccl"),
)


def find_headers(nvrtc_version: Version | None) -> tuple[tuple[Path, ...], str]:
    """Folders of the headers for a compiler, and mathdx's version. Raises ToolchainError if some are unfit."""
    mathdx, version = _find_mathdx()
    return (*mathdx, *_find_cuda_headers(nvrtc_version)), version


def _find_cuda_headers(nvrtc_version: Version | None) -> tuple[Path, ...]:
    """The first folders with all of CUDA's headers that fit. Those of one place are used together."""
    unfit: list[str] = []
    for folders in _header_folders():
        if not (reason := _reason_headers_unfit(folders, nvrtc_version)):
            return folders
        unfit.append(reason)  # without the folder, because hashes of modules contain the error
    where = "; ".join(dict.fromkeys(unfit)) or "none were found on sys.path, below CUDA_HOME or in a conda environment"
    raise ToolchainError(f"CUDA's headers for cuBLASDx: {where}", _install(_HEADER_WHEELS))


def _header_folders() -> Iterator[tuple[Path, ...]]:
    """Folders that may have CUDA's headers together, in the order of preference."""
    packages = package_folders()
    for group in _HEADER_FOLDERS:
        named = [next((p / name for p in packages if (p / name).is_dir()), None) for name in group]
        if folders := tuple(folder for folder in named if folder is not None):
            yield folders
    for root in _roots():
        for include in (root / "include", *sorted(root.glob("targets/*/include"))):
            if (include / "cuda_runtime_api.h").is_file():
                yield include, include / "cccl"  # where CUDA 13 keeps CCCL


def _reason_headers_unfit(folders: Sequence[Path], nvrtc_version: Version | None) -> str:
    paths = [next((folder / name for folder in folders if (folder / name).is_file()), None) for name in _CUDA_HEADERS]
    if lacking := [name for name, path in zip(_CUDA_HEADERS, paths) if path is None]:
        return f"{', '.join(lacking)} is missing"
    _, cudart, std = paths
    assert cudart is not None
    assert std is not None
    cuda = _defined(cudart, "CUDART_VERSION") // 1000
    if nvrtc_version is not None and cuda > nvrtc_version[0]:
        return f"NVRTC {dotted(nvrtc_version)} does not read headers of CUDA {cuda}"
    cccl = _defined(std.parent / "__cccl/version.h", "CCCL_VERSION")
    version = cccl // 1_000_000, cccl // 1000 % 1000
    if version >= _CCCL_LIMIT:
        return f"mathdx 25.6 does not compile with CCCL {dotted(version)}, only with CCCL before {dotted(_CCCL_LIMIT)}"
    return ""


def _defined(header: Path, name: str) -> int:
    """The number that a header defines as a macro; 0 if it does not."""
    with suppressed(OSError):
        if match := re.search(rf"^\s*#\s*define\s+{name}\s+(\d+)", header.read_text("utf-8", "replace"), re.M):
            return int(match[1])
    return 0


def _find_mathdx() -> tuple[tuple[Path, ...], str]:
    roots = [package / "mathdx" for package in package_folders()]
    for variable in ("MATHDX_HOME", "CONDA_PREFIX"):  # the conda package mathdx fills the environment's own folder
        if home := os.environ.get(variable):
            roots.append(Path(home))
    for root in roots:
        if (root / "include" / "cublasdx.hpp").is_file():
            cutlass = next((c for c in (root / "external/cutlass/include", root / "include") if c.is_dir()), None)
            folders = [root / "include", *([cutlass] if cutlass else [])]
            return tuple(dict.fromkeys(folders)), package_version("nvidia-mathdx")
    raise ToolchainError(
        "the cuBLASDx headers (cublasdx.hpp) were found neither where Python imports packages from (sys.path) "
        "nor below MATHDX_HOME",
        remedy=_install("nvidia-mathdx"),
    )


def package_version(name: str) -> str:
    """The version of an installed package; ``unknown`` for a checkout, and for a package that pip did not install."""
    import importlib.metadata  # takes long

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


# ---- wheels, wherever Python imports from


def search_path() -> list[str]:
    """The entries of ``sys.path`` that Python uses, without the empty one: its files may belong to anyone."""
    return [entry for entry in sys.path if isinstance(entry, str) and entry]


def import_path() -> str:
    """The value of ``PYTHONPATH`` with which another Python finds what this one does, and this package."""
    package = Path(__file__).resolve().parents[2]
    return os.pathsep.join(dict.fromkeys([*search_path(), str(package)]))


def package_folders() -> tuple[Path, ...]:
    """The folders of the package ``nvidia``: those in sys.path in its order, then those that other importers know."""
    folders = [os.fspath(absolute(Path(entry)) / "nvidia") for entry in search_path()]
    with suppressed(ImportError, ValueError, OSError):  # no specification, or no working folder
        spec = importlib.util.find_spec("nvidia")
        locations = (spec.submodule_search_locations or ()) if spec else ()
        folders += [folder for folder in locations if os.path.dirname(folder) != os.getcwd()]
    return tuple(Path(folder) for folder in dict.fromkeys(folders) if os.path.isdir(folder))
