"""The folders of this package whose files affect the machine code."""

from __future__ import annotations

from pathlib import Path

from warp_tiles.toolchain import sources

PACKAGE = Path(__file__).resolve().parents[1]
CODE_FOLDERS = ("_warp", "build", "codegen", "compile", "gemm", "heuristics", "plan", "providers", "solver")


def code_modules() -> dict[str, Path]:
    """Every Python module in these folders, by its path relative to the package."""
    found = (path for folder in CODE_FOLDERS for path in (PACKAGE / folder).rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): path for path in found}


def code_files() -> dict[str, Path]:
    """Every Python module in these folders and every device source, by relative path.

    Raises:
        ToolchainError: There are no device sources.
    """
    kernels = sources.kernels_folder()
    headers = {f"kernels/{path.relative_to(kernels).as_posix()}": path for path in kernels.rglob("*.cuh")}
    return code_modules() | headers
