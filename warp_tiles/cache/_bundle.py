"""Bundles: entries of a cache in one file, for transport to another machine.

A bundle is an uncompressed tar file, because LTO-IR hardly shrinks. It holds ``manifest.json``, then each payload once
as ``objects/<sha256>.ltoir``, in the order of first mention. It is not signed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from warp_tiles.cache import _tar
from warp_tiles.cache._folder import MAX_PAYLOAD_BYTES, Folder
from warp_tiles.cache._manifest import Manifest
from warp_tiles.cache._sealed import DamagedError, parse_object, seal, unseal
from warp_tiles.errors import BundleError, CacheError
from warp_tiles.util.files import open_input, open_output

FORMAT = "warp_tiles-bundle"
SCHEMA = 1
MANIFEST_NAME = "manifest.json"
#: About 2,500 entries. To parse as many bytes of any JSON takes up to 250 MB.
MAX_MANIFEST_BYTES = 8 * 1024**2
_OBJECT_NAME = re.compile(r"objects/([0-9a-f]{64})\.ltoir")


@dataclass(frozen=True)
class BundleReport:
    """The result of an export or import.

    Attributes:
        added: Entries written to the bundle, or to the cache.
        present: Entries of an import that the cache already had.
        skipped: Keys of an export whose entry is damaged or incomplete.
        payload_bytes: Size of the payloads written.
    """

    added: int
    present: int
    skipped: tuple[str, ...]
    payload_bytes: int


def export(folder: Folder, path: Path, keys: Sequence[str] | None) -> BundleReport:
    """Write entries to a bundle.

    Raises:
        CacheError: A requested key has no sound entry, an entry changed meanwhile, there are too many entries, or the
            bundle cannot be written.
        OSError: The cache cannot be read.
    """
    chosen: list[Manifest] = []
    skipped: list[str] = []
    for digest in sorted({digest for digest, _ in folder.each_key()}) if keys is None else dict.fromkeys(keys):
        entry = folder.read_entry(digest, full=True)
        if entry is not None:
            chosen.append(replace(entry.manifest, payload_mtime_ns=0))
        elif keys is None:
            skipped.append(digest)
        else:
            raise CacheError(f"no sound entry of key {digest} is stored", remedy="list the cache for its keys")
    payloads = {manifest.payload_sha256: manifest for manifest in chosen}
    head = seal({"format": FORMAT, "schema": SCHEMA, "entries": [manifest.as_json() for manifest in chosen]})
    if len(head) > MAX_MANIFEST_BYTES:
        raise CacheError(
            f"a bundle of {len(chosen)} entries would have a manifest of {len(head)} bytes, the limit is "
            f"{MAX_MANIFEST_BYTES}",
            remedy="export the entries in several bundles, with --key",
        )
    with _writing(path), open_output(path) as stream:
        _write(stream, MANIFEST_NAME, head)
        for sha256, manifest in payloads.items():
            try:
                payload = folder.read_payload(manifest, full=True)
            except (DamagedError, OSError) as error:
                raise CacheError(
                    f"the entry {manifest.key.digest} changed during the export: {error}", remedy="export again"
                ) from error
            _write(stream, f"objects/{sha256}.ltoir", payload)
        stream.write(bytes(2 * _tar.BLOCK_BYTES))
    size = sum(manifest.payload_bytes for manifest in payloads.values())
    return BundleReport(len(chosen), 0, tuple(skipped), size)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Convert errors of the output, which are not those of the cache.

    Raises:
        CacheError: The bundle cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"the bundle {path} cannot be written: {error.strerror or error}",
            remedy="name a file in an existing folder that you may write, on a disk with space",
        ) from error


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a bundle for reading.

    Raises:
        CacheError: It is not a regular file, or cannot be read.
    """
    try:
        stream = open_input(path)
    except OSError as error:
        raise CacheError(
            f"the bundle {path} cannot be read: {error.strerror or error}",
            remedy="name a file that `warp-tiles cache export` wrote",
        ) from error
    with stream:
        yield stream


def _write(stream: BinaryIO, name: str, data: bytes) -> None:
    stream.write(_tar.header(name, len(data)))
    stream.write(data)
    stream.write(_tar.padding(len(data)))


def check(path: Path) -> tuple[Manifest, ...]:
    """Verify a whole bundle without writing anything.

    Returns:
        The manifests of its entries.

    Raises:
        BundleError: It is malformed or damaged, has another version, or lists an entry without a payload.
        CacheError: It is not a regular file, or cannot be read.
    """
    with _opened(path) as stream:
        return _walk(stream, None)


