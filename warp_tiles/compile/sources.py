"""The device sources of this package: the files that each of them can include, and their flattened text.

The files whose content affects machine code are device sources and the Python modules of some folders.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from warp_tiles.errors import ToolchainError

_INCLUDE = rb'#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]'  # compiled only if a closure is not stored

PACKAGE = Path(__file__).resolve().parents[1]
_MARKERS = ("cublasdx/gemm.cuh", "gemm/block_gemm.cuh")


@dataclass(frozen=True)
class DeviceSource:
    """A header that translation units include, and the folders of its own includes.

    After a change in ``folder``, that of this package's sources, the includes are searched again.
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
            header, label = os.path.join(os.path.dirname(path), name), os.path.join(prefix, name)
            if quote != b'"' or not os.path.isfile(header):
                if name not in searched:
                    paths = (os.path.join(folder, name) for folder in folders)
                    searched[name] = next(filter(os.path.isfile, paths), None)
                label = name
                if (header_of_name := searched[name]) is None:
                    continue
                header = header_of_name
            header, label = os.path.normpath(header), os.path.normpath(label)
            if header in seen:
                continue
            seen.add(header)
            prefix_of_found = os.path.dirname(label)
            while label in closure:  # another folder has a file with this name too
                label += "'"
            closure[label] = Path(header)
            pending.append((header, prefix_of_found))
    return closure


def _includes(pattern: re.Pattern[bytes], text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The quote and the name of each include at the beginning of a line. With ``^`` it takes 20 times as long."""
    for match in pattern.finditer(text):
        line = text.rfind(b"\n", 0, match.start()) + 1
        if not text[line : match.start()].strip():
            yield match[1], match[2]


def kernels_folder() -> Path:
    """Folder of the device sources: in the package or beside it, in a checkout. Raises ToolchainError without one."""
    inside, beside = PACKAGE / "kernels", PACKAGE.parent / "kernels"
    for folder in (inside, beside):
        if all((folder / marker).is_file() for marker in _MARKERS):
            return folder
    raise ToolchainError(
        f"the device sources were found neither in {inside} nor in {beside}", remedy="install warp-tiles again"
    )


CODE_FOLDERS = ("_warp", "build", "codegen", "compile", "gemm", "plan", "providers", "solver")


def code_modules() -> dict[str, Path]:
    """Every Python module in these folders, by its path relative to the package."""
    paths = (path for folder in CODE_FOLDERS for path in (PACKAGE / folder).rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): path for path in paths}


def code_files() -> dict[str, Path]:
    """Every Python module in these folders and every device source, by relative path."""
    kernels = kernels_folder()
    headers = {f"kernels/{path.relative_to(kernels).as_posix()}": path for path in kernels.rglob("*.cuh")}
    return code_modules() | headers


_QUOTED = re.compile(r'[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"')
_ONCE = re.compile(r"[ \t]*#[ \t]*pragma[ \t]+once\b")


@functools.lru_cache(maxsize=64)
def flatten(text: str, root: Path) -> str:
    """A text in which each quoted include is replaced once by the text of the header.

    A quoted include is looked up beside the including file, then in ``root``. Includes outside ``root`` and includes in
    angle brackets stay. ``#pragma once`` is dropped, because the text is not a header any more. The result is kept: the
    sources of a process do not change, as :meth:`Engine.fingerprint` digests them once.
    """
    return _flat(text, root.resolve(), root.resolve(), set())


def _flat(text: str, folder: Path, root: Path, seen: set[Path]) -> str:
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        header = _found(match[1], folder, root) if (match := _QUOTED.match(line)) else None
        if header is not None:
            is_new = header not in seen
            seen.add(header)
            lines.append(_flat(header.read_text(encoding="utf-8"), header.parent, root, seen) if is_new else "")
        elif not _ONCE.match(line):
            lines.append(line)
    return "".join(lines)


def _found(name: str, folder: Path, root: Path) -> Path | None:
    paths = ((path / name).resolve() for path in (folder, root))
    return next((path for path in paths if path.is_file() and path.is_relative_to(root)), None)
