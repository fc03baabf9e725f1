"""Entries, keys and stores that the tests of remote stores share."""

from pathlib import Path

from warp_tiles.store import LTOIR, object_name
from warp_tiles.store.envelope import pack
from warp_tiles.store.key import CacheKey, Entry, Manifest
from warp_tiles.store.keys import SigningKey
from warp_tiles.store.remote import RemoteStore

TOOLCHAIN = "NVRTC 12.9 0123456789ab, nvJitLink 12.9 ba9876543210"
SIGNER = SigningKey.generate()
STRANGER = SigningKey.generate()
TRUSTED = {SIGNER.public.key_id: SIGNER.public}


def key(name: object) -> CacheKey:
    return CacheKey.of({"compiler": "c" * 64, "name": str(name)})


def entry(name: object = "a", payload: bytes = b"payload of an entry " * 50, build_s: float = 2.5) -> Entry:
    return Entry(payload, Manifest.describe(key(name), payload, {"build_seconds": build_s, "symbol": "f"}))


def signed(what: Entry, kind: str = LTOIR, toolchain: str = TOOLCHAIN, signer: SigningKey = SIGNER) -> bytes:
    return pack(kind, what, toolchain, signer)


def connect(url: str | Path, *, wait_s: float = 5.0, signer: SigningKey | None = None, **given: object) -> RemoteStore:
    """A store at a URL or in a folder."""
    address = url.as_uri() if isinstance(url, Path) else url
    return RemoteStore(address, TRUSTED, wait_s, lambda kind: TOOLCHAIN, signer, **given)  # type: ignore[arg-type]


def write_object(folder: Path, what: Entry, data: bytes, kind: str = LTOIR) -> Path:
    """Put the object of an entry into the folder of a store."""
    path = folder / object_name(kind, what.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def ready(store: RemoteStore) -> RemoteStore:
    """The store, after it has answered."""
    store.require()
    return store
