"""Builds sdist and wheel, and compares the wheel's contents with the sources."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath

from tools.project import ROOT

SUFFIXES = {".py", ".cuh", ".css", ".json", ".typed", ".txt"}  # of everything that belongs into the package
REQUIRED = ("warp_tiles/__init__.py", "warp_tiles/py.typed", "warp_tiles/cmake/CMakeLists.txt")
METADATA = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def build(folder: Path) -> Path:
    """Build the sdist, and the wheel from it, with the build requirements of this environment. Needs no network.

    Args:
        folder: An empty folder, where both are written.

    Returns:
        The wheel.

    Raises:
        RuntimeError: A build failed; the message is its output.
    """
    _hatchling("sdist", folder, ROOT)
    with tempfile.TemporaryDirectory() as unpacked:
        (sdist,) = folder.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (root,) = Path(unpacked).iterdir()
        _hatchling("wheel", folder, root)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _hatchling(target: str, folder: Path, root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"hatchling ended with {done.returncode}:\n{done.stdout}")


def names(wheel: Path) -> list[str]:
    """The names of a wheel's files."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def metadata(wheel: Path) -> Message:
    """The METADATA of a wheel: its fields, and the description as payload."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode("utf-8"))


def sources(root: Path = ROOT) -> set[str]:
    """The names that the files of the package have in a wheel."""
    found = {"warp_tiles/cmake/CMakeLists.txt"}
    for folder, prefix in (("warp_tiles", "warp_tiles"), ("kernels", "warp_tiles/kernels")):
        for path in (root / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                found.add(f"{prefix}/{path.relative_to(root / folder).as_posix()}")
    return found


def problems(contents: Iterable[str], expected: set[str]) -> list[str]:
    """What is wrong with the contents of a wheel, one text for each fault.

    Args:
        contents: The names of its files.
        expected: The names that the package's files should have.
    """
    inside = set(contents)
    package = {name for name in inside if name.startswith("warp_tiles/")}
    described = {name.partition(".dist-info/")[2] for name in inside - package}
    faults = [f"{name} is missing" for name in sorted({*expected, *REQUIRED} - package)]
    faults += [f"{name} is not a file of the package" for name in sorted(package - expected)]
    faults += [f"{name} has a suffix that the package does not use" for name in sorted(package) if _is_foreign(name)]
    faults += [f"{name} lies outside of warp_tiles" for name in sorted(inside - package) if ".dist-info/" not in name]
    faults += [f"the metadata has no {name}" for name in sorted(METADATA - described)]
    return faults


def _is_foreign(name: str) -> bool:
    return PurePosixPath(name).suffix not in SUFFIXES
