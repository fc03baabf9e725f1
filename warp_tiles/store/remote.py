"""A remote store behind the cache: it answers in time with a signed entry, or it is a miss.

See :mod:`warp_tiles.store.connection` for a store that does not answer.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError

from warp_tiles.errors import RemoteError
from warp_tiles.store import LAYOUT, SIGNED_BY, object_name
from warp_tiles.store.cache import Upstream
from warp_tiles.store.client import MissingObjectError, NotSupportedError
from warp_tiles.store.connection import Connection
from warp_tiles.store.envelope import OtherToolchainError, RefusedError, Wanted, check_statement, pack, unpack
from warp_tiles.store.keys import PublicKey, SigningKey
from warp_tiles.store.manifest import Entry
from warp_tiles.store.paths import is_digest
from warp_tiles.util.signals import raise_if_signalled
from warp_tiles.util.threads import wait_result

PROBE = f"{LAYOUT}/store.json"


class RemoteStore(Connection):
    """A store of signed entries. It connects in the background as soon as it is made.

    Args:
        trusted: The keys whose signatures count, by key id.
        wait_s: The longest time to wait for an entry.
        toolchain: Returns the compiler of a kind of entries, and for modules the linker, as text.
        signer: Signs entries that are written; None to write none.
        clock: Returns seconds. The differences are the waits for entries.
    """

    def __init__(
        self,
        url: str,
        trusted: Mapping[str, PublicKey],
        wait_s: float,
        toolchain: Callable[[str], str],
        signer: SigningKey | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(url, PROBE, wait_s)
        self.trusted, self.signer = trusted, signer
        self._toolchain, self._clock = toolchain, clock

    # ---- reading

    def fetch(self, kind: str, key: str) -> Entry | None:
        """Fetch and verify an entry. Its info names the key that signed it, as ``signed_by``.

        Args:
            kind: ``ltoir``, ``module`` or ``records``.
            key: Hex digest of the key.

        Returns:
            The entry, or None if the store does not answer with it in time.
        """
        return self.ask(kind, key)[0]

    def ask(self, kind: str, key: str) -> tuple[Entry | None, bool]:
        """Fetch an entry as :meth:`fetch` does, and say whether the store has answered.

        Returns:
            The entry or None, and False if the request failed, so that it is not known whether there is an entry.
        """
        if not self.trusted:
            self.say("no key is trusted, so nothing is loaded from it; `warp-tiles keys trust PUBLIC` adds one")
            return None, True
        start = self._clock()
        answer = self.answer(lambda: (self._fetch(kind, key),))
        found = None if answer is None else answer[0]
        self.count_wait(self._clock() - start, 0.0 if found is None else _build_seconds(found))
        return found, answer is not None

    def _fetch(self, kind: str, key: str) -> Entry | None:
        wanted = Wanted(kind, key, self._toolchain(kind))
        client = self.client()
        try:
            entry, signer = unpack(client.read(object_name(kind, key)), wanted, self.trusted)
        except (MissingObjectError, OtherToolchainError) as error:
            what = "no entry" if isinstance(error, MissingObjectError) else "an entry of another toolchain"
            self.say(f"it has {what} for {kind} {key[:12]}", about=what, level=logging.INFO)
            return None
        except RefusedError as error:
            self.say(f"its answer for {kind} {key[:12]} is refused: {error}", about="refused")
            return None
        assert signer is not None
        return entry.with_info({SIGNED_BY: signer.key_id})

    # ---- writing

    def push(self, kind: str, entry: Entry) -> bool:
        """Sign an entry and write it. A failure is said once. Returns True if it was written.

        Raises:
            RemoteError: There is no signing key.
        """
        signer = self.signer
        if signer is None:
            raise RemoteError("nothing can be written without a signing key", remedy="set WARP_TILES_SIGNING_KEY")
        data = pack(kind, entry, self._toolchain(kind), signer)
        name = object_name(kind, entry.key)
        return bool(self.answer(lambda: self.client().write(name, data)))

    def remove(self, kind: str, key: str) -> None:
        """Remove an entry, if the store does that."""
        self.answer(lambda: self.client().remove(object_name(kind, key)))

    def has(self, kind: str, key: str) -> bool:
        """Returns True if the store has an entry with a sound, trusted statement. Its payload is not read."""
        return bool(self.answer(functools.partial(self._has, kind, key)))

    def _has(self, kind: str, key: str) -> bool:
        wanted = Wanted(kind, key, self._toolchain(kind))
        try:
            check_statement(self.client().read(object_name(kind, key)), wanted, self.trusted)
        except (MissingObjectError, RefusedError):
            return False
        return True

    def keys(self, kind: str) -> list[str]:
        """The keys of the entries of a kind, in order.

        Raises:
            RemoteError: The store does not answer, or cannot be listed.
        """
        try:
            names = wait_result(self._threads.submit(lambda: list(self.client(self.wait_s).names(f"{LAYOUT}/{kind}/"))))
        except (FutureTimeoutError, NotSupportedError, OSError) as error:
            raise_if_signalled(error)
            raise RemoteError(
                f"the remote store {self.url} cannot be listed: {error or 'no answer'}",
                remedy="plain HTTP servers have no lists; use WebDAV, an object store or a folder",
            ) from error
        return sorted(filter(is_digest, (name.rpartition("/")[2] for name in names)))

    def upstream(self, kind: str, key: str) -> Upstream:
        """The part of the store in a lookup: the entry if it has one, else the function that receives a new one."""
        found = self.fetch(kind, key)
        pushes = found is None and self.signer is not None
        return Upstream(found, functools.partial(self.push, kind) if pushes else None)


def _build_seconds(entry: Entry) -> float:
    """The time of an entry's build, as its builder noted it."""
    found = entry.manifest.info.get("build_seconds")
    return float(found) if isinstance(found, (int, float)) else 0.0
