"""Bundles: objects as in a remote store, signed or not, in one ZIP file. Exports and deployments are bundles.

    v1/ltoir/ab/<key digest>, v1/module/ab/<key digest>     entries of a cache
    v1/records/ab/<key digest>                              tuning records
    v1/toolchain/ab/<key digest>                            facts about the toolchain of a deployment

Nothing is compressed, because cubins and LTO-IR hardly shrink. Nothing is ever extracted to a path.
"""

from __future__ import annotations

import io
import logging
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from warp_tiles.errors import BundleError
from warp_tiles.store import LAYOUT, LTOIR, MODULE, RECORDS, SIGNED_BY, TOOLCHAIN, object_name
from warp_tiles.store.cache import Upstream
from warp_tiles.store.envelope import RefusedError, Wanted, unpack
from warp_tiles.store.folder import MAX_PAYLOAD_BYTES
from warp_tiles.store.keys import PublicKey
from warp_tiles.store.manifest import Entry
from warp_tiles.util.files import open_input, open_output

log = logging.getLogger("warp_tiles")
#: The largest number of objects. Each has about 120 bytes in the directory of the file.
MOST_OBJECTS = 50_000
_MAX_READ_BYTES = 8 << 20  # more than the directory of so many objects
_CHUNK_BYTES = 1 << 16
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal objects give an equal file
_NAME = re.compile(rf"{LAYOUT}/({LTOIR}|{MODULE}|{RECORDS}|{TOOLCHAIN})/([0-9a-f]{{2}})/(\2[0-9a-f]{{62}})")
_HEADER_BYTES = 30
_END, _END_BYTES = b"PK\5\6", 22
_DAMAGE = (OSError, ValueError, LookupError, EOFError, NotImplementedError, zipfile.BadZipFile, RefusedError)


def write_bundle(path: Path, objects: Iterable[tuple[str, str, bytes]]) -> None:
    """Write a bundle, whole or not at all.

    Args:
        path: The file.
        objects: Kind, key and content of each object. The order is that of the file.

    Raises:
        BundleError: It cannot be written, or would have too many objects.
    """
    try:
        # a FIFO or an open file cannot be sought in, which the library needs
        with open_output(path) as stream, tempfile.TemporaryFile() as whole:
            with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
                for count, (kind, key, data) in enumerate(objects):
                    if count == MOST_OBJECTS:
                        raise BundleError(
                            f"the bundle {path} would have more than {MOST_OBJECTS} objects",
                            remedy="export the entries in several bundles, with --key",
                        )
                    archive.writestr(zipfile.ZipInfo(object_name(kind, key), _EPOCH), data)
            whole.seek(0)
            shutil.copyfileobj(whole, stream)
    except OSError as error:
        raise BundleError(
            f"the bundle {path} cannot be written: {error.strerror or error}",
            remedy="name a file in an existing folder that you may write, on a disk with space",
        ) from error


