"""Depfiles in the syntax of make: the files that decide about an output, for build systems."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from warp_tiles.cli.output import output_errors


def write_depfile(output: Path, *scripts: Path) -> None:
    """Write ``<output>.d``: every Python module that this process has imported, the device sources, and the compiler.

    Raises:
        OutputError: It cannot be written.
        ToolchainError: There is no toolchain.
    """
    import warp

    from warp_tiles.build.engine import Engine
    from warp_tiles.compile.sources import code_files
    from warp_tiles.settings import current
    from warp_tiles.util.files import write_output

    engine, now = Engine(), current()
    store = engine.build_context(now).store
    inputs = [*scripts, *code_files().values(), *store.toolchain().libraries.values()]
    inputs += [path for source in engine.device_sources(now) for path in store.closure(source).values()]
    inputs += (Path(warp.__file__).parent / "native").rglob("*.h")
    inputs += [Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]
    names = sorted({_escaped(os.path.abspath(path)) for path in inputs if path.is_file()})
    file = output.with_name(f"{output.name}.d")
    with output_errors(file):
        write_output(file, f"{_escaped(os.path.abspath(output))}: {' '.join(names)}\n".encode())


def _escaped(path: str) -> str:
    return path.replace("\\", "/").replace("$", "$$").replace("#", "\\#").replace(" ", "\\ ")
