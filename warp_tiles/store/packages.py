"""Kernel packages: wheels of ``warp-tiles bundle --wheel``, whose entries lie beside Python's code once installed.

    <folder of sys.path>/warp_tiles_kernels/<name>/index.json      sealed: what it was made for, and its keys
    <folder of sys.path>/warp_tiles_kernels/<name>/<sha256>.xz     a payload, compressed by LZMA

They are trusted as the Python code there: this user or root owns them, and none is more open than the folder of
``sys.path``. Nothing of them is imported or written. A package that cannot be used costs one warning.

Equal inputs give an equal wheel: entries are sorted and have one time, and nothing names the machine
(https://packaging.python.org/en/latest/specifications/binary-distribution-format/).
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from warp_tiles.errors import shown, suppressed, unless_signalled
from warp_tiles.store import MAX_PAYLOAD_BYTES, MODULE, is_digest
from warp_tiles.store.documents import DamagedError, read_bounded, reason_of, seal, unseal
from warp_tiles.store.key import CacheKey, Entry, Manifest
from warp_tiles.util.files import open_output
from warp_tiles.util.trusted_folder import TrustedFolder
from warp_tiles.util.version import __version__
from warp_tiles.util.warn import WarnedTexts, warn

NAMESPACE, INDEX, SUFFIX = "warp_tiles_kernels", "index.json", ".xz"
#: The fact of an entry that came from a package: its name and version.
PACKAGE = "kernel_package"
SCHEMA = 2
_MOST_INDEX_BYTES = 16 << 20
_ROW_CHARACTERS = 64 + 1 + 8 + 1 + 8 + 1  # of a payload
_UNPACKER_BYTES = 64 << 20  # of memory; what pack() writes needs 9 MB
_FIELDS = {
    "schema": int, "name": str, "version": str, "warp": str, "toolchain": str, "modules": dict, "keys": dict,
    "payloads": str,
}  # fmt: skip
_TIME = (1980, 1, 1, 0, 0, 0)  # the first of ZIP files
_MODE, _UNIX = 0o100644 << 16, 3
_said = WarnedTexts()


@dataclass(frozen=True)
class PackageTarget:
    """What a package has a module for."""

    arch: int
    block_dim: int
    linked: bool


@dataclass(frozen=True)
class KernelIndex:
    """The index of a package.

    Attributes:
        name: Of its distribution.
        warp: Version of Warp and of its CUDA.
        toolchain: NVRTC and nvJitLink, as signatures name them; empty without one.
        modules: The targets of each module by name; each is read by :meth:`targets`.
        keys: Of each kind of object, a row of each key: its digest and the number of its payload.
        payloads: A row of each payload: SHA-256, CRC-32 and size, in hexadecimal digits.

    Rows are texts, because each program parses the indexes of all packages, and most programs need few rows of few.
    """

    name: str
    version: str
    warp: str
    toolchain: str
    modules: Mapping[str, Sequence[Sequence[object]]]
    keys: Mapping[str, str]
    payloads: str

    def to_bytes(self) -> bytes:
        """The file, which is the same for equal values."""
        return seal({"schema": SCHEMA, **vars(self)})

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> KernelIndex:
        """Read the JSON of the file. Raises DamagedError for another version; parts are checked when asked for."""
        if body.get("schema") != SCHEMA:
            raise DamagedError(f"its index has schema {shown(body.get('schema'), 40)}, and {SCHEMA} is read")
        if body.keys() != _FIELDS.keys() or any(type(body[name]) is not kind for name, kind in _FIELDS.items()):
            raise DamagedError("its index has other fields")
        if not all(type(rows) is str for rows in body["keys"].values()):
            raise DamagedError("its index has no keys")
        del body["schema"]
        return cls(**body)

    def targets(self, module: str) -> list[PackageTarget]:
        """What it has a module for; nothing for a module that it does not name."""
        rows = self.modules.get(module)
        rows = rows if isinstance(rows, list) else []
        kinds = [int, int, bool]
        return [PackageTarget(*row) for row in rows if isinstance(row, list) and [*map(type, row)] == kinds]

    def payload(self, kind: str, digest: str) -> tuple[str, int, int] | None:
        """SHA-256, CRC-32 and size of the payload of a key; None if it lacks the key. Raises DamagedError."""
        rows = self.keys.get(kind, "")
        if (at := rows.find(f"{digest} ")) < 0:
            return None
        try:
            begin = int(rows[at + len(digest) : rows.index(";", at)]) * _ROW_CHARACTERS
            sha256, crc32, size = self.payloads[max(begin, 0) : begin + _ROW_CHARACTERS].rstrip(";").split()
            payload = sha256, int(crc32, 16), int(size, 16)
        except ValueError as error:
            raise DamagedError(f"its index has no payload of {digest[:12]}") from error
        if not is_digest(sha256) or not 0 < payload[2] <= MAX_PAYLOAD_BYTES:
            raise DamagedError(f"its index has a wrong payload of {digest[:12]}")
        return payload

    def digests(self, kind: str) -> set[str]:
        return {row.partition(" ")[0] for row in self.keys.get(kind, "").split(";") if row}


@dataclass(frozen=True)
class KernelPackage:
    """One folder of a package, and the version of the installed Warp and of its CUDA."""

    parent: str
    folder: str
    warp: str

    @cached_property
    def files(self) -> TrustedFolder:
        return TrustedFolder(Path(self.parent), f"{NAMESPACE}/{self.folder}", installed=True)

    @cached_property
    def unread(self) -> list[str]:
        """The files that could not be read."""
        return []

    @cached_property
    def _loaded(self) -> tuple[KernelIndex | None, str]:
        """The index, or why it cannot be used. Neither if there is none."""
        try:
            return KernelIndex.from_body(unseal(read_bounded(self.files, INDEX, _MOST_INDEX_BYTES)[0])), ""
        except FileNotFoundError:  # a folder that pip has left
            return None, ""
        except unless_signalled(OSError, DamagedError) as error:
            return None, reason_of(error)

    @property
    def index(self) -> KernelIndex | None:
        """The index, also of another Warp; None if it cannot be used, or if there is none."""
        return self._loaded[0]

    @property
    def reason_unusable(self) -> str:
        """Why nothing of it can serve; empty if it can, and for a folder without an index."""
        if (index := self.index) is None or index.warp == self.warp:
            return self._loaded[1]
        return f"it was made for Warp {index.warp}, and this is Warp {self.warp}"

    def _said_index(self) -> KernelIndex | None:
        """The index; None if it cannot be used, which is said once."""
        if self.index is None and (fault := self._loaded[1]):
            self.say(fault)
        return self.index

    def names(self, module: str) -> bool:
        """True if it names a module, also if it is of another Warp."""
        return (index := self._said_index()) is not None and module in index.modules

    @property
    def title(self) -> str:
        return self.folder if (index := self.index) is None else f"{index.name} {index.version}"

    def summary(self) -> str:
        """Its name, folder and content, in words."""
        text = f"{self.title} in {self.files.root}"
        if (index := self.index) is not None:
            archs = sorted({row.arch for name in index.modules for row in index.targets(name)})
            text += f": {len(index.modules)} modules for {', '.join(f'sm_{arch}' for arch in archs)}"
        return text

    def find(self, kind: str, key: CacheKey) -> Packaged | None:
        """What it has for a key; None if it lacks it."""
        if (index := self._said_index()) is None or self.reason_unusable:
            return None
        try:
            row = index.payload(kind, key.digest)
        except DamagedError as error:
            self.say(str(error))
            return None
        return None if row is None else Packaged(self, Manifest(key, *row, 0, 0, {PACKAGE: self.title}))

    def reason_lacking(self, module: str, arch: int, block_dim: int, toolchain: str | None = None) -> str:
        """Why it has nothing for a target of a module that it names; empty if it has. None for any toolchain."""
        if (index := self.index) is None or self.reason_unusable:
            return self.reason_unusable
        rows = index.targets(module)
        if arch not in (archs := sorted({row.arch for row in rows})):
            return f"it has it for {', '.join(f'sm_{known}' for known in archs)}, and not for sm_{arch}"
        blocks = {row.block_dim: row for row in rows if row.arch == arch}
        if (target := blocks.get(block_dim)) is None:
            return f"it has it with {', '.join(map(str, sorted(blocks)))} threads per block, and not with {block_dim}"
        if toolchain is not None and target.linked and index.toolchain != toolchain:
            return f"it was made with {index.toolchain or 'no toolchain'}, and this is {toolchain or 'without one'}"
        return ""

    def say(self, reason: str) -> None:
        """Warn, once for each package, of what keeps it from serving."""
        if _said.add(str(self.files.path(""))):
            warn(
                f"kernel package {self.title} in {self.parent}: {reason}. What it does not serve is built. "
                "Remedy: install it again, for this Warp, or name the packages to use: WARP_TILES_KERNEL_PACKAGES"
            )


@dataclass(frozen=True)
class Packaged:
    """An entry of a package that has not been read."""

    package: KernelPackage
    manifest: Manifest

    def entry(self) -> Entry | None:
        """The entry, verified by SHA-256. None if its payload is missing or damaged, which is said once."""
        name = f"{self.manifest.payload_sha256}{SUFFIX}"
        try:
            packed, _ = read_bounded(self.package.files, name, MAX_PAYLOAD_BYTES)
            payload = _unpacked(packed, self.manifest.payload_bytes)
            self.manifest.check_payload(payload, full=True)
            return Entry(payload, self.manifest)
        except unless_signalled(OSError, DamagedError) as error:
            self.package.unread.append(name)
            self.package.say(f"{name[:12]}: {reason_of(error)}")
            return None


def package_of(entry: Entry | None) -> str:
    return "" if entry is None else str(entry.manifest.info.get(PACKAGE, ""))


def _unpacked(data: bytes, size: int) -> bytes:
    try:
        import lzma
    except ImportError as error:
        raise DamagedError("this Python was built without the module lzma, which unpacks it") from error
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_UNPACKER_BYTES)
    try:
        payload = unpacker.decompress(data, size + 1)
    except lzma.LZMAError as error:
        raise DamagedError(f"it is not compressed as it was written, or needs too much memory: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise DamagedError(f"it is cut short, or has not the {size} bytes of its index")
    return payload


class KernelPackages:
    """The packages that a setting chooses, in the order of ``sys.path``. Nothing is read before the first lookup.

    Args:
        chosen: ``auto`` for all, or names with commas between them.
        warp: Version of the installed Warp and of its CUDA.
        parents: Folders that hold Python packages. Relative ones are left out, because whoever fills the working folder
            would choose what they name.
    """

    def __init__(self, chosen: str, warp: str, parents: Sequence[str]) -> None:
        self._names = None if chosen == "auto" else {name.replace("-", "_") for name in chosen.split(",")}
        self._warp = warp
        self._parents = dict.fromkeys(parent for parent in parents if isinstance(parent, str) and os.path.isabs(parent))

    @cached_property
    def found(self) -> tuple[KernelPackage, ...]:
        """The packages. Their indexes are not read."""
        return tuple(
            KernelPackage(parent, folder, self._warp)
            for parent in self._parents
            for folder in _folders(os.path.join(parent, NAMESPACE))
            if self._names is None or folder in self._names
        )

    def naming(self, module: str) -> Iterator[KernelPackage]:
        """The packages that name a module, those of another Warp included."""
        return (package for package in self.found if package.names(module))

    def serve(self, module: str) -> bool:
        """True if a package may have a module. Warns of those that name it and are of another Warp."""
        named = list(self.naming(module))
        for package in named:
            if package.reason_unusable:
                package.say(package.reason_unusable)
        return any(not package.reason_unusable for package in named)

    def find(self, kind: str, key: CacheKey) -> Packaged | None:
        """What the first package that knows a key has for it."""
        return next((packaged for package in self.found if (packaged := package.find(kind, key)) is not None), None)

    def planned(self, module: str, arch: int, block_dim: int) -> str:
        """What a plan says about a module; empty if no package names it."""
        named = ((package.title, package.reason_lacking(module, arch, block_dim)) for package in self.naming(module))
        return "; ".join(
            f"kernel package {title} {f'lacks this module: {reason}' if reason else 'has this module'}"
            for title, reason in named
        )

    def missed(self, module: str, arch: int, block_dim: int, toolchain: str) -> str:
        """Why a module did not come from a package; empty if no package names it."""
        differs = "it has it from another source, or with other options or constants"
        damaged = f"its file cannot be read, as a warning says, or {differs}"
        named = (
            (package, package.reason_lacking(module, arch, block_dim, toolchain)) for package in self.naming(module)
        )
        return "; ".join(
            f"{package.title}: {reason or (damaged if package.unread else differs)}" for package, reason in named
        )

    def shared_modules(self) -> Iterator[tuple[KernelPackage, KernelPackage, int]]:
        """Pairs of packages with equal keys of modules, and the number of these. The first one of a pair serves."""
        usable = [(package, package.index) for package in self.found if not package.reason_unusable]
        held = [(package, index.digests(MODULE)) for package, index in usable if index is not None]
        for (first, here), (second, there) in combinations(held, 2):
            if count := len(here & there):
                yield first, second, count


def _folders(parent: str) -> list[str]:
    with suppressed(OSError), os.scandir(parent) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return []


# ---- the wheel of a package


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
        contents = dict(sorted(files.items())) | self.metadata()
        record = f"{self._info}/RECORD"
        rows = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in contents.items()]
        return {**contents, record: "".join([*rows, f"{record},,\n"]).encode("utf-8")}


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode("ascii").rstrip("=")


def _row_of(payload: bytes) -> tuple[str, int, int]:
    return hashlib.sha256(payload).hexdigest(), zlib.crc32(payload), len(payload)


def kernel_files(
    distribution: Distribution,
    warp: str,
    toolchain: str,
    modules: Mapping[str, Iterable[tuple[int, int, bool]]],
    entries: Iterable[tuple[str, Entry]],
) -> dict[str, bytes]:
    """The files of a kernel package by their names in the wheel, see :class:`KernelIndex`. Equal payloads are one."""
    import lzma

    packed = [(kind, entry.key, _row_of(entry.payload), entry.payload) for kind, entry in entries]
    payloads = {row: payload for _, _, row, payload in packed}
    rows = sorted(payloads)
    numbers = {row: number for number, row in enumerate(rows)}
    keys: dict[str, dict[str, int]] = {}
    for kind, key, row, _ in packed:
        keys.setdefault(kind, {})[key] = numbers[row]
    targets = {name: [list(row) for row in sorted(set(given))] for name, given in modules.items()}
    key_rows = {kind: "".join(f"{key} {number};" for key, number in sorted(keys[kind].items())) for kind in keys}
    payload_rows = "".join(f"{sha256} {crc32:08x} {size:08x};" for sha256, crc32, size in rows)
    index = KernelIndex(distribution.name, distribution.version, warp, toolchain, targets, key_rows, payload_rows)
    folder = f"{NAMESPACE}/{distribution.stem}"
    files = {f"{folder}/{row[0]}{SUFFIX}": lzma.compress(payloads[row]) for row in rows}
    return {f"{folder}/{INDEX}": index.to_bytes(), **files}


def write_wheel(folder: Path, distribution: Distribution, files: Mapping[str, bytes]) -> Path:
    """Write a wheel, whole or not at all. Returns its path. Raises OSError if it cannot be written."""
    import zipfile

    path = folder / distribution.file
    with open_output(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, data in distribution.with_record(files).items():
            info = zipfile.ZipInfo(name, _TIME)
            info.external_attr, info.create_system = _MODE, _UNIX
            packed = name.endswith(SUFFIX)
            archive.writestr(info, data, zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED, 9)
    return path