def import_checked(folder: Folder, path: Path, checked: Sequence[Manifest]) -> BundleReport:
    """Store the entries of a bundle that passed :func:`check`. The caller holds the store lock.

    Raises:
        BundleError: The file has changed since the check.
        OSError: An entry cannot be stored. The entries before it are stored.
    """
    importer = _Importer(folder)
    with _opened(path) as stream:
        if _walk(stream, importer) != tuple(checked):
            raise _tar.malformed("it changed while it was imported")
    return BundleReport(importer.added, importer.present, (), importer.payload_bytes)


class _Importer:
    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.added = 0
        self.present = 0
        self.payload_bytes = 0

    def take(self, manifests: Sequence[Manifest], payload: bytes) -> None:
        """Store one verified payload under each of its keys. Stored entries stay unchanged."""
        before = self.added
        for manifest in manifests:
            if self.folder.read_entry(manifest.key.digest) is not None:
                self.present += 1
                continue
            self.folder.store(manifest, payload)
            self.added += 1
        if self.added > before:
            self.payload_bytes += len(payload)


def _walk(stream: BinaryIO, importer: _Importer | None) -> tuple[Manifest, ...]:
    members = _tar.members(stream)
    name, size = next(members, ("", 0))
    if name != MANIFEST_NAME:
        raise _tar.malformed(f"its first member is {name!r:.120}, expected {MANIFEST_NAME!r}")
    if size > MAX_MANIFEST_BYTES:
        raise _tar.malformed(f"its manifest claims {size} bytes, the limit is {MAX_MANIFEST_BYTES}")
    manifests = _read_manifests(_read_exactly(stream, size, name))
    expected: dict[str, list[Manifest]] = {}
    for manifest in manifests:
        expected.setdefault(manifest.payload_sha256, []).append(manifest)
    seen: set[str] = set()
    for name, size in members:
        match = _OBJECT_NAME.fullmatch(name)
        if match is None:
            raise _tar.malformed(f"the member {name!r:.120} is not a payload's name and could leave the cache")
        sha256 = match.group(1)
        if sha256 in seen:
            raise _tar.malformed(f"the payload {sha256} occurs twice")
        if sha256 not in expected:
            raise _tar.malformed(f"no entry refers to the payload {sha256}")
        seen.add(sha256)
        users = expected[sha256]
        if any(size != manifest.payload_bytes for manifest in users):
            raise _tar.malformed(f"the payload {sha256} has {size} bytes, its entry says {users[0].payload_bytes}")
        payload = _read_exactly(stream, size, name)
        for index, manifest in enumerate(users):
            try:
                manifest.check_payload(payload, full=index == 0)
            except DamagedError as error:
                raise _tar.malformed(f"payload {sha256}: {error}") from error
        if importer is not None:
            importer.take(users, payload)
    if len(seen) != len(expected):
        raise _tar.malformed(f"{len(expected) - len(seen)} of {len(expected)} payloads are absent")
    return manifests


def _read_exactly(stream: BinaryIO, size: int, name: str) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise _tar.malformed(f"{name} is cut short at {len(data)} of {size} bytes")
    return data


def _read_manifests(data: bytes) -> tuple[Manifest, ...]:
    try:
        head = unseal(data)
    except DamagedError as error:
        _check_version(data)
        raise _tar.malformed(f"its manifest is damaged: {error}") from error
    if head.get("format") != FORMAT or head.get("schema") != SCHEMA:
        raise _version_error(head)
    entries = head.get("entries")
    if not isinstance(entries, list) or set(head) != {"format", "schema", "entries"}:
        raise _tar.malformed("its manifest has no list of entries, or unknown fields")
    manifests = []
    keys: set[str] = set()
    for index, body in enumerate(entries):
        if not isinstance(body, dict):
            raise _tar.malformed(f"entry {index} is not an object")
        try:
            manifest = Manifest.from_json(body)
        except DamagedError as error:
            raise _tar.malformed(f"entry {index}: {error}") from error
        if not 0 < manifest.payload_bytes <= MAX_PAYLOAD_BYTES:
            raise _tar.malformed(f"entry {index} claims a payload of {manifest.payload_bytes} bytes")
        if manifest.key.digest in keys:
            raise _tar.malformed(f"the key {manifest.key.digest} occurs twice")
        keys.add(manifest.key.digest)
        manifests.append(manifest)
    return tuple(manifests)


def _check_version(data: bytes) -> None:
    """Refuse a sound manifest of another format."""
    with suppress(DamagedError):
        head = parse_object(data)
        if "format" in head or "schema" in head:
            raise _version_error(head)


def _version_error(head: dict[str, object]) -> BundleError:
    return BundleError(
        f"the bundle has format {head.get('format')!r:.80}, schema {head.get('schema')!r:.80}; "
        f"this version reads {FORMAT!r}, schema {SCHEMA}",
        remedy="export it with the same version of warp_tiles",
    )
