"""Libraries and headers in NVIDIA's wheels, wherever Python imports from.

cuda-pathfinder searches only the folders of ``site``, so it misses wheels of ``pip install --target`` and those on
PYTHONPATH. ``cuda.bindings`` asks it for the libraries, and it returns those that are already loaded, so a library that
is loaded here is found.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from warp_tiles.errors import ToolchainError
from warp_tiles.store.paths import absolute


def search_path() -> list[str]:
    """The entries of ``sys.path`` that Python uses, without the empty one.

    Python ignores entries of other types than text. The empty entry stands for the working folder, whose files may
    belong to anyone.
    """
    return [entry for entry in sys.path if isinstance(entry, str) and entry]


@dataclass(frozen=True)
class _Library:
    """A library: its wheel, its names for the loader, and its folders below ``nvidia``, in the order of pathfinder."""

    wheel: str
    sonames: tuple[str, ...]
    folders: tuple[str, ...]


@dataclass(frozen=True)
class _Headers:
    """Headers: their wheel, one of their files, and their folders below ``nvidia``, in the order of pathfinder."""

    wheel: str
    file: str
    folders: tuple[str, ...]


LIBRARIES = {
    "nvrtc": _Library("nvidia-cuda-nvrtc-cu12", ("libnvrtc.so.13", "libnvrtc.so.12"), ("cu13/lib", "cuda_nvrtc/lib")),
    "nvJitLink": _Library(
        "nvidia-nvjitlink-cu12", ("libnvJitLink.so.13", "libnvJitLink.so.12"), ("cu13/lib", "nvjitlink/lib")
    ),
}
HEADERS = {
    "nvcc": _Headers("nvidia-cuda-nvcc-cu12", "crt/host_config.h", ("cu13/include", "cuda_nvcc/include")),
    "cudart": _Headers("nvidia-cuda-runtime-cu12", "cuda_runtime.h", ("cu13/include", "cuda_runtime/include")),
    "cccl": _Headers("nvidia-cuda-cccl-cu12", "cuda/std/version", ("cu13/include/cccl", "cuda_cccl/include")),
}


def package_folders() -> tuple[Path, ...]:
    """The folders of the package ``nvidia``: those in sys.path in its order, then those that other importers know.

    An empty entry, which stands for the current folder, is left out, because those files may belong to anyone.
    """
    found = [os.fspath(absolute(Path(entry)) / "nvidia") for entry in search_path()]
    with contextlib.suppress(ImportError, ValueError, OSError):  # no specification, or no working folder
        spec = importlib.util.find_spec("nvidia")
        locations = (spec.submodule_search_locations or ()) if spec else ()
        found += [folder for folder in locations if os.path.dirname(folder) != os.getcwd()]
    return tuple(Path(folder) for folder in dict.fromkeys(found) if os.path.isdir(folder))


def header_folder(name: str) -> Path | None:
    """The folder of some headers in a wheel, or None if no wheel has them."""
    headers = HEADERS[name]
    candidates = (package / folder for package in package_folders() for folder in headers.folders)
    return next((folder for folder in candidates if (folder / headers.file).is_file()), None)


def load_library(name: str) -> None:
    """Load a library from a wheel for ``cuda.bindings``. Without a wheel, and if one is loaded already, do nothing.

    Raises:
        ToolchainError: The loader refuses the file.
    """
    library = LIBRARIES[name]
    if sys.platform != "linux" or any(map(_is_loaded, library.sonames)):
        return
    folders = (package / folder for package in package_folders() for folder in library.folders)
    paths = (folder / soname for folder in folders for soname in library.sonames)
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return
    try:
        ctypes.CDLL(str(path), os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as error:
        raise ToolchainError(
            f"{path} cannot be loaded: {error}",
            remedy=f"install {library.wheel} for this platform again, in a folder that is not mounted with noexec",
        ) from error
    for builtins in path.parent.glob("libnvrtc-builtins.so*") if name == "nvrtc" else ():
        with contextlib.suppress(OSError):  # NVRTC 13.0 does not look for them beside itself
            ctypes.CDLL(str(builtins), os.RTLD_NOW | os.RTLD_GLOBAL)


def _is_loaded(soname: str) -> bool:
    try:
        ctypes.CDLL(soname, os.RTLD_NOLOAD)
    except OSError:
        return False
    return True
