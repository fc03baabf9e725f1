"""Writes a wheel of kernels: the folder of a kernel package (:mod:`.packages`) and its metadata, as pip installs them.

Equal inputs give equal bytes: entries are sorted and have one time, and nothing names the machine
(https://packaging.python.org/en/latest/specifications/binary-distribution-format/).
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warp_tiles.store.manifest import Entry
from warp_tiles.store.packages import INDEX, NAMESPACE, SUFFIX, KernelIndex, pack, payload_row
from warp_tiles.util.files import open_output
from warp_tiles.util.version import __version__

_TIME = (1980, 1, 1, 0, 0, 0)  # the first of ZIP files
_MODE = 0o100644 << 16
_UNIX = 3


@dataclass(frozen=True)
class Distribution:
    """What a wheel says about itself.

    Attributes:
        tag: Of Python, ABI and platform, e.g. ``py3-none-any``.
        requires: Requirements, e.g. ``warp-lang==1.19.0``.
    """

    name: str
    version: str
    summary: str
    tag: str
    requires: Sequence[str]

    @property
    def stem(self) -> str:
        """The beginning of the names of its file and its folders."""
        return re.sub(r"[-_.]+", "_", self.name).lower()

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.stem}-{self.version}-{self.tag}.whl"

    def metadata(self) -> dict[str, bytes]:
        """The files of its metadata, but for RECORD, by their names in the wheel."""
        requires = "".join(f"Requires-Dist: {item}\n" for item in self.requires)
        head = f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\nSummary: {self.summary}\n"
        wheel = f"Wheel-Version: 1.0\nGenerator: warp-tiles {__version__}\nRoot-Is-Purelib: false\nTag: {self.tag}\n"
        texts = {"METADATA": head + requires, "WHEEL": wheel}
        return {f"{self._info}/{name}": text.encode("utf-8") for name, text in texts.items()}

    @property
    def _info(self) -> str:
        return f"{self.stem}-{self.version}.dist-info"

    def with_record(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """All files of the wheel in order, RECORD last."""
        found = dict(sorted(files.items())) | self.metadata()
        record = f"{self._info}/RECORD"
        rows = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in found.items()]
        return {**found, record: "".join([*rows, f"{record},,\n"]).encode("utf-8")}


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode("ascii").rstrip("=")


def kernel_files(
    distribution: Distribution,
    warp: str,
    toolchain: str,
    modules: Mapping[str, Iterable[tuple[int, int, bool]]],
    entries: Iterable[tuple[str, Entry]],
) -> dict[str, bytes]:
    """The files of a kernel package by their names in the wheel, see :class:`KernelIndex`.

    Args:
        modules: Architecture, threads per block and whether it is linked, of each target of a module.
        entries: The kind of object of each, and the entry. Equal payloads are stored once.
    """
    found = list(entries)
    payloads = {payload_row(entry.payload): entry.payload for _, entry in found}
    rows = sorted(payloads)
    numbers = {row: number for number, row in enumerate(rows)}
    keys: dict[str, dict[str, int]] = {}
    for kind, entry in found:
        keys.setdefault(kind, {})[entry.key] = numbers[payload_row(entry.payload)]
    targets = {name: [list(row) for row in sorted(set(given))] for name, given in modules.items()}
    index = KernelIndex(distribution.name, distribution.version, warp, toolchain, targets, keys, rows)
    folder = f"{NAMESPACE}/{distribution.stem}"
    files = {f"{folder}/{row[0]}{SUFFIX}": pack(payloads[row]) for row in rows}
    return {f"{folder}/{INDEX}": index.to_bytes(), **files}


def write_wheel(folder: Path, distribution: Distribution, files: Mapping[str, bytes]) -> Path:
    """Write a wheel, whole or not at all. Returns its path.

    Raises:
        OSError: It cannot be written.
    """
    path = folder / distribution.file
    with open_output(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, data in distribution.with_record(files).items():
            info = zipfile.ZipInfo(name, _TIME)
            info.external_attr, info.create_system = _MODE, _UNIX
            packed = name.endswith(SUFFIX)
            archive.writestr(info, data, zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED, 9)
    return path
