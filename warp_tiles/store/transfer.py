"""Copies entries between a cache and a remote store, many at a time, and between caches by a bundle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from warp_tiles.errors import CacheError
from warp_tiles.store import AHEAD, ANY_TOOLCHAIN, SIGNED_BY
from warp_tiles.store.bundle import Bundle, write_bundle
from warp_tiles.store.cache import Cache
from warp_tiles.store.envelope import pack
from warp_tiles.store.key import CacheKey
from warp_tiles.store.keys import PublicKey, SigningKey
from warp_tiles.store.remote import RemoteStore
from warp_tiles.util.threads import side_by_side

_SIDE_BY_SIDE = 16


@dataclass(frozen=True)
class Transfer:
    """The result of a push or pull.

    Attributes:
        present: Entries that the other side had.
        skipped: Entries of another toolchain or of another signer, and those that were refused.
    """

    moved: int = 0
    present: int = 0
    skipped: int = 0
    failed: int = 0
    moved_bytes: int = 0

    def __add__(self, other: Transfer) -> Transfer:
        return Transfer(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other))))


def is_built_by(key: CacheKey, toolchain: Mapping[str, str]) -> bool:
    """True if the digests of compiler, linker and Warp's library that a key names are those of a toolchain."""
    named = {field.label: field.shown for field in key.fields if field.label in toolchain}
    return not named.keys().isdisjoint(("compiler", "warp")) and all(
        toolchain[label] == digest for label, digest in named.items()
    )


def push(
    cache: Cache,
    remote: RemoteStore,
    toolchain: Mapping[str, str],
    done: Callable[[], None],
    keys: Collection[str] | None = None,
) -> Transfer:
    """Sign the entries of a cache that this toolchain built, and write those that the store lacks.

    Entries that were fetched are left to those who signed them. ``keys`` are those that the user names; None for all
    but modules that no launch has generated. Raises a RemoteError without a signing key, and a CacheError if the cache
    cannot be read.
    """

    def push_entry(digest: str) -> Transfer:
        try:
            is_there = remote.has(cache.object, digest)
            if is_there is None:
                return Transfer(failed=1)
            if is_there:
                return Transfer(present=1)
            entry = cache.get(digest)
            known = {} if entry is None else entry.manifest.info
            is_left_out = SIGNED_BY in known or (AHEAD in known and keys is None)
            if entry is None or is_left_out or not is_built_by(entry.manifest.key, toolchain):
                return Transfer(skipped=1)
            if not remote.push(cache.object, entry):
                return Transfer(failed=1)
            return Transfer(moved=1, moved_bytes=len(entry.payload))
        finally:
            done()

    wanted = [item.key for item in cache.entries()] if keys is None else list(keys)
    return sum(side_by_side(push_entry, wanted, _SIDE_BY_SIDE), Transfer())


def pull(cache: Cache, remote: RemoteStore, done: Callable[[], None]) -> Transfer:
    """Fetch and verify all entries of a store that are for this toolchain. Raises RemoteError without a list."""

    def pull_entry(digest: str) -> Transfer:
        try:
            if cache.manifest(digest) is not None:
                return Transfer(present=1)
            entry, has_replied = remote.ask(cache.object, digest)
            if entry is None:
                return Transfer(skipped=1) if has_replied else Transfer(failed=1)
            if not cache.add(entry).is_stored:
                return Transfer(failed=1)
            return Transfer(moved=1, moved_bytes=len(entry.payload))
        finally:
            done()

    return sum(side_by_side(pull_entry, remote.keys(cache.object), _SIDE_BY_SIDE), Transfer())


@dataclass(frozen=True)
class BundleReport:
    """The result of an export or import.

    Attributes:
        added: Entries written to the bundle, or to the cache.
        present: Entries of an import that the cache already had.
        skipped: Keys of an export whose entry is damaged or incomplete, or is a module that the signer does not vouch
            for, because no launch has generated its source.
    """

    added: int = 0
    present: int = 0
    skipped: tuple[str, ...] = ()
    payload_bytes: int = 0
    signed: bool = False


def export(
    caches: Iterable[Cache], path: Path, signer: SigningKey | None, only: Sequence[tuple[Cache, str]] = ()
) -> BundleReport:
    """Write entries of caches to a bundle, by default every sound one. An existing file is replaced.

    Raises a CacheError if one of ``only`` has no sound entry, a folder is refused or unreadable, or the file cannot be
    written.
    """
    wanted = only or [(cache, item.key) for cache in caches for item in cache.entries()]
    skipped: list[str] = []
    sizes: list[int] = []

    def objects() -> Iterator[tuple[str, str, bytes]]:
        for cache, key in sorted(wanted, key=lambda pair: (pair[0].object, pair[1])):
            entry = cache.read_verified(key)
            is_foreign = entry is not None and AHEAD in entry.manifest.info and SIGNED_BY not in entry.manifest.info
            if entry is not None and (only or signer is None or not is_foreign):
                sizes.append(len(entry.payload))
                yield cache.object, key, pack(cache.object, entry, ANY_TOOLCHAIN, signer)
            elif only:
                raise CacheError(f"no sound entry of key {key} is stored", remedy="list the cache for its keys")
            else:
                skipped.append(key)

    write_bundle(path, objects())
    return BundleReport(len(sizes), 0, tuple(skipped), sum(sizes), signer is not None)


def import_bundle(caches: Iterable[Cache], path: Path, trusted: Mapping[str, PublicKey]) -> BundleReport:
    """Add the entries of a bundle to the caches of their kinds. A stored key keeps its entry.

    The whole bundle is verified before the first entry is stored. It may be unsigned: the user vouches for it. Raises a
    BundleError if it cannot be used, and then the caches are unchanged, or a CacheError if entries cannot be stored.
    """
    added = present = size = 0
    with Bundle(path, trusted, unsigned=True) as bundle:
        bundle.check()
        for cache in caches:
            cache.check_trust()
            names = bundle.names(cache.object)
            missing = [key for key in names if cache.get(key) is None]
            present += len(names) - len(missing)
            for key in missing:
                entry = bundle.read(cache.object, key)
                if not cache.add(entry).is_stored:
                    raise CacheError(
                        f"an entry of {path} cannot be stored in {cache.root}: {cache.faults[-1].reason}",
                        cache.faults[-1].remedy,
                    )
                added, size = added + 1, size + len(entry.payload)
    return BundleReport(added, present, (), size)
