"""Deployment bundles: the signed objects of a remote store in one ZIP file, with the facts about its toolchain.

    v1/ltoir/ab/<key digest>, v1/module/ab/<key digest>, v1/records/ab/<key digest>     as in a remote store
    v1/toolchain                                                                        facts about the toolchain

Nothing is compressed, because cubins and LTO-IR hardly shrink.
"""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from warp_tiles.cache import CacheKey, Entry, Manifest
from warp_tiles.cache._store import Upstream
from warp_tiles.errors import BundleError
from warp_tiles.remote import ANY_TOOLCHAIN
from warp_tiles.remote.envelope import RefusedError, Wanted, pack, unpack
from warp_tiles.remote.keys import PublicKey, SigningKey
from warp_tiles.remote.store import LAYOUT, object_name
from warp_tiles.util.files import open_input, open_output

log = logging.getLogger("warp_tiles")
TOOLCHAIN = "toolchain"
_FACTS_KEY = CacheKey.of({"kind": "facts about a toolchain"})
_CHUNK_BYTES = 1 << 16
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal entries give an equal file


def toolchain_object(facts: Mapping[str, Any], signer: SigningKey) -> bytes:
    """The signed object of facts about a toolchain."""
    data = json.dumps(facts, sort_keys=True).encode("utf-8")
    entry = Entry(_FACTS_KEY.digest, data, Manifest.describe(_FACTS_KEY, data, {}))
    return pack(TOOLCHAIN, entry, ANY_TOOLCHAIN, signer)


def write_bundle(path: Path, facts: bytes, objects: Mapping[tuple[str, str], bytes]) -> None:
    """Write a bundle, whole or not at all.

    Args:
        path: The file.
        facts: See :func:`toolchain_object`.
        objects: Signed objects by kind and key.

    Raises:
        BundleError: It cannot be written.
    """
    named = {f"{LAYOUT}/{TOOLCHAIN}": facts, **{object_name(*name): data for name, data in objects.items()}}
    try:
        with open_output(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for name, data in sorted(named.items()):
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    except OSError as error:
        raise BundleError(
            f"the bundle {path} cannot be written: {error.strerror or error}",
            remedy="name a file in an existing folder that you may write, on a disk with space",
        ) from error


class Bundle:
    """A bundle that is read. It stays open, and is safe for threads.

    Args:
        path: The file.
        trusted: The keys whose signatures count, by key id.

    Raises:
        BundleError: It is not a bundle, or no trusted key signed it.
    """

    def __init__(self, path: Path, trusted: Mapping[str, PublicKey]) -> None:
        self.path = path
        self.trusted = trusted
        self._said: set[str] = set()
        self._files = ExitStack()
        try:
            stream = self._files.enter_context(open_input(path))
            self._archive = self._files.enter_context(zipfile.ZipFile(stream))
            self.facts: dict[str, Any] = json.loads(self._read(TOOLCHAIN, _FACTS_KEY.digest, ANY_TOOLCHAIN).payload)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile, RefusedError) as error:
            self.close()
            raise BundleError(
                f"the bundle {path} cannot be used: {error}",
                remedy="give a file of `warp-tiles bundle`, and trust its signer (`warp-tiles keys trust PUBLIC`)",
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._files.close()

    def names(self, kind: str) -> list[str]:
        """The keys of a kind."""
        prefix = f"{LAYOUT}/{kind}/"
        return sorted(name.rpartition("/")[2] for name in self._archive.namelist() if name.startswith(prefix))

    def fetch(self, kind: str, key: str, toolchain: str) -> Entry | None:
        """A verified entry; None if the bundle lacks it. A damaged one is reported once."""
        try:
            return self._read(kind, key, toolchain)
        except KeyError:
            return None
        except (RefusedError, OSError, ValueError, zipfile.BadZipFile) as error:
            if key not in self._said:
                self._said.add(key)
                log.warning("the bundle %s: %s %s is refused: %s", self.path, kind, key[:12], error)
            return None

    @contextmanager
    def lease(self, kind: str, key: str, toolchain: Callable[[], str]) -> Iterator[Upstream]:
        """The bundle's part in a lookup (:data:`warp_tiles.cache._store.AskUpstream`)."""
        yield Upstream(self.fetch(kind, key, toolchain()))

    def _read(self, kind: str, key: str, toolchain: str) -> Entry:
        name = f"{LAYOUT}/{TOOLCHAIN}" if kind == TOOLCHAIN else object_name(kind, key)
        with self._archive.open(name) as member:
            chunks = iter(lambda: member.read(_CHUNK_BYTES), b"")
            return unpack(chunks, Wanted(kind, key, toolchain), self.trusted)[0]
