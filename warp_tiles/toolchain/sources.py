"""The device sources of this package, and the files that each of them can include."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from warp_tiles.errors import ToolchainError

_INCLUDE = rb'#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]'  # compiled only if a closure is not stored

_PACKAGE = Path(__file__).resolve().parents[1]
_MARKERS = ("cublasdx/gemm.cuh", "gemm/block_gemm.cuh")


@dataclass(frozen=True)
class DeviceSource:
    """A header that translation units include, and the folders of its own includes.

    Attributes:
        path: The header.
        folder: Folder of this package's sources. After a change in it, the includes are searched again.
        include_dirs: Folders in the order in which they are searched.
    """

    path: Path
    folder: Path
    include_dirs: tuple[Path, ...]


def include_closure(source: Path, include_dirs: Sequence[Path]) -> dict[str, Path]:
    """Every file that a source can include, by the name of the include.

    The preprocessor is not run, so an include under a false condition counts too. The closure can be
    larger than necessary, but never smaller. Includes whose name is a macro are not followed.
    """
    closure: dict[str, Path] = {source.name: source}
    seen = {os.path.normpath(source)}
    pending = [(os.fspath(source), "")]
    folders = [os.fspath(folder) for folder in include_dirs]
    searched: dict[str, str | None] = {}  # files found in the folders, by the name of the include
    pattern = re.compile(_INCLUDE)
    while pending:
        path, prefix = pending.pop()
        for quote, raw in _includes(pattern, Path(path).read_bytes()):
            name = raw.decode("utf-8", "replace")
            place, label = os.path.join(os.path.dirname(path), name), os.path.join(prefix, name)
            if quote != b'"' or not os.path.isfile(place):
                if name not in searched:
                    places = (os.path.join(folder, name) for folder in folders)
                    searched[name] = next(filter(os.path.isfile, places), None)
                found, label = searched[name], name
                if found is None:
                    continue
                place = found
            place, label = os.path.normpath(place), os.path.normpath(label)
            if place in seen:
                continue
            seen.add(place)
            prefix_of_found = os.path.dirname(label)
            while label in closure:  # another folder has a file with this name too
                label += "'"
            closure[label] = Path(place)
            pending.append((place, prefix_of_found))
    return closure


def _includes(pattern: re.Pattern[bytes], text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The quote and the name of each include at the beginning of a line. With ``^`` it takes 20 times as long."""
    for match in pattern.finditer(text):
        line = text.rfind(b"\n", 0, match.start()) + 1
        if not text[line : match.start()].strip():
            yield match[1], match[2]


def kernels_folder() -> Path:
    """Folder of the device sources: inside the installed package, or at the top of a checkout.

    Raises:
        ToolchainError: Neither folder exists.
    """
    inside, beside = _PACKAGE / "kernels", _PACKAGE.parent / "kernels"
    for folder in (inside, beside):
        if all((folder / marker).is_file() for marker in _MARKERS):
            return folder
    raise ToolchainError(
        f"the device sources were found neither in {inside} nor in {beside}",
        remedy="install warp-tiles again",
    )
