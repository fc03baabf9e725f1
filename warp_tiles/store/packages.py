"""Installed kernel packages: the entries of a wheel of ``warp-tiles bundle --wheel``, which lie beside Python's code.

    <folder of sys.path>/warp_tiles_kernels/<name>/index.json      sealed: what it was made for, and its keys
    <folder of sys.path>/warp_tiles_kernels/<name>/<sha256>.xz     a payload, compressed by LZMA

They are trusted as the Python code there: this user or root owns them, and none is more open than the folder of
``sys.path``. Nothing of them is imported or written. A package that cannot be used costs one warning.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from warp_tiles.store import MODULE
from warp_tiles.store.key import CacheKey
from warp_tiles.store.kinds import MAX_PAYLOAD_BYTES
from warp_tiles.store.manifest import Entry, Manifest
from warp_tiles.store.paths import is_digest
from warp_tiles.store.report import reason_of
from warp_tiles.store.sealed import DamagedError, dump_json, parse_object, read_bounded, seal, sealed_body
from warp_tiles.util.threads import suppressed, unless_signalled
from warp_tiles.util.trusted_folder import TrustedFolder
from warp_tiles.util.warn import WarnedTexts, shown, warn

NAMESPACE, INDEX, SUFFIX = "warp_tiles_kernels", "index.json", ".xz"
#: The fact of an entry that came from a package: its name and version.
PACKAGE = "kernel_package"
SCHEMA = 1
_MOST_INDEX_BYTES = 16 << 20
_UNPACKER_BYTES = 64 << 20  # of memory; what pack() writes needs 9 MB
_FIELDS = {
    "schema": int, "name": str, "version": str, "warp": str, "toolchain": str, "modules": dict, "keys": dict,
    "payloads": list,
}  # fmt: skip
_said = WarnedTexts()


@dataclass(frozen=True)
class PackageTarget:
    """What a package has a module for.

    Attributes:
        linked: True if warp_tiles has linked it, because it has products or solvers.
    """

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
        keys: The number of each key's payload, by kind of object and digest.
        payloads: SHA-256, CRC-32 and size of each.
    """

    name: str
    version: str
    warp: str
    toolchain: str
    modules: Mapping[str, Sequence[Sequence[object]]]
    keys: Mapping[str, Mapping[str, int]]
    payloads: Sequence[tuple[str, int, int]]

    def to_bytes(self) -> bytes:
        """The file, which is the same for equal values."""
        return seal({"schema": SCHEMA, **vars(self)})

    @classmethod
    def from_body(cls, data: bytes) -> KernelIndex:
        """Parse the JSON of the file. A module, a key and a payload are checked when they are asked for.

        Raises:
            DamagedError: It is of another version.
        """
        body: dict[str, Any] = parse_object(data)
        if body.get("schema") != SCHEMA:
            raise DamagedError(f"its index has schema {shown(body.get('schema'), 40)}, and {SCHEMA} is read")
        if body.keys() != _FIELDS.keys() or any(type(body[name]) is not kind for name, kind in _FIELDS.items()):
            raise DamagedError("its index has other fields")
        if not all(type(keys) is dict for keys in body["keys"].values()):
            raise DamagedError("its index has no keys")
        del body["schema"]
        return cls(**body)

    def targets(self, module: str) -> list[PackageTarget]:
        """What it has a module for; nothing for a module that it does not name."""
        rows = self.modules.get(module, ())
        kinds = [int, int, bool]
        return [PackageTarget(*row) for row in rows if isinstance(row, list) and [*map(type, row)] == kinds]

    def payload(self, kind: str, digest: str) -> tuple[str, int, int] | None:
        """SHA-256, CRC-32 and size of the payload of a key; None if it lacks the key.

        Raises:
            DamagedError: The index is wrong about it.
        """
        number = self.keys.get(kind, {}).get(digest)
        if number is None:
            return None
        row = self.payloads[number] if type(number) is int and 0 <= number < len(self.payloads) else None
        if not isinstance(row, (list, tuple)) or [type(value) for value in row] != [str, int, int]:
            raise DamagedError(f"its index has no payload of {digest[:12]}")
        sha256, crc32, size = row
        if not is_digest(sha256) or not 0 < size <= MAX_PAYLOAD_BYTES:
            raise DamagedError(f"its index has a wrong payload of {digest[:12]}")
        return sha256, crc32, size


