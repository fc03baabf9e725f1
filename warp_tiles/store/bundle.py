"""Bundles: objects as in a remote store, signed or not, in one ZIP file. Exports and deployments are bundles.

    v1/ltoir/ab/<key digest>, v1/module/ab/<key digest>     entries of a cache
    v1/records/ab/<key digest>                              tuning records
    v1/toolchain/ab/<key digest>                            facts about the toolchain of a deployment

Nothing is compressed, because cubins and LTO-IR hardly shrink. Nothing is ever extracted to a path.

No byte of the file is signed but those of the objects. So this module reads only what it writes: local headers,
directory and end have one form, and a reader compares each of them with that form
(https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, sections 4.3.7, 4.3.12 and 4.3.14 to 4.3.16).
"""

from __future__ import annotations

import os
import re
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, NamedTuple

from warp_tiles.errors import BundleError, unless_signalled
from warp_tiles.store import FORM, KINDS, MAX_PAYLOAD_BYTES, TOOLCHAIN, object_name
from warp_tiles.store.documents import reason_of
from warp_tiles.store.envelope import RefusedError, UntrustedError, Wanted, unpack
from warp_tiles.store.key import Entry
from warp_tiles.store.keys import PublicKey
from warp_tiles.util.files import open_input, open_output
from warp_tiles.util.warn import WarnedTexts, log

#: The largest number of objects. Each has at most 138 bytes in the directory of the file.
MOST_OBJECTS = 50_000
_CHUNK_BYTES = 1 << 16
_OBJECTS = "|".join(kind.object for kind in KINDS if kind.object)
_NAME = re.compile(rf"{FORM}/({_OBJECTS})/([0-9a-f]{{2}})/(\2[0-9a-f]{{62}})")
_LOCAL = struct.Struct("<4s5H3L2H")
_RECORD = struct.Struct("<4s6H3L5H2L")
_OFFSET = struct.Struct("<2HQ")
_END = struct.Struct("<4sQ2H2L4Q 4sLQL 4s4H2LH")
_MOST_DIRECTORY_BYTES = MOST_OBJECTS * (_RECORD.size + len(object_name(TOOLCHAIN, "0" * 64)) + _OFFSET.size)
_VERSION, _DATE = 45, 33  # with 64-bit offsets; 1980-01-01, so that equal objects give an equal file


class _Member(NamedTuple):
    name: str
    size: int
    crc32: int

    @property
    def header(self) -> bytes:
        fields = (_VERSION, 0, 0, 0, _DATE, self.crc32, self.size, self.size, len(self.name), 0)
        return _LOCAL.pack(b"PK\3\4", *fields) + self.name.encode("ascii")

    def record(self, at: int) -> bytes:
        """Its record in the directory, with the offset of its header."""
        sizes = (self.crc32, self.size, self.size, len(self.name), _OFFSET.size)
        fields = (3 << 8 | _VERSION, _VERSION, 0, 0, 0, _DATE, *sizes, 0, 0, 0, 0o600 << 16, 0xFFFFFFFF)
        return _RECORD.pack(b"PK\1\2", *fields) + self.name.encode("ascii") + _OFFSET.pack(1, 8, at)


def _offsets(members: Iterable[_Member]) -> list[int]:
    """The offsets of the headers of members, which follow each other, and of the directory."""
    return [0, *accumulate(len(member.header) + member.size for member in members)]


def _directory(members: Sequence[_Member]) -> bytes:
    """What follows the members: the directory and the end of the file."""
    offsets = _offsets(members)
    records = b"".join(member.record(at) for member, at in zip(members, offsets))
    end = (b"PK\6\6", 44, _VERSION, _VERSION, 0, 0, len(members), len(members), len(records), offsets[-1])
    locator = (b"PK\6\7", 0, offsets[-1] + len(records), 1)
    return records + _END.pack(*end, *locator, b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)


def write_bundle(path: Path, objects: Iterable[tuple[str, str, bytes]]) -> None:
    """Write kinds, keys and contents of objects to a bundle, in order; whole, or not at all with a BundleError."""
    members: list[_Member] = []
    try:
        with open_output(path) as stream:
            for kind, key, data in objects:
                if len(members) == MOST_OBJECTS:
                    raise BundleError(
                        f"the bundle {path} would have more than {MOST_OBJECTS} objects",
                        remedy="export the entries in several bundles, with --key",
                    )
                members.append(_Member(object_name(kind, key), len(data), zlib.crc32(data)))
                stream.writelines((members[-1].header, data))
            stream.write(_directory(members))
    except unless_signalled(OSError) as error:
        raise BundleError(
            f"the bundle {path} cannot be written: {reason_of(error)}",
            remedy="name a file in an existing folder that you may write, on a disk with space",
        ) from error


