"""Warp's libmathdx builds of several processes: a function that one has built is copied by the others.

A build takes more than ten seconds, whatever the size of the product. The processes keep their own empty caches.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from warp_tiles._warp.internals import find

Compile = Callable[[dict[str, str]], tuple[bool, dict[str, bytes]]]


def keep_builds(folder: Path) -> None:
    """Keep the LTO-IR of all products that this process builds with libmathdx in a folder, and take it from there."""
    build = find("build")
    original = build._build_lto_base

    def build_lto(symbol: str, compile_lto: Compile, *arguments: Any) -> Any:
        def copy_or_compile(paths: dict[str, str]) -> tuple[bool, dict[str, bytes]]:
            kept = folder / f"{symbol}.lto"  # the symbol has all inputs of a product
            if kept.exists():
                Path(paths[".lto"]).write_bytes(kept.read_bytes())
                return True, {".lto": kept.read_bytes()}
            succeeded, outputs = compile_lto(paths)
            if succeeded:
                kept.write_bytes(outputs[".lto"])
            return succeeded, outputs

        return original(symbol, copy_or_compile, *arguments)

    build._build_lto_base = build_lto
