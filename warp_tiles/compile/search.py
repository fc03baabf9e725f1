"""Finds the compiler, the linker and the headers: in NVIDIA's wheels first, then below CUDA_HOME.

Only the compiler is required. The headers are those that cuBLASDx code includes.

cuda-pathfinder searches only the folders of ``site``, so it misses wheels of ``pip install --target`` and those on
PYTHONPATH. ``cuda.bindings`` asks it for the libraries, and it returns those that are already loaded, so a library that
is loaded here is found. It searches the other places.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warp_tiles.errors import ToolchainError
from warp_tiles.store.paths import absolute
from warp_tiles.util.threads import raise_if_signalled, suppressed

Version = tuple[int, int]


@dataclass(frozen=True)
class Toolchain:
    """Paths and versions of the compiler, the linker and the headers.

    Attributes:
        nvrtc: libnvrtc, which reads C++ and writes LTO-IR.
        nvrtc_version: (major, minor).
        nvjitlink: libnvJitLink, or None if it is missing and Warp has to link.
        nvjitlink_version: (major, minor), or None.
        include_dirs: Folders of cuBLASDx's and CUDA's headers, in the order in which they are searched.
        mathdx_version: Version of nvidia-mathdx, for display; keys use the headers' content.
        archs: Compute capabilities that NVRTC compiles for.
        missing_headers: Message and remedy if headers are missing; ``include_dirs`` is empty then.
    """

    nvrtc: Path
    nvrtc_version: Version
    nvjitlink: Path | None
    nvjitlink_version: Version | None
    include_dirs: tuple[Path, ...]
    mathdx_version: str
    archs: tuple[int, ...] = ()
    missing_headers: tuple[str, str] | None = None

    def require_headers(self) -> tuple[Path, ...]:
        """The header folders.

        Raises:
            ToolchainError: Some are missing; the remedy names the package.
        """
        if self.missing_headers is not None:
            raise ToolchainError(*self.missing_headers)
        return self.include_dirs

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

    def to_json(self) -> dict[str, Any]:
        """The toolchain as ``doctor`` and the reports print it."""
        found: dict[str, Any] = json.loads(json.dumps(vars(self), default=str))
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Toolchain:
        """Rebuild a toolchain from :meth:`to_json`."""
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
        )


def dotted(version: Version | None) -> str:
    """A version for display, e.g. ``12.9``."""
    return "none" if version is None else f"{version[0]}.{version[1]}"


def require_arch(toolchain: Toolchain, arch: int) -> None:
    """Refuse an architecture that NVRTC does not compile for.

    Raises:
        ToolchainError: NVRTC does not support it. Warp's own compiler may be newer and support it.
    """
    if toolchain.archs and arch not in toolchain.archs:
        known = ", ".join(f"sm_{known}" for known in toolchain.archs)
        raise ToolchainError(
            f"NVRTC {dotted(toolchain.nvrtc_version)} does not compile for sm_{arch}, only for {known}",
            "install a newer NVRTC, up to the CUDA version of Warp",
        )


def require_linkable(toolchain: Toolchain, warp_toolkit: Version | None) -> None:
    """Refuse an NVRTC whose LTO-IR is too new for Warp's linker.

    Raises:
        ToolchainError: NVRTC is newer than the CUDA toolkit that Warp was built with.
    """
    if warp_toolkit is not None and toolchain.nvrtc_version > warp_toolkit:
        raise ToolchainError(
            f"NVRTC {dotted(toolchain.nvrtc_version)} is newer than the linker of Warp's CUDA {dotted(warp_toolkit)}, "
            "which cannot read its LTO-IR",
            remedy=f"install an NVRTC of CUDA {dotted(warp_toolkit)} or older, or a newer warp-lang",
        )


def find_toolchain() -> Toolchain:
    """Search for NVRTC, nvJitLink and the headers.

    Raises:
        ToolchainError: NVRTC is missing; the remedy names the package.
    """
    nvrtc, nvrtc_version, archs = _find_nvrtc()
    nvjitlink, nvjitlink_version = _find_nvjitlink()
    include_dirs: tuple[Path, ...] = ()
    mathdx_version, missing = "none", None
    try:
        include_dirs, mathdx_version = find_headers()
    except ToolchainError as error:
        missing = (error.message, error.remedy)
    return Toolchain(nvrtc, nvrtc_version, nvjitlink, nvjitlink_version, include_dirs, mathdx_version, archs, missing)


def find_headers() -> tuple[tuple[Path, ...], str]:
    """Folders of cuBLASDx's and CUDA's headers, and the version of nvidia-mathdx.

    Raises:
        ToolchainError: Some are missing; the remedy names the package.
    """
    mathdx, version = _find_mathdx()
    return (*mathdx, *_find_cuda_headers()), version


def _missing(what: str, wheel: str) -> ToolchainError:
    return ToolchainError(
        f"{what} was found neither where Python imports packages from (sys.path) nor below CUDA_HOME",
        remedy=f"{_install(wheel)}, or set CUDA_HOME to a CUDA toolkit",
    )


def _install(wheel: str) -> str:
    return f"pip install {wheel} for this Python, or add the folder of `pip install --target` to PYTHONPATH"


def _unusable(error: ImportError) -> ToolchainError:
    return ToolchainError(f"cuda-core is not usable here: {error}", remedy='pip install "cuda-core[cu12]"')


def _find_nvrtc() -> tuple[Path, Version, tuple[int, ...]]:
    try:
        from cuda.bindings import nvrtc
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError as error:
        raise _unusable(error) from error
    load_library("nvrtc")
    try:
        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except (DynamicLibNotFoundError, RuntimeError) as error:
        raise_if_signalled(error)
        raise _missing("NVRTC (libnvrtc)", LIBRARIES["nvrtc"].name) from error
    _, major, minor = nvrtc.nvrtcVersion()
    _, count = nvrtc.nvrtcGetNumSupportedArchs()
    _, archs = nvrtc.nvrtcGetSupportedArchs()
    return Path(str(path)), (int(major), int(minor)), tuple(int(arch) for arch in archs[:count])


def _find_nvjitlink() -> tuple[Path | None, Version | None]:
    from cuda.bindings import nvjitlink
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        load_library("nvJitLink")
        path = load_nvidia_dynamic_lib("nvJitLink").abs_path
        major, minor = nvjitlink.version()
    except (DynamicLibNotFoundError, RuntimeError) as error:
        raise_if_signalled(error)
        return None, None
    return Path(str(path)), (int(major), int(minor))


def _find_cuda_headers() -> tuple[Path, ...]:
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError as error:
        raise _unusable(error) from error

    folders: dict[Path, None] = {}
    for name, headers in HEADERS.items():
        in_wheel = folder_of(headers)
        folder = in_wheel[0] if in_wheel is not None else find_nvidia_header_directory(name)
        if folder is None:
            raise _missing(f"the {name} headers", headers.name)
        folders[Path(folder)] = None
        if (Path(folder) / "cccl").is_dir():  # CUDA 13 toolkits keep CCCL one level down
            folders[Path(folder) / "cccl"] = None
    return tuple(folders)


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
    """The entries of ``sys.path`` that Python uses, without the empty one.

    Python ignores entries of other types than text. The empty entry stands for the working folder, whose files may
    belong to anyone.
    """
    return [entry for entry in sys.path if isinstance(entry, str) and entry]


def import_path() -> str:
    """The value of ``PYTHONPATH`` with which another Python finds what this one does, and this package."""
    package = Path(__file__).resolve().parents[2]
    return os.pathsep.join(dict.fromkeys([*search_path(), str(package)]))


@dataclass(frozen=True)
class _Wheel:
    """A wheel, the names that one of its files may have, and the folders of that file below ``nvidia``.

    The folders have the order of pathfinder.
    """

    name: str
    files: tuple[str, ...]
    folders: tuple[str, ...]


LIBRARIES = {
    "nvrtc": _Wheel("nvidia-cuda-nvrtc-cu12", ("libnvrtc.so.13", "libnvrtc.so.12"), ("cu13/lib", "cuda_nvrtc/lib")),
    "nvJitLink": _Wheel(
        "nvidia-nvjitlink-cu12", ("libnvJitLink.so.13", "libnvJitLink.so.12"), ("cu13/lib", "nvjitlink/lib")
    ),
}
HEADERS = {
    "nvcc": _Wheel("nvidia-cuda-nvcc-cu12", ("crt/host_config.h",), ("cu13/include", "cuda_nvcc/include")),
    "cudart": _Wheel("nvidia-cuda-runtime-cu12", ("cuda_runtime.h",), ("cu13/include", "cuda_runtime/include")),
    "cccl": _Wheel("nvidia-cuda-cccl-cu12", ("cuda/std/version",), ("cu13/include/cccl", "cuda_cccl/include")),
}


def package_folders() -> tuple[Path, ...]:
    """The folders of the package ``nvidia``: those in sys.path in its order, then those that other importers know.

    An empty entry, which stands for the current folder, is left out, because those files may belong to anyone.
    """
    found = [os.fspath(absolute(Path(entry)) / "nvidia") for entry in search_path()]
    with suppressed(ImportError, ValueError, OSError):  # no specification, or no working folder
        spec = importlib.util.find_spec("nvidia")
        locations = (spec.submodule_search_locations or ()) if spec else ()
        found += [folder for folder in locations if os.path.dirname(folder) != os.getcwd()]
    return tuple(Path(folder) for folder in dict.fromkeys(found) if os.path.isdir(folder))


def folder_of(wheel: _Wheel) -> tuple[Path, str] | None:
    """The first folder with a file of a wheel, and the name of the file; None if no installed wheel has it."""
    folders = (package / folder for package in package_folders() for folder in wheel.folders)
    return next(((f, name) for f in folders for name in wheel.files if (f / name).is_file()), None)


def load_library(name: str) -> None:
    """Load a library from a wheel for ``cuda.bindings``. Without a wheel, and if one is loaded already, do nothing.

    Raises:
        ToolchainError: The loader refuses the file.
    """
    library = LIBRARIES[name]
    if sys.platform != "linux" or any(map(_is_loaded, library.files)):
        return
    if (found := folder_of(library)) is None:
        return
    path = found[0] / found[1]
    try:
        ctypes.CDLL(str(path), os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as error:
        raise_if_signalled(error)
        raise ToolchainError(
            f"{path} cannot be loaded: {error}",
            remedy=f"install {library.name} for this platform again, in a folder that is not mounted with noexec",
        ) from error
    for builtins in path.parent.glob("libnvrtc-builtins.so*") if name == "nvrtc" else ():
        with suppressed(OSError):  # NVRTC 13.0 does not look for them beside itself
            ctypes.CDLL(str(builtins), os.RTLD_NOW | os.RTLD_GLOBAL)


def _is_loaded(soname: str) -> bool:
    try:
        ctypes.CDLL(soname, os.RTLD_NOLOAD)
    except OSError as error:
        raise_if_signalled(error)
        return False
    return True
