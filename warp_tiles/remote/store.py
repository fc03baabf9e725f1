"""A remote store behind the cache: it answers in time with a signed entry, or it is a miss.

No state of the store fails a build. A store that is down costs a process at most :data:`PATIENCE_S`; one that stops
answering costs it the setting ``remote_wait_s`` once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import TypeVar

from warp_tiles.cache._manifest import Entry
from warp_tiles.cache._store import Elsewhere
from warp_tiles.errors import RemoteError
from warp_tiles.remote import LTOIR, MODULE
from warp_tiles.remote.claims import MAX_BYTES as CLAIM_BYTES
from warp_tiles.remote.claims import PATIENCE_S as CLAIM_PATIENCE_S
from warp_tiles.remote.claims import Claim
from warp_tiles.remote.client import Client, MissingObjectError, NotSupportedError, first_bytes
from warp_tiles.remote.envelope import OtherToolchainError, RefusedError, Wanted, check_statement, pack, unpack
from warp_tiles.remote.keys import PublicKey, SigningKey, require_cryptography
from warp_tiles.remote.statistics import Statistics
from warp_tiles.util.threads import DaemonThreads
from warp_tiles.util.urls import without_password

log = logging.getLogger("warp_tiles")
T = TypeVar("T")
LAYOUT = "v1"
PROBE = f"{LAYOUT}/store.json"
KINDS = (LTOIR, MODULE)
#: Seconds that a process waits, once, to learn whether a store answers at all. The question is asked much earlier.
PATIENCE_S = 0.04
#: A process asks no more after so many failures in a row.
MOST_FAILURES = 3
#: An answer without an entry that takes longer counts as lost time.
SLOW_S = 0.2
#: Seconds that a process waits for other machines' builds, in all.
CLAIMS_S = 120.0
#: The fact of a fetched entry that names the key of its signer.
SIGNED_BY = "signed_by"
_THREADS = 32
_POLL_S = 0.25


def object_name(kind: str, key: str) -> str:
    """The name of an entry's object in a store."""
    return f"{LAYOUT}/{kind}/{key[:2]}/{key}"


@dataclass(frozen=True)
class RemoteSettings:
    """What a remote store needs.

    Attributes:
        url: Its URL.
        trusted: The keys whose signatures count, by key id.
        wait_s: The longest time to wait for an entry.
        toolchain: Returns the compiler of a kind of entries, and for modules the linker, as text.
        signer: Signs entries that are written; None to write none.
    """

    url: str
    trusted: Mapping[str, PublicKey]
    wait_s: float
    toolchain: Callable[[str], str]
    signer: SigningKey | None = None