def _read_directory(stream: BinaryIO) -> dict[tuple[str, str], tuple[int, _Member]]:
    """The objects of a file by kind and key, each with the offset of its header.

    Raises a RefusedError if it is not the directory that this module would write.
    """
    total = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, total - _END.size))
    try:
        size, at = _END.unpack(stream.read(_END.size))[8:10]
        if at + size + _END.size != total or size > _MOST_DIRECTORY_BYTES:
            raise RefusedError(f"it is no bundle, is cut short, or has more than {MOST_OBJECTS} objects")
        stream.seek(at)
        data = stream.read(size + _END.size)
        objects: dict[tuple[str, str], _Member] = {}
        read = 0
        while read < size:
            fields = _RECORD.unpack_from(data, read)
            name = data[read + _RECORD.size : read + _RECORD.size + fields[10]]
            match = _NAME.fullmatch(name.decode("ascii", "replace"))
            if match is None:
                raise RefusedError(f"the member {name!r:.120} is no object of this version")
            objects[match[1], match[3]] = _Member(match[0], fields[9], fields[7])
            read += _RECORD.size + len(name) + _OFFSET.size
    except struct.error as error:
        raise RefusedError("it is cut short") from error
    members = list(objects.values())
    if data != _directory(members):
        raise RefusedError("its directory is not as warp_tiles writes it, or names an object twice")
    return dict(zip(objects, zip(_offsets(members), members)))


class Bundle:
    """A bundle that is read. It stays open, and is safe for threads. Raises a BundleError if it is none.

    Objects are verified when they are read: against ``trusted``, the keys whose signatures count, by key id.
    ``unsigned`` accepts those that nobody signed, as the import of a user does.
    """

    def __init__(self, path: Path, trusted: Mapping[str, PublicKey], *, unsigned: bool = False) -> None:
        self.path = path
        self.trusted = trusted
        self._unsigned = unsigned
        self._said = WarnedTexts()
        self._lock = threading.Lock()
        with self._refusals():
            self._stream = open_input(path)
            try:
                self._members = _read_directory(self._stream)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()

    def names(self, kind: str) -> list[str]:
        return sorted(key for known, key in self._members if known == kind)

    def check(self) -> None:
        """Verify every object. Raises BundleError if one of them is refused."""
        for kind, key in sorted(self._members):
            self.read(kind, key)

    def read(self, kind: str, key: str, most_bytes: int = MAX_PAYLOAD_BYTES) -> Entry:
        """A verified entry of any toolchain. If it is signed, its info names the key as ``signed_by``.

        Raises a BundleError if it is missing, is refused, or has a payload of more than ``most_bytes``.
        """
        with self._refusals(f"{kind} {key[:12]}: "):
            return self._read(Wanted(kind, key, None, self._unsigned, most_bytes))

    def fetch(self, kind: str, key: str, toolchain: str) -> Entry | None:
        """A verified entry; None if the bundle lacks it. A damaged one is reported once."""
        if (kind, key) not in self._members:
            return None
        try:
            return self._read(Wanted(kind, key, toolchain, self._unsigned))
        except unless_signalled(OSError, RefusedError) as error:
            if self._said.add(key):
                log.warning("the bundle %s: %s %s is refused: %s", self.path, kind, key[:12], error)
            return None

    def _read(self, wanted: Wanted) -> Entry:
        return unpack(self._chunks(wanted), wanted, self.trusted)

    def _chunks(self, wanted: Wanted) -> Iterator[bytes]:
        if (wanted.kind, wanted.key) not in self._members:
            raise RefusedError("the bundle lacks it")
        at, member = self._members[wanted.kind, wanted.key]
        if self._at(at, len(member.header)) != member.header:
            raise RefusedError("its header is not as warp_tiles writes it")
        at += len(member.header)
        end, crc32 = at + member.size, 0
        while part := self._at(at, min(_CHUNK_BYTES, end - at)):
            at, crc32 = at + len(part), zlib.crc32(part, crc32)
            yield part
        if (at, crc32) != (end, member.crc32):
            raise RefusedError("it is cut short, or does not match its CRC-32")

    def _at(self, offset: int, size: int) -> bytes:
        with self._lock:
            self._stream.seek(offset)
            return self._stream.read(size)

    @contextmanager
    def _refusals(self, what: str = "") -> Iterator[None]:
        """Convert errors about the content of the file."""
        try:
            yield
        except unless_signalled(OSError, RefusedError) as error:
            reason = reason_of(error)
            commands = "`warp-tiles cache export`, `bundle`, `tune export` or `tune contribute`"
            remedy = f"make it again ({commands}), and copy it unchanged"
            if isinstance(error, OSError):
                remedy = "name a bundle that you may read"
            if isinstance(error, UntrustedError):
                remedy = "trust its signer, if you would run the signer's programs: `warp-tiles keys trust PUBLIC`"
            raise BundleError(f"the bundle {self.path} cannot be used: {what}{reason}", remedy) from error
