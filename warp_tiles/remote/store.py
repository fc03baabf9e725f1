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
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TypeVar

from warp_tiles.cache._manifest import Entry
from warp_tiles.cache._store import Elsewhere
from warp_tiles.errors import RemoteError
from warp_tiles.remote.client import Client, MissingObjectError, NotSupportedError
from warp_tiles.remote.envelope import OtherToolchainError, RefusedError, Wanted, pack, unpack
from warp_tiles.remote.keys import PublicKey, SigningKey
from warp_tiles.remote.statistics import Statistics
from warp_tiles.util.processes import this_process
from warp_tiles.util.threads import DaemonThreads
from warp_tiles.util.urls import without_password

log = logging.getLogger("warp_tiles")
T = TypeVar("T")
LAYOUT = "v1"
PROBE = f"{LAYOUT}/store.json"
LTOIR, MODULE = "ltoir", "module"
KINDS = (LTOIR, MODULE)
#: Seconds that a process waits, once, to learn whether a store answers at all. The question is asked much earlier.
PATIENCE_S = 0.04
#: A process asks no more after so many failures in a row.
MOST_FAILURES = 3
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
        toolchain: Returns the toolchain of this process, as text.
        signer: Signs entries that are written; None to write none.
    """

    url: str
    trusted: Mapping[str, PublicKey]
    wait_s: float
    toolchain: Callable[[], str]
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

    def fetch(self, kind: str, key: str) -> Entry | None:
        """Fetch and verify an entry.

        Args:
            kind: One of :data:`KINDS`.
            key: Hex digest of the key.

        Returns:
            The entry, or None if the store does not answer with it in time.
        """
        if not self.given.trusted:
            self._say("no key is trusted, so nothing is loaded from it; `warp-tiles keys trust PUBLIC` adds one")
            return None
        start = time.perf_counter()
        found = self._answer(functools.partial(self._fetch, kind, key))
        waited_s = time.perf_counter() - start
        if found is None:
            self._record(Statistics(waited_s=waited_s))
            return None
        self._record(
            Statistics(
                hits=1,
                fetched_bytes=len(found.payload),
                waited_s=waited_s,
                saved_s=max(0.0, _build_seconds(found) - waited_s),
            )
        )
        return found

    def _fetch(self, kind: str, key: str) -> Entry | None:
        wanted = Wanted(kind, key, self.given.toolchain())
        client = self._opened.result()
        try:
            entry, _ = unpack(client.read(object_name(kind, key)), wanted, self.given.trusted)
        except (MissingObjectError, OtherToolchainError):
            self._record(Statistics(misses=1))
            return None
        except RefusedError as error:
            self._record(Statistics(refused=1))
            self._say(f"its answer for {kind} {key[:12]} is refused: {error}", about="refused")
            return None
        return entry

    def _answer(self, request: Callable[[], T]) -> T | None:
        """The result of a request; None if it fails or takes too long, which is said once."""
        if not self._becomes_up():
            return None
        future = self._threads.submit(request)
        try:
            found = future.result(self.given.wait_s)
        except FutureTimeoutError:
            future.cancel()
            self._turn_off(f"it did not answer within {self.given.wait_s:g} s")
            return None
        except PermissionError as error:
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
            self._record(Statistics(failures=1))
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
        data = pack(kind, entry, self.given.toolchain(), signer)
        name = object_name(kind, entry.key)
        written = self._answer(lambda: self._opened.result().write(name, data))
        if written:
            self._record(Statistics(pushed=1, pushed_bytes=len(entry.payload)))
        return bool(written)

    def has(self, kind: str, key: str) -> bool:
        """Returns True if the store has an object for an entry. It is not verified."""
        return bool(self._answer(lambda: self._opened.result().exists(object_name(kind, key))))

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
            wait_s: Seconds to wait for another machine that builds it; negative for no limit.

        Yields:
            The entry if there is one, and the function that receives a new one.
        """
        found = self.fetch(kind, key)
        if found is not None or not self.writes:
            yield Elsewhere(found)
            return
        claim = object_name("claims", key)
        until = time.monotonic() + wait_s
        while not self._claims(claim):
            time.sleep(_POLL_S)
            found = self.fetch(kind, key)
            if found is not None or self._off:
                yield Elsewhere(found)
                return
            if wait_s >= 0 and time.monotonic() > until:
                self._say(f"another machine has built {key[:12]} for {wait_s:g} s; it is built here too")
                break
        try:
            found = self.fetch(kind, key)  # the last one to build it may have ended since the first question
            yield Elsewhere(found, None if found is not None else functools.partial(self.push, kind))
        finally:
            self._answer(lambda: self._opened.result().remove(claim))

    def _claims(self, name: str) -> bool:
        """Take the lead for a build. True if nobody else has it, or if that cannot be known."""

        def write() -> bool:
            try:
                return self._opened.result().write(name, this_process(), only_new=True)
            except NotSupportedError:
                return True

        return self._answer(write) is not False


def _build_seconds(entry: Entry) -> float:
    """The time of an entry's build, as its builder noted it."""
    found = entry.manifest.info.get("build_seconds")
    return float(found) if isinstance(found, (int, float)) else 0.0


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