class _Input(io.BufferedReader):
    """A file that is never read in large parts, as a ZIP file may demand."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(_MAX_READ_BYTES + 1 if size is None or not 0 <= size <= _MAX_READ_BYTES else size)
        if len(data) > _MAX_READ_BYTES:
            raise zipfile.BadZipFile(f"its directory has more than {_MAX_READ_BYTES} bytes")
        return data


class Bundle:
    """A bundle that is read. It stays open, and is safe for threads.

    Args:
        path: The file.
        trusted: The keys whose signatures count, by key id.
        unsigned: True to accept objects that nobody signed, as the import of a user does.

    Raises:
        BundleError: It is no bundle. Objects are verified when they are read.
    """

    def __init__(self, path: Path, trusted: Mapping[str, PublicKey], *, unsigned: bool = False) -> None:
        self.path = path
        self.trusted = trusted
        self._unsigned = unsigned
        self._said: set[str] = set()
        self._files = ExitStack()
        try:
            with self._refusals():
                stream = self._files.enter_context(_Input(open_input(path).detach()))
                _check_end(stream)
                self._archive = self._files.enter_context(zipfile.ZipFile(stream))
                self._keys = _objects_of(self._archive)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._files.close()

    def names(self, kind: str) -> list[str]:
        """The keys of a kind, in order."""
        return sorted(key for known, key in self._keys if known == kind)

    def check(self) -> None:
        """Verify every object.

        Raises:
            BundleError: One of them is refused.
        """
        for kind, key in sorted(self._keys):
            self.read(kind, key)

    def read(self, kind: str, key: str, most_bytes: int = MAX_PAYLOAD_BYTES) -> Entry:
        """A verified entry of any toolchain. If it is signed, its info names the key as ``signed_by``.

        Raises:
            BundleError: The bundle lacks it, or it is refused, or its payload has more than ``most_bytes``.
        """
        with self._refusals(f"{kind} {key[:12]}: "):
            return self._read(Wanted(kind, key, None, self._unsigned, most_bytes))

    def fetch(self, kind: str, key: str, toolchain: str) -> Entry | None:
        """A verified entry; None if the bundle lacks it. A damaged one is reported once."""
        if (kind, key) not in self._keys:
            return None
        try:
            return self._read(Wanted(kind, key, toolchain, self._unsigned))
        except _DAMAGE as error:
            if key not in self._said:
                self._said.add(key)
                log.warning("the bundle %s: %s %s is refused: %s", self.path, kind, key[:12], error)
            return None

    def upstream(self, kind: str, key: str, toolchain: Callable[[], str]) -> Upstream:
        """The bundle's part in a lookup (:data:`warp_tiles.store.cache.AskUpstream`)."""
        return Upstream(self.fetch(kind, key, toolchain()))

    def _read(self, wanted: Wanted) -> Entry:
        with self._archive.open(object_name(wanted.kind, wanted.key)) as member:
            entry, signer = unpack(iter(lambda: member.read(_CHUNK_BYTES), b""), wanted, self.trusted)
        return entry if signer is None else entry.with_info({SIGNED_BY: signer.key_id})

    @contextmanager
    def _refusals(self, what: str = "") -> Iterator[None]:
        """Convert errors about the content of the file."""
        try:
            yield
        except _DAMAGE as error:
            reason = getattr(error, "strerror", None) or str(error) or "it is cut short"
            raise BundleError(
                f"the bundle {self.path} cannot be used: {what}{reason}",
                remedy="make it again (`warp-tiles cache export`, `tune export` or `bundle`), copy it unchanged, and "
                "trust its signer (`warp-tiles keys trust PUBLIC`)",
            ) from error


def _check_end(stream: io.BufferedReader) -> None:
    """Check that nothing follows the end of the ZIP file, as the library would accept."""
    if stream.seek(0, io.SEEK_END) < _END_BYTES:
        raise zipfile.BadZipFile("it is cut short")
    stream.seek(-_END_BYTES, io.SEEK_END)
    end = stream.read(_END_BYTES)
    stream.seek(0)
    if stream.read(len("manifest.json")) == b"manifest.json":
        raise zipfile.BadZipFile("it is an export of an earlier version")
    if not end.startswith(_END) or end[-2:] != b"\0\0":
        raise zipfile.BadZipFile("it is no ZIP file, is cut short, or data follows its end")


def _objects_of(archive: zipfile.ZipFile) -> set[tuple[str, str]]:
    """Kind and key of every member. Members follow each other without gaps, each with the name of an object.

    Raises:
        zipfile.BadZipFile: The file has anything else.
    """
    found: set[tuple[str, str]] = set()
    end = 0
    for info in archive.infolist():
        match = _NAME.fullmatch(info.filename)
        if match is None:
            raise zipfile.BadZipFile(f"the member {info.filename!r:.120} is no object of this version")
        if (match[1], match[3]) in found:
            raise zipfile.BadZipFile(f"the object {info.filename} occurs twice")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
            raise zipfile.BadZipFile(f"the object {info.filename} is no regular file")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits or info.file_size != info.compress_size:
            raise zipfile.BadZipFile(f"the object {info.filename} is compressed or encrypted")
        if info.header_offset != end:
            raise zipfile.BadZipFile(f"the object {info.filename} is not where the one before it ends")
        end += _HEADER_BYTES + len(info.filename) + info.file_size
        found.add((match[1], match[3]))
    if archive.start_dir != end:
        raise zipfile.BadZipFile("its directory is not where the last object ends")
    return found
