"""Makes builds cheaper in all processes of a test run. Python runs this file at the start of each, because PYTHONPATH
names its folder.

Warp compiles kernels for the CPU without optimisation, because each runs only a few times. Headers are precompiled once
for all caches. Nothing is imported until a process imports the modules that are changed.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

# environment variables: the folders of headers that Warp has precompiled, and of the digests of libraries
KNOWN_CPU_HEADERS, KNOWN_DIGESTS = "TEST_KNOWN_CPU_HEADERS", "TEST_KNOWN_DIGESTS"
LIBRARY_BYTES = 1 << 20  # files from this size on are hashed once


class _Finder:
    """Finds a module as Python does, and changes it when it has been imported."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name, self._change = name, change

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute, change = spec.loader.exec_module, self._change

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change
        return spec


def change_warp_build(module: ModuleType) -> None:
    """Compile for the CPU at -O0, in a third of the time, and share precompiled headers."""
    compile_at_any_level = module.build_cpu

    def build_cpu(*args: Any, **kwargs: Any) -> None:
        known, folder = _known_headers(module), kwargs.get("pch_dir")
        if known and folder:
            _copy_missing(known, folder)
        compile_at_any_level(*args, **{**kwargs, "optimization_level": 0})
        if known and folder:
            _copy_missing(folder, known)

    module.build_cpu = build_cpu  # type: ignore[attr-defined]


def hash_libraries_once(module: ModuleType) -> None:
    """Keep the digests of the compiler and the linker, which every empty cache would ask for."""
    hash_file = module._hash_file

    def hash_once(path: str | os.PathLike[str]) -> Any:
        status, known = os.stat(path), os.environ.get(KNOWN_DIGESTS)
        if status.st_size < LIBRARY_BYTES or not known:
            return hash_file(path)
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        file = os.path.join(known, "-".join(map(str, state)))
        try:
            with open(file) as kept:
                return kept.read()
        except OSError:
            digest = hash_file(path)
        try:
            with open(f"{file}.{os.getpid()}.{get_ident()}", "w") as kept:
                kept.write(digest)
            os.replace(kept.name, file)
        except OSError:  # a process of another user
            pass
        return digest

    module._hash_file = hash_once  # type: ignore[attr-defined]


_CHANGES = {"warp._src.build": change_warp_build, "warp_tiles.compile.toolchain": hash_libraries_once}


def _known_headers(module: ModuleType) -> str | None:
    """A folder for each Warp. A file takes Clang 1.6 s, for each set of options; it rejects a file of other headers."""
    folder = os.environ.get(KNOWN_CPU_HEADERS)
    return folder and os.path.join(folder, str(module.__file__).replace(os.sep, "_"))


def _copy_missing(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(source) if os.path.isdir(source) else ():
        path = os.path.join(target, name)
        if name.endswith(".pch") and not os.path.exists(path):
            temporary = f"{path}.{os.getpid()}.{get_ident()}"
            with open(os.path.join(source, name), "rb") as old, open(temporary, "wb") as new:
                new.write(old.read())
            os.replace(temporary, path)


def install() -> None:
    """Change the modules when this process imports them, unless it does so already."""
    if all(type(finder).__name__ != _Finder.__name__ for finder in sys.meta_path):
        sys.meta_path[:0] = [_Finder(*change) for change in _CHANGES.items()]  # type: ignore[list-item]


if __name__ == "sitecustomize":
    install()
