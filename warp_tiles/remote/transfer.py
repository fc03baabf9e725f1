"""Copies entries between a cache and a remote store, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from warp_tiles.cache import Cache, CacheKey
from warp_tiles.cache._paths import is_digest
from warp_tiles.remote.statistics import summed
from warp_tiles.remote.store import SIGNED_BY, RemoteStore
from warp_tiles.util.threads import side_by_side

_SIDE_BY_SIDE = 16


@dataclass(frozen=True)
class Transfer:
    """The result of a push or pull.

    Attributes:
        moved: Entries that were written.
        present: Entries that the other side had.
        skipped: Entries of another toolchain or of another signer, and those that were refused.
        failed: Entries that could not be written.
        moved_bytes: Payloads of the written entries.
    """

    moved: int = 0
    present: int = 0
    skipped: int = 0
    failed: int = 0
    moved_bytes: int = 0

    def __add__(self, other: Transfer) -> Transfer:
        return summed(self, other)


def is_built_by(key: CacheKey, toolchain: Mapping[str, str]) -> bool:
    """Returns True if the compiler and the linker of a key are those of a toolchain.

    Args:
        key: The key of an entry.
        toolchain: The digests ``compiler`` and ``linker``.
    """
    named = {field.label: field.shown for field in key.fields if field.label in toolchain}
    return "compiler" in named and all(toolchain[label] == digest for label, digest in named.items())


def push(
    cache: Cache, remote: RemoteStore, kind: str, toolchain: Mapping[str, str], done: Callable[[], None]
) -> Transfer:
    """Sign the entries of a cache that this toolchain built, and write those that the store lacks.

    Entries that were fetched are left to those who signed them.

    Args:
        cache: The cache.
        remote: The store.
        kind: The kind of its entries.
        toolchain: See :func:`is_built_by`.
        done: Called after each entry.

    Raises:
        RemoteError: There is no signing key.
        CacheError: The cache cannot be read.
    """

    def one(digest: str) -> Transfer:
        try:
            if remote.has(kind, digest):
                return Transfer(present=1)
            entry = cache.get(digest)
            if entry is None or SIGNED_BY in entry.manifest.info or not is_built_by(entry.manifest.key, toolchain):
                return Transfer(skipped=1)
            if not remote.push(kind, entry):
                return Transfer(failed=1)
            return Transfer(moved=1, moved_bytes=len(entry.payload))
        finally:
            done()

    return sum(side_by_side(one, [item.key for item in cache.entries()], _SIDE_BY_SIDE), Transfer())


def pull(cache: Cache, remote: RemoteStore, kind: str, done: Callable[[], None]) -> Transfer:
    """Fetch and verify all entries of a store that are for this toolchain.

    Args:
        cache: The cache.
        remote: The store.
        kind: The kind of its entries.
        done: Called after each entry.

    Raises:
        RemoteError: The store does not answer, or cannot be listed.
    """

    def one(digest: str) -> Transfer:
        try:
            if cache.manifest(digest) is not None:
                return Transfer(present=1)
            entry = remote.fetch(kind, digest)
            if entry is None:
                return Transfer(skipped=1)
            stored = cache.put(entry.manifest.key, entry.payload, entry.manifest.info)
            if not stored.manifest.payload_mtime_ns:
                return Transfer(failed=1)
            return Transfer(moved=1, moved_bytes=len(entry.payload))
        finally:
            done()

    digests = [name.rpartition("/")[2] for name in remote.names(f"{kind}/")]
    return sum(side_by_side(one, [digest for digest in digests if is_digest(digest)], _SIDE_BY_SIDE), Transfer())
