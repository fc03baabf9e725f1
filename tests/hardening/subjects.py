"""The kinds of files that are read back: how to write one, and how to read it as a launch or a command does."""

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.store.test_kinds import HELD, files_of
from tests.tuning.tuning_records import key as record_key
from tests.tuning.tuning_records import timing
from warp_tiles.errors import BundleError, LockedError, RecordError
from warp_tiles.store import MODULE, STARTS, TOOLCHAIN, Kind
from warp_tiles.store.bundle import Bundle, write_bundle
from warp_tiles.store.cache import Cache
from warp_tiles.store.envelope import pack
from warp_tiles.store.key import CacheKey, Entry, Manifest
from warp_tiles.store.keys import SigningKey, TrustedKeys, trusted_keys
from warp_tiles.store.transfer import export, import_bundle
from warp_tiles.tuning.store import RecordStore
from warp_tiles.util.files import is_kept, write_digests

KEY = CacheKey.of({"compiler": "NVRTC 12.9", "m": "16", "options": ["-O3", "--std=c++17"], "source": "x" * 2000})
PAYLOAD = random.Random(1).randbytes(20_000)
TIMINGS = [timing({"tile_m": size, "block_dim": 128}, 10.0 + size, shared_bytes=1024) for size in (16, 32)]
SIGNER = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
ABSENT = object()


@dataclass(frozen=True)
class Subject:
    """One kind of file.

    Attributes:
        write: Writes it below a folder, and returns the file that is damaged.
        read: Reads it again as a new process would; :data:`ABSENT` if it counts as missing or is refused. An error of
            this package refuses it too.
        repaired: True if the damaged file is replaced or set aside when it is read.
        every_time: True for a file that a user names: each reader says that it is damaged, by an error or a message.
            Else it is said once.
        inside: True for a file in the cache's folder, where no link is followed.
        large: True for a payload, of which up to 256 MB are read.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    repaired: bool = True
    every_time: bool = False
    inside: bool = True
    large: bool = False


def _kept(kind: Kind, *, manifest: bool = False) -> Subject:
    """What a store keeps, or the manifest of an entry."""
    held = HELD[kind]

    def write(folder: Path) -> Path:
        held.write(held.open(folder / "cache"), 1)
        manifests = (folder / "cache" / kind.folder).glob("v2/keys/*/*")
        return next(manifests) if manifest else files_of(folder / "cache", kind)[0]

    def read(folder: Path) -> Any:
        found = held.read(held.open(folder / "cache"), 1)
        if kind.entries and found is not None:  # without its times
            return found.payload, dict(found.manifest.info), found.manifest.key
        return ABSENT if found is None else found

    return Subject(write, read, large=kind.entries and not manifest)


def _write_record(folder: Path) -> Path:
    RecordStore(folder / "cache", folder="tuning").merge(record_key("gemm"), TIMINGS)
    return next((folder / "cache/tuning/gemm").glob("*.json"))


def _write_output(folder: Path) -> Path:
    (folder / "a.cubin").write_bytes(PAYLOAD)
    (folder / "a.meta").write_bytes(b'{"kernel": 1}')
    write_digests(folder / "a.cubin", [folder / "a.meta"])
    return folder / "a.cubin"


def _read_output(folder: Path) -> Any:
    cubin, meta = folder / "a.cubin", folder / "a.meta"
    return (cubin.read_bytes(), meta.read_bytes()) if is_kept(cubin, [meta]) else ABSENT


def _read_shipped(folder: Path) -> Any:
    found = RecordStore(folder / "own", [folder / "cache/tuning"]).load(record_key("gemm"))
    return ABSENT if found is None else found.timings


def _write_bundle(folder: Path) -> Path:
    cache = Cache(folder / "cache")
    cache.put(KEY, PAYLOAD, {"symbol": "f", "seconds": 1.25})
    cache.put(CacheKey.of({"name": "other"}), b"other", {})
    export([cache], folder / "bundle", None)
    return folder / "bundle"


def _read_bundle(folder: Path) -> Any:
    cache = Cache(Path(tempfile.mkdtemp(dir=folder)))
    try:
        import_bundle([cache], folder / "bundle", {})
    except BundleError:
        assert cache.entries() == (), "a refused bundle leaves nothing"
        raise
    return [cache.get(key).payload for key in (KEY, CacheKey.of({"name": "other"}))]  # type: ignore[union-attr]


def _write_export(folder: Path) -> Path:
    _write_record(folder)
    RecordStore(folder / "cache", folder="tuning").export(folder / "records.json")
    return folder / "records.json"


def _read_export(folder: Path) -> Any:
    store = RecordStore(Path(tempfile.mkdtemp(dir=folder)))
    try:
        store.import_(folder / "records.json")
    except RecordError:
        assert store.records() == [], "a refused export leaves nothing"
        raise
    return store.load(record_key("gemm")).timings  # type: ignore[union-attr]


def _write_signed(folder: Path) -> Path:
    entry = Entry(PAYLOAD, Manifest.describe(KEY, PAYLOAD, {}))
    objects = [(kind, KEY.digest, pack(kind, entry, "NVRTC 12.9", SIGNER)) for kind in (MODULE, TOOLCHAIN)]
    write_bundle(folder / "signed", objects)
    TrustedKeys(folder / "config").add(SIGNER.public)
    return folder / "signed"


def _write_trusted(folder: Path) -> Path:
    _write_signed(folder)
    return folder / "config/trusted_keys"


def _read_signed(folder: Path) -> Any:
    """The entry and the facts that trusted keys signed. Under the policy ``locked``, a missing entry is an error."""
    with Bundle(folder / "signed", trusted_keys([], TrustedKeys(folder / "config"))) as bundle:
        facts = bundle.read(TOOLCHAIN, KEY.digest)
        found = bundle.fetch(MODULE, KEY.digest, "NVRTC 12.9")
        if found is None and KEY.digest not in bundle.names(MODULE):
            raise LockedError("the bundle lacks a module")
        return ABSENT if found is None else (found.payload, found.manifest.key, facts.payload)


def _output(suffix: str) -> Subject:
    return Subject(lambda folder: _write_output(folder).with_name(f"a.{suffix}"), _read_output, False, inside=False)


SUBJECTS: dict[str, Subject] = {
    **{kind.location: _kept(kind) for kind in HELD if kind is not STARTS},  # which have no digest
    **{f"manifest in {kind.location}": _kept(kind, manifest=True) for kind in HELD if kind.entries},
    "shipped record": Subject(_write_record, _read_shipped, repaired=False, inside=False),
    "cubin": _output("cubin"),
    "metadata": _output("meta"),
    "digest of a cubin": _output("cubin.sha256"),
    "bundle": Subject(_write_bundle, _read_bundle, repaired=False, every_time=True, inside=False),
    "export of records": Subject(_write_export, _read_export, repaired=False, every_time=True, inside=False),
    "signed bundle": Subject(_write_signed, _read_signed, repaired=False, every_time=True, inside=False),
    "trusted keys": Subject(_write_trusted, _read_signed, repaired=False, every_time=True),
}
