"""The device sources of this package, and the files that each of them can include."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warp_tiles.errors import ToolchainError

_INCLUDE = rb'(?m)^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]'  # compiled only if a closure is not stored

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
    pending = [(source, "")]
    while pending:
        path, prefix = pending.pop()
        for quote, raw in re.findall(_INCLUDE, path.read_bytes()):
            name = raw.decode("utf-8", "replace")
            places = [(path.parent / name, os.path.normpath(os.path.join(prefix, name)))] if quote == b'"' else []
            places += [(folder / name, os.path.normpath(name)) for folder in include_dirs]
            place, label = next(((place, label) for place, label in places if place.is_file()), (None, ""))
            if place is None or os.path.normpath(place) in seen:
                continue
            seen.add(os.path.normpath(place))
            prefix_of_found = os.path.dirname(label)
            while label in closure:  # another folder has a file with this name too
                label += "'"
            closure[label] = Path(os.path.normpath(place))
            pending.append((closure[label], prefix_of_found))
    return closure


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
