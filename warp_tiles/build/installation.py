"""What of this machine's installation affects machine code, and requests that hold on another machine.

A request names its include folders by their path. :meth:`Installation.portable` replaces them by names, which
:meth:`Installation.localized` turns into the folders of another machine. The facts that such a request needs are
digests, so two installations with equal facts give equal code.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from warp_tiles.compile.compiler import CompileRequest, LinkRequest
from warp_tiles.compile.search import dotted
from warp_tiles.compile.sources import code_modules, kernels_folder
from warp_tiles.compile.toolchain import ToolchainStore
from warp_tiles.errors import ToolchainError
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.util.signals import raise_if_signalled
from warp_tiles.util.version import __version__

CODE, COMPILER, LINKER = "warp_tiles", "NVRTC", "nvJitLink"
DEVICE_SOURCES, CUDA_HEADERS, WARP_HEADERS = "device sources", "CUDA headers", "Warp headers"
ALL = (CODE, COMPILER, LINKER, DEVICE_SOURCES, CUDA_HEADERS, WARP_HEADERS)

_KERNELS, _CUDA, _WARP = "kernels:", "cuda:", "warp:"  # a path begins with a slash or a drive
_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class Fact:
    """One part of an installation that affects machine code. Two facts are equal if their digests are.

    Attributes:
        digest: SHA-256 over the files, hex; empty if the part is missing.
        version: Its version or the reason why it is missing, for messages.
    """

    digest: str
    version: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.version} (SHA-256 {self.digest[:_SHOWN_DIGITS]})" if self.digest else self.version


Facts = tuple[tuple[str, Fact], ...]


@functools.cache
def warp_headers_folder() -> Path | None:
    """Folder of the headers of the installed Warp, which is not imported; None without Warp."""
    spec = importlib.util.find_spec("warp")
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(locations[0]) / "native" if locations else None


class Installation:
    """The parts of this machine's installation that affect machine code."""

    def __init__(self, store: ToolchainStore) -> None:
        self._store = store

    def facts(self, names: Iterable[str]) -> Facts:
        """The facts with these names, in this order. They are taken anew, because files can be replaced."""
        return tuple((name, self._fact(name)) for name in names)

    @functools.cached_property
    def _code(self) -> Fact:
        """The package's own modules. Those that are loaded do not change."""
        return Fact(self._store.digests.digest_many(code_modules()), __version__)

    def libraries(self) -> list[tuple[int, ...]]:
        """The state of the files of compiler and linker, which changes when they are replaced.

        Raises:
            ToolchainError: There is no compiler.
        """
        toolchain = self._store.toolchain()
        files = [toolchain.nvrtc, *([toolchain.nvjitlink] if toolchain.nvjitlink else [])]
        found = [os.stat(path) for path in files if path.is_file()]
        return [(status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns) for status in found]

    def _fact(self, name: str) -> Fact:
        try:
            if name == CODE:
                return self._code
            toolchain = self._store.toolchain()
            if name == COMPILER:
                return Fact(self._store.compiler_digest(), dotted(toolchain.nvrtc_version))
            if name == LINKER:
                version = dotted(toolchain.nvjitlink_version) if toolchain.nvjitlink else "missing"
                return Fact(self._store.linker_digest(), version)
            if name == DEVICE_SOURCES:
                return Fact(self._store.digests.digest_folder(kernels_folder(), "*.cuh"), __version__)
            if name == CUDA_HEADERS:
                source = CublasdxProvider(self._store).source()
                return Fact(self._store.source_digest(source), f"mathdx {toolchain.mathdx_version}")
            folder = warp_headers_folder()
            if name == WARP_HEADERS and folder is not None:
                return Fact(self._store.digests.digest_folder(folder, "*.h"), _warp_version())
        except (OSError, ToolchainError) as error:
            raise_if_signalled(error)
            return Fact("", f"missing ({getattr(error, 'message', error)})")
        return Fact("", "missing" if name in ALL else "unknown")

    # ---- include folders

    def portable(
        self, request: CompileRequest | LinkRequest
    ) -> tuple[CompileRequest | LinkRequest, tuple[str, ...]] | None:
        """A request without paths of this machine, and the names of the facts that decide its result.

        Returns:
            None if the request has an include folder that other machines cannot be expected to have.
        """
        if isinstance(request, LinkRequest):
            return request, (CODE, LINKER)
        names: list[str] = []
        for path in request.include_dirs:
            if (name := self._name_of(path)) is None:
                return None
            if name not in names:  # the folders of the CUDA headers have one name together
                names.append(name)
        needed = [CODE, COMPILER]
        needed += [DEVICE_SOURCES] if any(name.startswith(_KERNELS) for name in names) else []
        needed += [CUDA_HEADERS] if _CUDA in names else []
        needed += [WARP_HEADERS] if _WARP in names else []
        return replace(request, include_dirs=tuple(names)), tuple(needed)

    def _name_of(self, path: str) -> str | None:
        if path in map(os.fspath, self._store.toolchain().include_dirs):
            return _CUDA
        if path == os.fspath(warp_headers_folder() or ""):
            return _WARP
        kernels = kernels_folder()
        return f"{_KERNELS}{Path(path).relative_to(kernels).as_posix()}" if Path(path).is_relative_to(kernels) else None

    def localized(self, request: CompileRequest | LinkRequest) -> CompileRequest | LinkRequest:
        """The request of :meth:`portable` with the include folders of this machine.

        Raises:
            ToolchainError: A folder is missing, or the request names another one.
        """
        if isinstance(request, LinkRequest):
            return request
        folders = (folder for name in request.include_dirs for folder in self._folders(name))
        return replace(request, include_dirs=tuple(folders))

    def _folders(self, name: str) -> list[str]:
        if name == _CUDA:
            return [os.fspath(folder) for folder in self._store.toolchain().require_headers()]
        if name.startswith(_KERNELS):
            return [os.fspath(kernels_folder() / name.removeprefix(_KERNELS))]
        if name == _WARP and (folder := warp_headers_folder()) is not None:
            return [os.fspath(folder)]
        raise ToolchainError(f"a request names the include folder {name!r}, which is not known here")


@functools.cache
def _warp_version() -> str:
    try:
        return importlib.metadata.version("warp-lang")
    except importlib.metadata.PackageNotFoundError:  # a checkout
        return "unknown"
