"""Runs the tests against an installed wheel: ``python tools/wheel_tests.py SDIST [PYTEST ARGS]``.

The interpreter must have the wheel with its extra ``test``, and no editable installation. A folder gets the files of
the sdist without the package, so that every import and every subprocess finds the installed one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

THE_PACKAGE = ("warp_tiles", "kernels", "CMakeLists.txt")
NEEDS_SOURCES = (
    "tests/emulator",
    "tests/mutation",
    "tests/release",
    "tests/integration/test_cmake_build.py",
    "tests/array_products/test_emulated.py",
    "tests/test_checks.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_pages.py",
    "tests/test_printed_commands.py",
    "tests/test_layers.py",
    "tests/test_site.py",
    "tests/test_troubleshooting.py",
)  # they compile or read files of the checkout


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist without the package.

    Returns:
        The folder of the tests' files.
    """
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            if Path(member.name).parts[1:2] not in [(name,) for name in THE_PACKAGE]:
                archive.extract(member, folder, filter="data")
    (root,) = folder.iterdir()
    return root


def main(arguments: Sequence[str]) -> int:
    """Unpack the sdist into a new folder and run pytest there."""
    sdist = Path(arguments[0]).resolve()
    with tempfile.TemporaryDirectory(prefix="warp_tiles_wheel_") as folder:
        root = unpack(sdist, Path(folder))
        ignored = [f"--ignore={name}" for name in NEEDS_SOURCES]
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        where = subprocess.run(
            [sys.executable, "-c", "import warp_tiles; print(warp_tiles.__file__)"],
            cwd=root, env=kept, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        if "site-packages" not in Path(where).parts:
            print(f"warp_tiles is imported from {where}, which is no installed wheel", file=sys.stderr)
            return 2
        return subprocess.run([sys.executable, "-m", "pytest", *ignored, *arguments[1:]], cwd=root, env=kept).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
