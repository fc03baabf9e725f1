"""Makes kernels for the CPU cheaper in all processes of a test run. Python runs this file at the start of each, because
PYTHONPATH names its folder.

Warp compiles them without optimisation, because each kernel runs only a few times, and precompiles its headers once for
all caches. Nothing is imported until a process imports Warp's build module.
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

KNOWN_CPU_HEADERS = "TEST_KNOWN_CPU_HEADERS"  # environment variable: the folder of headers that Warp has precompiled
_CHANGED = "warp._src.build"


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
    """Change the module when this process imports it, unless it does so already."""
    if all(type(finder).__name__ != _Finder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(_CHANGED, change_warp_build))  # type: ignore[arg-type]


if __name__ == "sitecustomize":
    install()