@dataclass(frozen=True)
class KernelPackage:
    """One folder of a package.

    Attributes:
        place: Its folder of ``sys.path``.
        folder: Its own folder, by name.
        warp: Version of the installed Warp and of its CUDA.
    """

    place: str
    folder: str
    warp: str

    @cached_property
    def files(self) -> TrustedFolder:
        """Its files."""
        return TrustedFolder(Path(self.place), f"{NAMESPACE}/{self.folder}", installed=True)

    @cached_property
    def _body(self) -> bytes | str:
        """The JSON of the index; or why it cannot be used."""
        try:
            return sealed_body(read_bounded(self.files, INDEX, _MOST_INDEX_BYTES)[0])
        except FileNotFoundError:  # a folder that pip has left
            return ""
        except unless_signalled(OSError, DamagedError) as error:
            return reason_of(error)

    @cached_property
    def loaded(self) -> KernelIndex | str:
        """The index; or why it cannot be used, which is empty if there is none."""
        if isinstance(self._body, str):
            return self._body
        try:
            return KernelIndex.from_body(self._body)
        except DamagedError as error:
            return str(error)

    @property
    def index(self) -> KernelIndex | None:
        """The index, also of another Warp; None if it cannot be used."""
        return found if isinstance(found := self.loaded, KernelIndex) else None

    def _indexed(self, text: str) -> KernelIndex | None:
        """The index, if it may have a name or a digest; None if not, or if it cannot be used, which is said once."""
        if isinstance(self._body, bytes) and dump_json(text) not in self._body:  # parsing takes ten times as long
            return None
        if isinstance(found := self.loaded, KernelIndex):
            return found
        if found:
            self.say(found)
        return None

    def names(self, module: str) -> bool:
        """True if it names a module, also if it is of another Warp."""
        return (index := self._indexed(module)) is not None and module in index.modules

    @property
    def title(self) -> str:
        """Its name and version."""
        return f"{found.name} {found.version}" if isinstance(found := self.loaded, KernelIndex) else self.folder

    @property
    def reason_unusable(self) -> str:
        """Why nothing of it can serve; empty if it can."""
        if not isinstance(found := self.loaded, KernelIndex):
            return found
        return "" if found.warp == self.warp else f"it was made for Warp {found.warp}, and this is Warp {self.warp}"

    def summary(self) -> str:
        """Its name, folder and content, in words."""
        text = f"{self.title} in {self.files.root}"
        if isinstance(found := self.loaded, KernelIndex):
            archs = sorted({row.arch for name in found.modules for row in found.targets(name)})
            text += f": {len(found.modules)} modules for {', '.join(f'sm_{arch}' for arch in archs)}"
        return text

    def find(self, kind: str, key: CacheKey) -> Packaged | None:
        """What it has for a key; None if it lacks it."""
        if (index := self._indexed(key.digest)) is None or self.reason_unusable:
            return None
        try:
            row = index.payload(kind, key.digest)
        except DamagedError as error:
            self.say(str(error))
            return None
        return None if row is None else Packaged(self, Manifest(key, *row, 0, 0, {PACKAGE: self.title}))

    def read(self, manifest: Manifest) -> bytes | None:
        """A payload, verified by SHA-256. None if it is missing or damaged, which is said once."""
        name = f"{manifest.payload_sha256}{SUFFIX}"
        try:
            packed, _ = read_bounded(self.files, name, MAX_PAYLOAD_BYTES)
            payload = _unpacked(packed, manifest.payload_bytes)
            manifest.check_payload(payload, full=True)
            return payload
        except unless_signalled(OSError, DamagedError) as error:
            self.say(f"{name[:12]}: {reason_of(error)}")
            return None

    def reason_missed(self, module: str, arch: int, block_dim: int, toolchain: str) -> str:
        """Why a module that it names did not come from it.

        Args:
            toolchain: As in the index.
        """
        if (index := self.index) is None or self.reason_unusable:
            return self.reason_unusable
        rows = index.targets(module)
        if arch not in (archs := sorted({row.arch for row in rows})):
            return f"it has it for {', '.join(f'sm_{one}' for one in archs)}, and not for sm_{arch}"
        blocks = {row.block_dim: row for row in rows if row.arch == arch}
        if (found := blocks.get(block_dim)) is None:
            return f"it has it with {', '.join(map(str, sorted(blocks)))} threads per block, and not with {block_dim}"
        if found.linked and index.toolchain != toolchain:
            return f"it was made with {index.toolchain or 'no toolchain'}, and this is {toolchain or 'without one'}"
        return "it has it from another source, or with other options or constants"

    def say(self, reason: str) -> None:
        """Warn, once for each package, of what keeps it from serving."""
        if _said.add(str(self.files.path(""))):
            warn(
                f"kernel package {self.title} in {self.place}: {reason}. What it does not serve is built. "
                "Remedy: install it again, for this Warp, or name the packages to use: WARP_TILES_KERNEL_PACKAGES"
            )


