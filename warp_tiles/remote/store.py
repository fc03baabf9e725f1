"""A remote store behind the cache: it answers in time with a signed entry, or it is a miss.

See :mod:`warp_tiles.remote.connection` for a store that does not answer.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from warp_tiles.cache.manifest import Entry
from warp_tiles.cache.store import Upstream
from warp_tiles.errors import RemoteError
from warp_tiles.remote import LAYOUT, SIGNED_BY, object_name
from warp_tiles.remote.client import MissingObjectError, NotSupportedError, first_bytes
from warp_tiles.remote.connection import Connection
from warp_tiles.remote.envelope import OtherToolchainError, RefusedError, Wanted, check_statement, pack, unpack
from warp_tiles.remote.keys import PublicKey, SigningKey
from warp_tiles.util.processes import described, this_process

log = logging.getLogger("warp_tiles")
PROBE = f"{LAYOUT}/store.json"
#: Seconds that a process waits for other machines' builds, in all.
CLAIMS_S = 120.0
#: Seconds for which a claim counts, and after which a waiting machine says so.
CLAIM_VALID_S, CLAIM_PATIENCE_S = 60.0, 5.0
_CLAIM_BYTES = 4096
_POLL_S = 0.25


@dataclass(frozen=True)
class Claim:
    """An object that says which machine builds a key, so that others wait for it and do not build it too.

    Anybody who can write to a store can plant claims, and a machine can die with one. So a claim counts for a minute,
    and a process waits for claims only so long in all. A second build of a key does no harm.
    """

    data: bytes

    @classmethod
    def new(cls) -> Claim:
        """A claim of this process, from now on."""
        by = this_process().decode("utf-8", "replace")
        return cls(json.dumps({"time": time.time(), "by": by, "id": secrets.token_hex(8)}).encode("utf-8"))

    @property
    def counts(self) -> bool:
        """True if it is a claim, and younger than :data:`CLAIM_VALID_S`."""
        try:
            age_s = time.time() - float(json.loads(self.data)["time"])
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            return False
        return -CLAIM_VALID_S < age_s < CLAIM_VALID_S

    @property
    def holder(self) -> str:
        """The process, for a message."""
        try:
            return described(str(json.loads(self.data)["by"]).encode("utf-8", "replace"))
        except (ValueError, TypeError, LookupError, RecursionError):
            return described(b"")


class RemoteStore(Connection):
    """A store of signed entries. It connects in the background as soon as it is made.

    Args:
        url: Its URL.
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
        self._claims_left_s = CLAIMS_S

    # ---- reading

    def fetch(self, kind: str, key: str, *, signer: str = "") -> Entry | None:
        """Fetch and verify an entry. Its info names the key that signed it, as ``signed_by``.

        Args:
            kind: ``ltoir``, ``module`` or ``records``.
            key: Hex digest of the key.
            signer: Key id that has to have signed it; empty for any trusted one.

        Returns:
            The entry, or None if the store does not answer with it in time.
        """
        if not self.trusted:
            self.say("no key is trusted, so nothing is loaded from it; `warp-tiles keys trust PUBLIC` adds one")
            return None
        trusted = {name: key for name, key in self.trusted.items() if signer in ("", name)}
        start = self._clock()
        found = self.answer(functools.partial(self._fetch, kind, key, trusted))
        self.count_wait(self._clock() - start, 0.0 if found is None else _build_seconds(found))
        return found

    def _fetch(self, kind: str, key: str, trusted: Mapping[str, PublicKey]) -> Entry | None:
        wanted = Wanted(kind, key, self._toolchain(kind))
        client = self.client()
        try:
            entry, signer = unpack(client.read(object_name(kind, key)), wanted, trusted)
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

    def names(self, prefix: str) -> list[str]:
        """The names of the objects below a prefix.

        Raises:
            RemoteError: The store does not answer, or cannot be listed.
        """
        try:
            client = self.client(self.wait_s)
            return sorted(client.names(f"{LAYOUT}/{prefix}"))
        except (FutureTimeoutError, NotSupportedError, OSError) as error:
            raise RemoteError(
                f"the remote store {self.url} cannot be listed: {error or 'no answer'}",
                remedy="plain HTTP servers have no lists; use WebDAV, an object store or a folder",
            ) from error

    @contextlib.contextmanager
    def lease(self, kind: str, key: str, wait_s: float) -> Iterator[Upstream]:
        """Look for an entry, and let one machine build it if none has it.

        Machines wait for each other only if this one writes to the store and the store has conditional writes.

        Args:
            kind: ``ltoir`` or ``module``.
            key: Hex digest of the key.
            wait_s: Seconds to wait for another machine that builds it; negative for the longest.

        Yields:
            The entry if there is one, and the function that receives a new one.
        """
        found = self.fetch(kind, key)
        if found is not None or self.signer is None:
            yield Upstream(found)
            return
        claim, name = Claim.new(), object_name("claims", key)
        holder = self._claim(name, claim)
        if holder is not None:
            found, holder = self._wait_for(kind, key, claim, holder, wait_s)
        elif not self.off:
            # its last builder may have ended since the first question
            found = self.fetch(kind, key)
        try:
            yield Upstream(found, None if found is not None else functools.partial(self.push, kind))
        finally:
            if holder is None:
                self.answer(functools.partial(self._release, name, claim))

    def _wait_for(
        self, kind: str, key: str, claim: Claim, holder: Claim, wait_s: float
    ) -> tuple[Entry | None, Claim | None]:
        """Wait for another machine that builds an entry.

        Returns:
            The entry, and the claim that still counts; None if this process has it now.
        """
        start = time.monotonic()
        said = False
        while True:
            time.sleep(_POLL_S)
            with self._lock:
                self._claims_left_s -= _POLL_S
                left_s = self._claims_left_s
            found = self.fetch(kind, key)
            if found is not None or self.off:
                return found, holder
            other = self._claim(object_name("claims", key), claim)
            if other is None:
                return self.fetch(kind, key), None
            waited_s = time.monotonic() - start
            if waited_s > CLAIM_PATIENCE_S and not said:
                said = True
                log.warning("the remote store %s: waiting for %s, which builds %s", self.url, other.holder, key[:12])
            if 0 <= wait_s < waited_s or left_s <= 0:
                log.warning("the remote store %s: %s is built here too", self.url, key[:12])
                return None, other

    def _claim(self, name: str, claim: Claim) -> Claim | None:
        """Take the lead for a build. Returns the claim of another machine that has it; None if this one has it now."""

        def write() -> Claim | None:
            client = self.client()
            try:
                if client.write(name, claim.data, only_new=True):
                    return None
                other = Claim(first_bytes(client.read(name), _CLAIM_BYTES))
            except (NotSupportedError, MissingObjectError):  # it cannot be known, or was released just now
                return None
            if other.counts:
                return other
            client.write(name, claim.data)  # its machine has died
            return None

        return self.answer(write)

    def _release(self, name: str, claim: Claim) -> None:
        client = self.client()
        with contextlib.suppress(MissingObjectError):
            if first_bytes(client.read(name), _CLAIM_BYTES) == claim.data:  # no other process has taken it over
                client.remove(name)


def _build_seconds(entry: Entry) -> float:
    """The time of an entry's build, as its builder noted it."""
    found = entry.manifest.info.get("build_seconds")
    return float(found) if isinstance(found, (int, float)) else 0.0