class RemoteStore:
    """A store of signed entries. It connects in the background as soon as it is made.

    Args:
        given: Its settings.
        record: Receives counts.
    """

    def __init__(self, given: RemoteSettings, record: Callable[[Statistics], None] = lambda counts: None) -> None:
        self.given = given
        self.url = without_password(given.url)
        self._record = record
        self._threads = DaemonThreads(_THREADS, "warp_tiles_remote")
        self._lock = threading.Lock()
        self._patience_s = PATIENCE_S
        self._failures = 0
        self._lost_s = 0.0
        self._claims_left_s = CLAIMS_S
        self._off = ""
        self._said: set[str] = set()
        self._opened: Future[Client] = self._threads.submit(self._open)

    @property
    def trusted(self) -> Mapping[str, PublicKey]:
        """The keys whose signatures count, by key id."""
        return self.given.trusted

    @property
    def writes(self) -> bool:
        """True if builds are written to the store."""
        return self.given.signer is not None

    @property
    def off(self) -> str:
        """The reason why this process asks no more; empty while it does."""
        return self._off

    @property
    def is_up(self) -> bool:
        """True if the store has answered, and is asked."""
        opened = self._opened
        return not self._off and opened.done() and not opened.cancelled() and opened.exception() is None

    def close(self) -> None:
        """End the threads. Requests in flight are abandoned."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- reading

    def fetch(self, kind: str, key: str, *, signer: str = "", again: bool = False) -> Entry | None:
        """Fetch and verify an entry. Its info names the key that signed it, as ``signed_by``.

        Args:
            kind: One of :data:`KINDS`, or another.
            key: Hex digest of the key.
            signer: Key id that has to have signed it; empty for any trusted one.
            again: True if it was asked for before, so that another miss does not count.

        Returns:
            The entry, or None if the store does not answer with it in time.
        """
        if not self.given.trusted:
            self._say("no key is trusted, so nothing is loaded from it; `warp-tiles keys trust PUBLIC` adds one")
            return None
        trusted = {name: key for name, key in self.given.trusted.items() if signer in ("", name)}
        start = time.perf_counter()
        found = self._answer(functools.partial(self._fetch, kind, key, trusted, again))
        waited_s = time.perf_counter() - start
        if found is None:
            self._record(Statistics(waited_s=waited_s))
            self._lose(waited_s)
            return None
        counts = Statistics(hits=1, fetched_bytes=len(found.payload), waited_s=waited_s)
        self._record(replace(counts, saved_s=max(0.0, _build_seconds(found) - waited_s)))
        return found

    def _fetch(self, kind: str, key: str, trusted: Mapping[str, PublicKey], again: bool) -> Entry | None:
        wanted = Wanted(kind, key, self.given.toolchain(kind))
        client = self._opened.result()
        try:
            entry, signer = unpack(client.read(object_name(kind, key)), wanted, trusted)
        except (MissingObjectError, OtherToolchainError):
            self._record(Statistics(misses=int(not again)))
            return None
        except RefusedError as error:
            self._record(Statistics(refused=int(not again)))
            self._say(f"its answer for {kind} {key[:12]} is refused: {error}", about="refused")
            return None
        info = {**entry.manifest.info, SIGNED_BY: signer.key_id}
        return replace(entry, manifest=replace(entry.manifest, info=info))

    def _answer(self, request: Callable[[], T]) -> T | None:
        """The result of a request; None if it fails or takes too long, which is said once."""
        if not self._becomes_up():
            return None
        try:
            future = self._threads.submit(request)
        except RuntimeError:  # it was closed meanwhile
            return None
        try:
            found = future.result(self.given.wait_s)
        except (FutureTimeoutError, CancelledError):
            future.cancel()
            self._record(Statistics(failures=1))
            self._turn_off(f"it did not answer within {self.given.wait_s:g} s")
            return None
        except PermissionError as error:  # of an object; S3 also says so of a missing one
            self._record(Statistics(failures=1))
            self._say(f"it refuses a request: {error}", about="permission")
            return None
        except Exception as error:  # a store must not fail a build
            self._record(Statistics(failures=1))
            with self._lock:
                self._failures += 1
                many = self._failures >= MOST_FAILURES
            if many:
                self._turn_off(f"{MOST_FAILURES} requests in a row failed: {error}")
            return None
        with self._lock:
            self._failures = 0
        return found

    def _lose(self, waited_s: float) -> None:
        """Count time that brought no entry, and ask no more if a slow store has cost too much of it."""
        if waited_s < SLOW_S:
            return
        with self._lock:
            self._lost_s += waited_s
            much = self._lost_s >= self.given.wait_s
        if much:
            self._turn_off(f"it is slow, and builds have waited {self._lost_s:.0f} s for nothing")

    # ---- state

    def require(self) -> None:
        """Wait until the store answers.

        Raises:
            RemoteError: It does not answer in time, or no key is trusted.
        """
        with self._lock:
            self._patience_s = self.given.wait_s
        if not self._becomes_up():
            raise RemoteError(
                f"the remote store {self.url} is not usable: {self._off or 'no answer in time'}",
                remedy="check the setting remote, the network, and the credentials in the environment",
            )

    def _open(self) -> Client:
        require_cryptography()
        client = Client(self.given.url, self.given.wait_s)
        client.exists(PROBE)
        return client

    def _becomes_up(self) -> bool:
        """True if the store has answered. The first call waits for a moment."""
        if self._off:
            return False
        with self._lock:
            patience_s, self._patience_s = self._patience_s, 0.0
        try:
            self._opened.result(patience_s)
        except FutureTimeoutError:
            if patience_s:
                self._say("it has not answered yet, so that builds go on without it", about="slow")
            return False
        except PermissionError:  # it answers, and an object may be readable all the same
            self._opened = _done(Client(self.given.url, self.given.wait_s))
        except RemoteError as error:
            self._turn_off(str(error))
            return False
        except Exception as error:
            self._turn_off(f"it does not answer: {error}")
            return False
        return True

    def _turn_off(self, reason: str) -> None:
        with self._lock:
            first, self._off = not self._off, self._off or reason
        if first:
            self._say(f"{reason}. It is not used again in this process")

    def _say(self, text: str, about: str = "") -> None:
        with self._lock:
            new = (about or text) not in self._said
            self._said.add(about or text)
        if new:
            log.warning("the remote store %s: %s", self.url, text)

    # ---- writing

    def push(self, kind: str, entry: Entry) -> bool:
        """Sign an entry and write it. A failure is said once. Returns True if it was written.

        Raises:
            RemoteError: There is no signing key.
        """
        signer = self.given.signer
        if signer is None:
            raise RemoteError("nothing can be written without a signing key", remedy="set WARP_TILES_SIGNING_KEY")
        data = pack(kind, entry, self.given.toolchain(kind), signer)
        name = object_name(kind, entry.key)
        written = self._answer(lambda: self._opened.result().write(name, data))
        if written:
            self._record(Statistics(pushed=1, pushed_bytes=len(entry.payload)))
        return bool(written)

    def has(self, kind: str, key: str) -> bool:
        """Returns True if the store has an entry with a sound, trusted statement. Its payload is not read."""
        return bool(self._answer(functools.partial(self._has, kind, key)))

    def _has(self, kind: str, key: str) -> bool:
        wanted = Wanted(kind, key, self.given.toolchain(kind))
        try:
            check_statement(self._opened.result().read(object_name(kind, key)), wanted, self.given.trusted)
        except (MissingObjectError, RefusedError):
            return False
        return True

    def names(self, prefix: str) -> list[str]:
        """The names of the objects below a prefix.

        Raises:
            RemoteError: The store does not answer, or cannot be listed.
        """
        try:
            client = self._opened.result(self.given.wait_s)
            return sorted(client.names(f"{LAYOUT}/{prefix}"))
        except (FutureTimeoutError, NotSupportedError, OSError) as error:
            raise RemoteError(
                f"the remote store {self.url} cannot be listed: {error or 'no answer'}",
                remedy="plain HTTP servers have no lists; use WebDAV, an object store or a folder",
            ) from error

    @contextlib.contextmanager
    def flight(self, kind: str, key: str, wait_s: float) -> Iterator[Elsewhere]:
        """Look for an entry, and let one machine build it if none has it.

        Machines wait for each other only if this one writes to the store and the store has conditional writes.

        Args:
            kind: One of :data:`KINDS`.
            key: Hex digest of the key.
            wait_s: Seconds to wait for another machine that builds it; negative for the longest.

        Yields:
            The entry if there is one, and the function that receives a new one.
        """
        found = self.fetch(kind, key)
        if found is not None or not self.writes:
            yield Elsewhere(found)
            return
        claim, name = Claim.new(), object_name("claims", key)
        holder = self._claim(name, claim)
        if holder is not None:
            found, holder = self._wait_for(kind, key, claim, holder, wait_s)
        elif not self._off:
            # its last builder may have ended since the first question
            found = self.fetch(kind, key, again=True)
        try:
            yield Elsewhere(found, None if found is not None else functools.partial(self.push, kind))
        finally:
            if holder is None:
                self._answer(functools.partial(self._release, name, claim))

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
            found = self.fetch(kind, key, again=True)
            if found is not None or self._off:
                return found, holder
            other = self._claim(object_name("claims", key), claim)
            if other is None:
                return self.fetch(kind, key, again=True), None
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
            client = self._opened.result()
            try:
                if client.write(name, claim.data, only_new=True):
                    return None
                other = Claim(first_bytes(client.read(name), CLAIM_BYTES))
            except (NotSupportedError, MissingObjectError):  # it cannot be known, or was released just now
                return None
            if other.counts:
                return other
            client.write(name, claim.data)  # its machine has died
            return None

        return self._answer(write)

    def _release(self, name: str, claim: Claim) -> None:
        client = self._opened.result()
        with contextlib.suppress(MissingObjectError):
            if first_bytes(client.read(name), CLAIM_BYTES) == claim.data:  # nobody has taken it over
                client.remove(name)


def _build_seconds(entry: Entry) -> float:
    """The time of an entry's build, as its builder noted it."""
    found = entry.manifest.info.get("build_seconds")
    return float(found) if isinstance(found, (int, float)) else 0.0


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