@dataclass(frozen=True)
class Packaged:
    """An entry of a package that has not been read."""

    package: KernelPackage
    manifest: Manifest

    def entry(self) -> Entry | None:
        """The entry; None if it is missing or damaged."""
        payload = self.package.read(self.manifest)
        return None if payload is None else Entry(payload, self.manifest)


def package_of(entry: Entry | None) -> str:
    """The package that an entry came from; empty for another place."""
    return "" if entry is None else str(entry.manifest.info.get(PACKAGE, ""))


def pack(payload: bytes) -> bytes:
    """The content of a payload's file."""
    import lzma

    return lzma.compress(payload)


def _unpacked(data: bytes, size: int) -> bytes:
    try:
        import lzma
    except ImportError as error:
        raise DamagedError("this Python was built without the module lzma, which unpacks it") from error
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_UNPACKER_BYTES)
    try:
        found = unpacker.decompress(data, size + 1)
    except lzma.LZMAError as error:
        raise DamagedError(f"it is not compressed as it was written, or needs too much memory: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise DamagedError(f"it is cut short, or has not the {size} bytes of its index")
    return found


class KernelPackages:
    """The packages that a setting chooses, in the order of ``sys.path``. Nothing is read before the first question.

    Args:
        chosen: ``auto`` for all, or names with commas between them.
        warp: Version of the installed Warp and of its CUDA.
        places: Folders that hold Python packages. Relative ones are left out, because whoever fills the working folder
            would choose what they name.
    """

    def __init__(self, chosen: str, warp: str, places: Sequence[str]) -> None:
        self._names = None if chosen == "auto" else {name.replace("-", "_") for name in chosen.split(",")}
        self._warp = warp
        self._places = dict.fromkeys(place for place in places if isinstance(place, str) and os.path.isabs(place))

    @cached_property
    def found(self) -> tuple[KernelPackage, ...]:
        """The packages. Their indexes are not read."""
        return tuple(
            KernelPackage(place, folder, self._warp)
            for place in self._places
            for folder in _folders(os.path.join(place, NAMESPACE))
            if self._names is None or folder in self._names
        )

    def naming(self, module: str) -> Iterator[KernelPackage]:
        """The packages that name a module, those of another Warp included."""
        return (one for one in self.found if one.names(module))

    def serve(self, module: str) -> bool:
        """True if a package may have a module. Warns of those that name it and are of another Warp."""
        named = list(self.naming(module))
        for one in named:
            if one.reason_unusable:
                one.say(one.reason_unusable)
        return any(not one.reason_unusable for one in named)

    def find(self, kind: str, key: CacheKey) -> Packaged | None:
        """What the first package that knows a key has for it."""
        return next((found for one in self.found if (found := one.find(kind, key)) is not None), None)

    def planned(self, module: str, arch: int, block_dim: int) -> str:
        """What a plan says about a module; empty if no package names it."""
        parts = []
        for one in self.naming(module):
            targets = one.index.targets(module) if one.index is not None else []
            has = not one.reason_unusable and any((row.arch, row.block_dim) == (arch, block_dim) for row in targets)
            reason = one.reason_missed(module, arch, block_dim, "")
            parts.append(
                f"kernel package {one.title} " + ("has this module" if has else f"lacks this module: {reason}")
            )
        return "; ".join(parts)

    def missed(self, module: str, arch: int, block_dim: int, toolchain: str) -> str:
        """Why a module did not come from a package; empty if no package names it."""
        reasons = (
            f"{one.title}: {one.reason_missed(module, arch, block_dim, toolchain)}" for one in self.naming(module)
        )
        return "; ".join(reasons)

    def shared_modules(self) -> Iterator[tuple[KernelPackage, KernelPackage, int]]:
        """Pairs of packages with equal keys of modules, and the number of these. The first one of a pair serves."""
        for first, other in combinations(self.found, 2):
            here, there = (
                set(one.index.keys.get(MODULE, ())) if one.index is not None else set() for one in (first, other)
            )
            if count := len(here & there):
                yield first, other, count


def _folders(place: str) -> list[str]:
    with suppressed(OSError), os.scandir(place) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return []


def payload_row(payload: bytes) -> tuple[str, int, int]:
    """The row of a payload in an index."""
    return hashlib.sha256(payload).hexdigest(), zlib.crc32(payload), len(payload)
