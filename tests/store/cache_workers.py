"""Helpers of the cache's tests, importable from processes that they start."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from warp_tiles.store.cache import AskUpstream, Cache
from warp_tiles.store.key import CacheKey, Entry


def key(name: object, **fields: str) -> CacheKey:
    return CacheKey.of({"problem": str(name), "options": ["-O3"], **fields})


def get_or_build(
    cache: Cache,
    wanted: CacheKey,
    build: Callable[[], tuple[bytes, Mapping[str, object]]],
    upstream: AskUpstream | None = None,
) -> tuple[Entry, bool]:
    """The entry of a key, and True if it did not have to be built."""
    with cache.lease(wanted, upstream) as lease:
        return (lease.found, True) if lease.found is not None else (lease.keep(*build()), False)


def payload(name: object, size: int = 1000) -> bytes:
    """Bytes that are unique to this name."""
    seed = hashlib.sha256(str(name).encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def fill(cache: Cache, *names: object, size: int = 1000) -> list[Entry]:
    return [cache.put(key(name), payload(name, size), {"name": str(name)}) for name in names]


def object_of(cache: Cache, entry: Entry) -> Path:
    sha256 = entry.manifest.payload_sha256
    return cache.root / "v2" / "objects" / sha256[:2] / f"{sha256}.ltoir"


def key_file_of(cache: Cache, entry: Entry) -> Path:
    return cache.root / "v2" / "keys" / entry.key[:2] / f"{entry.key}.json"


def files(root: Path) -> list[str]:
    """Sorted relative names of all files except locks."""
    found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(name for name in found if "/locks/" not in name)


def flip(path: Path, bit: int, *, keep_times: bool) -> None:
    """Flip one bit of a file, and optionally keep its modification time."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(data)
    if keep_times:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
